"""The pages about YARN and Spark begin with commands that lead to a trained model, which run here."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from chaos.spark import SparkCluster
from chaos.yarn import YarnCluster
from tests.cli.shell import ROOT, environment
from tests.engines.pool_shell import ours, wait_long

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


class Newcomer:
    """Somebody who follows a page, with the paths of a site in place of the page's own.

    `state` is on all machines, and each machine has a temporary directory to itself.
    """

    def __init__(self, page: str, state: Path, temporary: str, site: Mapping[str, str]) -> None:
        _, _, rest = (ROOT / "docs" / page).read_text().partition("\n## Begin\n")
        paths, commands = re.findall(r"^```\n(.*?)^```$", rest, re.DOTALL | re.MULTILINE)[:2]
        # An archive with TensorFlow takes minutes. test_archive_on_engines.py has one without.
        self._commands = re.sub(r"supervisorctl pool pack .*\n| --archive \S+", "", commands)
        named = {"TFSUP_STATE": str(state), **site}
        assert set(re.findall(r"(\w+)=", paths)) == named.keys()
        programs = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        self.variables = environment() | {"PATH": programs, "TMPDIR": temporary} | named

    def follows(self) -> str:
        """Run the commands; what they have printed."""
        done = self._run("bash", "-euo", "pipefail", "-c", self._commands)
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
        return done.stdout + done.stderr

    def gives_up(self, *commands: str) -> None:
        """Run these, of which any may fail."""
        for each in commands:
            self._run("bash", "-c", each)

    def _run(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            words, cwd=ROOT, env=self.variables, capture_output=True, text=True, timeout=600, check=False
        )


@contextmanager
def newcomer(
    page: str, directory: Path, site: Mapping[str, str], *, at_last: tuple[str, ...] = ()
) -> Iterator[Newcomer]:
    """One who leaves no cluster behind."""
    # Paths of sockets are short.
    with tempfile.TemporaryDirectory(prefix="tfsup-m-") as temporary:
        found = Newcomer(page, directory / "state", temporary, site)
        try:
            yield found
        finally:
            found.gives_up(*at_last, "supervisorctl local down")


def test_yarn(tmp_path: Path) -> None:
    ends = ("supervisorctl pool down --on yarn --now training",)
    with YarnCluster(node_mib=9216) as yarn:
        site = {name: yarn.variables[name] for name in ("HADOOP_HOME", "HADOOP_CONF_DIR")}
        with newcomer("yarn.md", tmp_path, site, at_last=ends) as reader:
            reader.variables["XDG_CACHE_HOME"] = yarn.variables["XDG_CACHE_HOME"]
            told = reader.follows()
            assert "the engine has everything back; its certificates are revoked" in told
            assert "application_" not in yarn.yarn("application", "-list")
            wait_long(lambda: ours(tmp_path) == [], "no process is left")


def test_spark(tmp_path: Path) -> None:
    with SparkCluster(tmp_path / "spark", cores=2) as spark:
        site = {"PYSPARK_PYTHON": sys.executable, "MASTER": spark.master}
        with newcomer("spark.md", tmp_path, site) as reader:
            home = spark.environment["SPARK_HOME"]
            reader.variables |= {"SPARK_LOCAL_IP": "127.0.0.1", "SPARK_HOME": home}
            reader.variables["PATH"] = f"{home}/bin:{reader.variables['PATH']}"
            told = reader.follows()
            assert "digits_of_spark succeeded at step 300" in told
            wait_long(lambda: ours(tmp_path) == [], "no process is left")
            assert spark.told()["activeapps"] == []
