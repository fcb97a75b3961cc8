"""An operator at a terminal of the cluster: `supervisorctl`, without starting an interpreter for each word.

`main(CONFIG)` runs there and answers requests on its standard input, one line of JSON each, until that ends.
"""

from __future__ import annotations

import io
import json
import subprocess
import sys
import time
from contextlib import redirect_stderr, redirect_stdout
from types import TracebackType
from typing import Self

import click

from chaos.cluster import Cluster, CommandFailed
from supervisor.cli.main import cli
from supervisor.contract.errors import TfSupervisorError

END_S = 10.0
INSIST_S = 30.0
AGAIN_S = 0.5
START = "from chaos.faults.operator import main; main()"


class Operator:
    """`supervisorctl WORDS --output json` on the operator's machine, as long as the `with` block lasts."""

    def __init__(self, cluster: Cluster) -> None:
        self._argv = cluster.at_operator(sys.executable, "-c", START, str(cluster.programs.client))
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            self._argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        process, self._process = self._process, None
        assert process is not None
        try:
            process.communicate(timeout=END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()

    def ctl(self, *words: str) -> object:
        """Run a command; returns its JSON output. Raises CommandFailed."""
        process = self._process
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(words) + "\n")
        answer = json.loads(process.stdout.readline() or '{"code": -1, "said": "the terminal is gone"}')
        if answer["code"] != 0:
            raise CommandFailed(words, answer["code"], answer["said"])
        return json.loads(answer["out"])

    def insist(self, *words: str) -> object:
        """As `ctl`, with retries for a while: commands are refused while leaders change.

        Raises CommandFailed.
        """
        deadline = time.monotonic() + INSIST_S
        while True:
            try:
                return self.ctl(*words)
            except CommandFailed:
                if time.monotonic() >= deadline:
                    raise
            time.sleep(AGAIN_S)


def _answer(config: str, words: list[str]) -> dict[str, object]:
    out, said = io.StringIO(), io.StringIO()
    try:
        with redirect_stdout(out), redirect_stderr(said):
            # First, as what follows `--` belongs to another program.
            code = cli.main(["--output", "json", "--config", config, *words], standalone_mode=False) or 0
    except (click.ClickException, TfSupervisorError) as error:
        return {"code": error.exit_code, "said": str(error)}
    return {"code": code, "out": out.getvalue() or "null", "said": said.getvalue()}


def main() -> None:
    """Answer until standard input ends."""
    config = sys.argv[1]
    for line in sys.stdin:
        print(json.dumps(_answer(config, json.loads(line))), flush=True)
