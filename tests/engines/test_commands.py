"""`supervisorctl pool`, with programs of the tests in place of Slurm's."""

from __future__ import annotations

import hashlib
import inspect
import io
import json
import os
import shlex
import sys
import tarfile
from importlib import metadata
from pathlib import Path

import pytest

from supervisor.cli.local.layout import Layout, LocalSettings
from supervisor.engines import pools
from supervisor.engines.engine import PoolAgent, State
from supervisor.engines.installation import bootstrap
from supervisor.engines.installation.archive import MANIFEST
from tests.cli.shell import ctl
from tests.engines.commands import Commands

QUEUE = """cat <<'E'
41_0|RUNNING|n1|2026-11-26T18:00:00|6:00:00|(null)|/logs|tfsup:digits|None
41_1|PENDING||2027-01-01T00:00:00|UNLIMITED|(null)|/logs|tfsup:digits|Resources
41_2|FAILED|n2|2026-11-26T12:00:00|6:00:00|(null)|/logs|tfsup:digits|NonZeroExitCode
42_0|RUNNING|n3|2027-01-01T00:00:00|UNLIMITED|leaving|/logs|tfsup:other|None
43|RUNNING|n3|2027-01-01T00:00:00|UNLIMITED||/home|train.sh|None
E"""


@pytest.fixture
def commands(tmp_path: Path) -> Commands:
    found = Commands(tmp_path / "bin")
    found.directory.mkdir()
    found.put("scontrol", "echo ClusterName = main")
    layout = Layout.of(tmp_path / "state")
    layout.make()
    layout.write(LocalSettings(cluster="local", nodes=1, supervisors=1, profile="fast"))
    return found


def test_pools_are_listed(commands: Commands, tmp_path: Path) -> None:
    commands.put("squeue", QUEUE)
    told = ctl(tmp_path, "pool", "list", PATH=commands.path).stdout.splitlines()
    assert [line.split() for line in told] == [
        ["pool", "engine", "running", "waiting", "leaving"],
        ["digits", "slurm", "1", "1", "0"],
        ["other", "slurm", "0", "0", "1"],
    ]
    listed = json.loads(ctl(tmp_path, "-o", "json", "pool", "list", PATH=commands.path).stdout)
    assert listed == {
        "pools": {"digits": {"running": 1, "waiting": 1}, "other": {"leaving": 1}},
        "certificates": [],
    }


def test_a_pool_is_shown_with_what_the_cluster_knows_of_it(commands: Commands, tmp_path: Path) -> None:
    commands.put("squeue", QUEUE.replace("42_0", "x").replace("43", "x"))
    done = ctl(tmp_path, "--state", "state", "pool", "status", "digits", PATH=commands.path)
    assert done.returncode == 0, done.stderr
    running, waiting, ended = done.stdout.splitlines()[1:]
    assert running.startswith("41_0   running  n1")
    assert "the cluster does not say: " in running
    assert running.endswith("see /logs/tfsup-digits-41_0.log")
    assert waiting.split() == ["41_1", "pending", "-", "-", "-", "-", "Resources"]
    assert ended.endswith("NonZeroExitCode; see /logs/tfsup-digits-41_2.log")


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("a.b",), "'a.b' is not a name for a pool"),
        (("digits", "--memory", "16"), "--memory: '16' is not a size"),
        (("digits", "--gpus", "two"), "--gpus 'two': write it as 1, or a100:2"),
        (("digits", "--queue", "--wrap=x"), "--queue '--wrap=x': write it as gpu"),
        (("digits", "--constraint", "a b"), "--constraint 'a b': write it as gpu, or of Slurm fast&large"),
        (("digits", "--time", "tomorrow"), "--time 'tomorrow': write it as 12:00:00"),
        (("digits", "--python", "/nowhere/python"), "--python /nowhere/python: no program is there"),
        (("digits", "--notice", "80000"), "'--notice': 80000 is not in the range 20<=x<=65535"),
        (("digits", "--time", "1"), "--time 1 is 60 s: an agent would leave as soon as it begins"),
        (("digits", "--time", "2:00", "--notice", "120"), "--time 2:00 is 120 s: "),
        (("digits", "--time", "0-1", "--notice", "4000"), "--time 0-1 is 3600 s: "),
        (("digits", "--time", "0:1:0"), "--time 0:1:0 is 60 s: "),
        (("digits", "--agents", "0"), "0 agents: give a number from 1 to 1000"),
        (("digits", "--logs", 'a"b'), "choose a directory without quotes"),
    ],
)
def test_wrong_options_are_refused_before_anything_is_queued(
    commands: Commands, tmp_path: Path, options: tuple[str, ...], told: str
) -> None:
    commands.put("squeue", "true")
    commands.put("sbatch", "echo 41")
    done = ctl(tmp_path, "--state", "state", "pool", "up", *options, PATH=commands.path)
    assert (done.returncode, told in done.stderr) == (2, True), done.stderr
    assert not any(each.startswith("sbatch") for each in commands.calls)


