"""`python -m tests.attacks.client CONFIG`: supervisorctl, and a client that checks nothing, as one process.

A request is a line of JSON, {"words": [...]} or {"calls": NAME, "site": {...}}. The answer is a line with
`code` and `said`. It runs on the operator's machine of a cluster, and ends by an error that nobody expects.
"""

from __future__ import annotations

import asyncio
import io
import json
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import click

from supervisor.cli.main import cli
from supervisor.contract.errors import TfSupervisorError
from tests.attacks.calls import call


def main() -> None:
    """Serve until standard input ends."""
    config, out = Path(sys.argv[1]), sys.stdout
    for line in sys.stdin:
        request = json.loads(line)
        if "words" in request:
            code, said = _words([*request["words"], "--config", str(config)])
        else:
            code, said = _calls(request["calls"], config, request["site"])
        out.write(json.dumps({"code": code, "said": said}) + "\n")
        out.flush()


def _words(words: list[str]) -> tuple[int, str]:
    out, said = io.StringIO(), io.StringIO()
    try:
        with redirect_stdout(out), redirect_stderr(said):
            code = cli.main(words, standalone_mode=False) or 0
    except (click.ClickException, TfSupervisorError) as error:
        return error.exit_code, str(error)
    return int(code), out.getvalue() if not code else said.getvalue() or out.getvalue()


def _calls(name: str, config: Path, site: dict[str, str]) -> tuple[int, str]:
    return 0, "\n".join(asyncio.run(call(name, config, site)))


if __name__ == "__main__":
    main()