def test_a_pool_is_queued_with_the_files_that_its_agents_share(commands: Commands, tmp_path: Path) -> None:
    commands.put("squeue", "true")
    commands.put("sbatch", f"cat >{tmp_path}/script; echo 41")
    done = ctl(tmp_path, "--state", "state", "pool", "up", "digits", "--memory", "1.5GiB", PATH=commands.path)
    assert done.returncode == 0, done.stderr
    script = (tmp_path / "script").read_text()
    shared = tmp_path / "state" / "config" / "pool.yaml"
    assert f"exec {sys.executable} -P -m supervisor.engines.keeper --pool digits " in script
    assert f"--agent-config {shared} --state {tmp_path / 'state'} " in script
    assert f" --label origin=slurm:main:{os.geteuid()} " in script
    assert "#SBATCH --mem=1536M" in script
    assert f'#SBATCH --chdir="{tmp_path}"' in script
    shared.unlink()
    again = ctl(tmp_path, "--state", "state", "pool", "up", "digits", PATH=commands.path)
    assert again.returncode == 3
    assert "pool.yaml: no such file; run `supervisorctl local up` again" in again.stderr


def test_a_pool_is_queued_with_its_installation(commands: Commands, tmp_path: Path) -> None:
    """The machines' Python checks and unpacks it before anything of it runs."""
    commands.put("squeue", "true")
    commands.put("sbatch", f"cat >{tmp_path}/script; echo 41")
    up = ("--state", "state", "pool", "up", "digits", "--archive", "a.tar.gz")
    _write_archive(tmp_path / "a.tar.gz", "0.0.1")
    done = ctl(tmp_path, *up, PATH=commands.path)
    assert (done.returncode, "packed by version 0.0.1, and this is " in done.stderr) == (2, True), done.stderr
    _write_archive(tmp_path / "a.tar.gz", metadata.version("tf-supervisor"))
    done = ctl(tmp_path, *up, PATH=commands.path)
    assert done.returncode == 0, done.stderr
    script = (tmp_path / "script").read_text()
    words = shlex.split(script[script.index("exec ") :])
    digest = hashlib.sha256((tmp_path / "a.tar.gz").read_bytes()).hexdigest()
    below = str(tmp_path / "state" / "pool" / "installations" / "{host}")
    assert words[1:5] == ["python3.11", "-I", "-c", inspect.getsource(bootstrap)]
    assert words[5:9] == [str(tmp_path / "a.tar.gz"), digest, "cpython-311-x86_64-linux-gnu", below]
    assert words[9:14] == ["-P", "-m", "supervisor.engines.keeper", "--pool", "digits"]
    shared = tmp_path / "state" / "config" / "pool.yaml"
    shared.write_text(shared.read_text().replace("/pool", "/{node}/pool"))
    again = ctl(tmp_path, *up, PATH=commands.path)
    assert (again.returncode, "leave {node} out there" in again.stderr) == (2, True), again.stderr


def _write_archive(path: Path, version: str) -> None:
    told = {"version": version, "python": "3.11", "abi": "cpython-311-x86_64-linux-gnu"}
    manifest = json.dumps(told).encode()
    with tarfile.open(path, "w:gz") as tar:
        member = tarfile.TarInfo(MANIFEST)
        member.size = len(manifest)
        tar.addfile(member, io.BytesIO(manifest))


def test_the_last_words_of_an_agent_are_the_last_line_of_its_log(tmp_path: Path) -> None:
    log = tmp_path / "agent.log"
    agent = PoolAgent(id="41_0", pool="digits", state=State.ENDED, word="FAILED", log=str(log))
    assert pools.last_words(agent) == ""
    log.write_text("Traceback\nImportError: GLIBC_2.28 not found\n\n")
    assert pools.last_words(agent) == "ImportError: GLIBC_2.28 not found"
    log.write_bytes(b"\xff" * 40_000)
    assert 0 < len(pools.last_words(agent)) <= 500


def test_without_hadoop_it_says_what_is_missing(tmp_path: Path) -> None:
    done = ctl(tmp_path, "pool", "list", "--on", "yarn", PATH=str(tmp_path), HADOOP_HOME="")
    assert done.returncode == 3
    assert "there is no yarn below HADOOP_HOME and on PATH" in done.stderr


def test_without_slurm_it_says_where_to_go(tmp_path: Path) -> None:
    done = ctl(tmp_path, "pool", "list", PATH=str(tmp_path))
    assert done.returncode == 3
    assert "there is no squeue on PATH: run this where Slurm's commands are" in done.stderr


def test_a_pool_on_spark_is_its_drivers(tmp_path: Path) -> None:
    done = ctl(tmp_path, "pool", "up", "digits", "--on", "spark")
    assert done.returncode == 2
    assert "`with TrainingPool(spark, agents=3)` of the module tfsup_spark" in done.stderr
