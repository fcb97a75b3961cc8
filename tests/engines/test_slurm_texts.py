"""Texts for Slurm and of Slurm. Programs of the tests stand in for its commands."""

from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path

import pytest

from supervisor.contract.errors import NotFound, Refused, Unreachable, UserError
from supervisor.engines.engine import Pool, State
from supervisor.engines.slurm import Slurm, agent_of, script_of
from tests.engines.commands import Commands

ADDED = (
    '--place "$SLURMD_NODENAME" --id "${SLURM_ARRAY_JOB_ID}_${SLURM_ARRAY_TASK_ID}" '
    '${rack:+--label "rack=$rack"} '
    '--then "scontrol requeue $SLURM_JOB_ID"'
)
POOL = Pool(name="digits", command=("/opt/venv/bin/python", "-P", "it's"), directory="/home/a b/logs")


@pytest.fixture
def commands(tmp_path: Path) -> Commands:
    return Commands(tmp_path)


@pytest.fixture
def slurm(commands: Commands) -> Slurm:
    return Slurm({"PATH": commands.path, "HOME": "/root", "TOKEN": "no-one-may-see"})


def test_the_script_holds_all_options_of_a_pool() -> None:
    full = Pool(
        name="digits",
        command=POOL.command,
        directory="/logs",
        cpus=4,
        memory_mib=2048,
        gpus="a100:2",
        queue="gpu",
        constraint="fast&large",
        time="1-00:00:00",
        notice_s=90,
        requeue=True,
    )
    assert script_of(full).splitlines() == [
        "#!/bin/sh",
        "#SBATCH --job-name=tfsup:digits",
        '#SBATCH --chdir="/logs"',
        "#SBATCH --output=tfsup-digits-%A_%a.log",
        "#SBATCH --open-mode=append",
        "#SBATCH --nodes=1",
        "#SBATCH --ntasks=1",
        "#SBATCH --cpus-per-task=4",
        "#SBATCH --signal=B:USR1@90",
        "#SBATCH --requeue",
        "#SBATCH --mem=2048M",
        "#SBATCH --gres=gpu:a100:2",
        "#SBATCH --partition=gpu",
        "#SBATCH --constraint=fast&large",
        "#SBATCH --time=1-00:00:00",
        'above=${SLURM_TOPOLOGY_ADDR%"$SLURMD_NODENAME"}',
        "above=${above%.}",
        "rack=${above##*.}",
        f"exec {shlex.join(POOL.command)} {ADDED}",
    ]


@pytest.mark.parametrize(
    ("address", "label"),
    [("all.a b.n1", ["--label", "rack=a b"]), ("s1.n1", ["--label", "rack=s1"]), ("n1", []), ("", [])],
)
def test_the_shell_reads_the_script_as_it_is_meant(address: str, label: list[str]) -> None:
    script = script_of(Pool(name="digits", command=("printf", "%s\\n", "a  b", "$HOME;'"), directory="/logs"))
    variables = {"SLURMD_NODENAME": "n1", "SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "2"}
    variables |= {"SLURM_TOPOLOGY_ADDR": address} if address else {}
    done = subprocess.run(
        ["/bin/sh"], input=script, env=variables, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == ["a  b", "$HOME;'", "--place", "n1", "--id", "7_2", *label]


@pytest.mark.parametrize("directory", ["/a\n#SBATCH --wrap=x", '/a"b', "/a\\b", "/a%jb", "/a|b"])
def test_a_directory_that_slurm_would_read_otherwise_is_refused(directory: str) -> None:
    with pytest.raises(UserError, match="choose a directory without"):
        script_of(Pool(name="digits", command=("true",), directory=directory))


def test_slurm_gets_no_secret_of_the_environment(commands: Commands, slurm: Slurm) -> None:
    commands.put("sbatch", f'env >{commands.directory}/env; cat >{commands.directory}/script; echo "41;main"')
    assert slurm.start(POOL, 2) == ["41_0", "41_1"]
    seen = (commands.directory / "env").read_text()
    assert "HOME=/root" in seen
    assert "no-one-may-see" not in seen
    assert (commands.directory / "script").read_text() == script_of(POOL)
    assert commands.calls == ["sbatch --parsable --array=0-1"]


def test_more_agents_get_the_script_of_those_that_are_there(commands: Commands, slurm: Slurm) -> None:
    rows = (
        "41_0|RUNNING|n1|2027-01-01T00:00:00|UNLIMITED|(null)|/logs|tfsup:digits|None",
        "39_0|RUNNING|n2|2027-01-01T00:00:00|UNLIMITED|(null)|/logs|tfsup:digits|None",
        "42_0|CANCELLED||2027-01-01T00:00:00|UNLIMITED|(null)|/logs|tfsup:digits|None",
        "43_0|COMPLETING|n3|2027-01-01T00:00:00|UNLIMITED|(null)|/logs|tfsup:digits|None",
    )
    commands.put("squeue", "\n".join(f'echo "{each}"' for each in rows))
    commands.put("scontrol", "echo '#!/bin/sh'; echo 'exec it'")
    commands.put("sbatch", f"cat >{commands.directory}/script; echo 42")
    slurm.add("digits", 3)
    assert (commands.directory / "script").read_text() == "#!/bin/sh\nexec it\n"
    assert commands.calls[1:] == [
        "scontrol write batch_script 41 -",
        "sbatch --parsable --array=0-2",
    ]


@pytest.mark.parametrize(
    ("line", "state", "place", "reason", "ends"),
    [
        (
            "41_0|PENDING||2027-01-01T00:00:00|UNLIMITED|(null)|/logs|tfsup:digits|Resources",
            State.WAITING,
            "",
            "Resources",
            "",
        ),
        (
            "41_0|PENDING||2027-01-01T00:00:00|UNLIMITED|(null)|/logs|tfsup:digits|Not available: n[1-3]|x",
            State.WAITING,
            "",
            "Not available: n[1-3]|x",
            "",
        ),
        (
            "41_1|RUNNING|n1|2026-11-26T12:00:00|6:00:00|(null)|/logs|tfsup:digits|None",
            State.RUNNING,
            "n1",
            "",
            "2026-11-26T12:00:00",
        ),
        (
            "41_1|RUNNING|n1|2027-01-01T00:00:00|UNLIMITED|leaving|/logs|tfsup:digits|None",
            State.LEAVING,
            "n1",
            "",
            "",
        ),
        (
            "41_1|COMPLETING|n1|2027-01-01T00:00:00|UNLIMITED|(null)|/logs|tfsup:digits|None",
            State.LEAVING,
            "n1",
            "",
            "",
        ),
        (
            "41_1|NODE_FAIL|n1|2027-01-01T00:00:00|UNLIMITED|(null)|/logs|tfsup:digits|NodeDown",
            State.ENDED,
            "n1",
            "NodeDown",
            "",
        ),
        (
            "41_1|SOMETHING_NEW|n1|2027-01-01T00:00:00|UNLIMITED|(null)|/logs|tfsup:digits|None",
            State.ENDED,
            "n1",
            "",
            "",
        ),
        (
            "41|CANCELLED||2027-01-01T00:00:00|UNLIMITED|(null)|/logs|tfsup:digits|PartitionDown",
            State.ENDED,
            "",
            "PartitionDown",
            "",
        ),
        ("41|RUNNING|n1|2027-01-01T00:00:00|UNLIMITED|(null)|/logs|train.sh|None", None, "", "", ""),
        ("slurm_load_jobs error", None, "", "", ""),
    ],
)
def test_a_line_of_squeue(line: str, state: State | None, place: str, reason: str, ends: str) -> None:
    agent = agent_of(line)
    if state is None:
        assert agent is None
        return
    assert agent is not None
    assert (agent.state, agent.place, agent.reason, agent.ends) == (state, place, reason, ends)
    assert bool(agent.log) == bool(place), "the log is written where it runs"


def test_jobs_of_other_users_are_no_agents(commands: Commands, slurm: Slurm) -> None:
    """Whoever may submit jobs chooses their names, and may write a whole line of the queue as a comment."""
    commands.put(
        "squeue", f'case "$*" in *--user={os.geteuid()}*) ;; *) echo "9|RUNNING|n1||||tfsup:a|x" ;; esac'
    )
    assert slurm.agents() == slurm.agents("a") == []


def test_an_agent_that_is_to_leave_is_not_queued_again(commands: Commands, slurm: Slurm) -> None:
    commands.put("scancel", "true")
    commands.put("scontrol", "true")
    slurm.notify(["41_0"])
    assert commands.calls == [
        "scancel --batch --signal=USR2 41_0",
        "scontrol update JobId=41_0 Requeue=0 Comment=leaving",
    ]


def test_agents_are_the_oldest_first(commands: Commands, slurm: Slurm) -> None:
    ids = ("101_10", "101_9", "99_0")
    rows = "; ".join(f'echo "{each}|RUNNING|n1|N/A|1:00|(null)|/logs|tfsup:digits|None"' for each in ids)
    commands.put("squeue", rows)
    assert [each.id for each in slurm.agents("digits")] == ["99_0", "101_9", "101_10"]
    assert slurm.agents("digits")[0].log == "/logs/tfsup-digits-99_0.log"


def test_without_slurm_it_says_where_to_go(tmp_path: Path) -> None:
    slurm = Slurm({"PATH": str(tmp_path)})
    with pytest.raises(NotFound, match="there is no sbatch on PATH: run this where Slurm's commands are"):
        slurm.start(POOL, 1)


def test_slurms_reason_is_shown(commands: Commands, slurm: Slurm) -> None:
    said = ("invalid partition specified: x", "Batch job submission failed: Invalid partition name specified")
    commands.put("sbatch", "".join(f'echo "sbatch: error: {line}" >&2; ' for line in said) + "exit 1")
    with pytest.raises(Refused, match=f"^sbatch: {'; '.join(said)}$"):
        slurm.start(POOL, 1)
    commands.put("sbatch", "echo nonsense")
    with pytest.raises(Refused, match="'nonsense', which is no number of a job"):
        slurm.start(POOL, 1)


def test_what_has_ended_meanwhile_needs_no_end(commands: Commands, slurm: Slurm) -> None:
    said = "scancel: error: Kill job error on job id 41_0: Job/step already completing or completed"
    commands.put("scancel", f'echo "{said}" >&2; exit 1')
    commands.put("scontrol", "exit 1")
    slurm.cancel(["41_0"])
    slurm.notify(["41_0"])
    said = "scancel: error: Kill job error on job id 41_0: Access/permission denied"
    commands.put("scancel", f'echo "{said}" >&2; exit 1')
    with pytest.raises(Refused, match="Access/permission denied"):
        slurm.cancel(["41_0"])


def test_where_slurm_has_no_configuration_it_is_said_what_to_do(commands: Commands, slurm: Slurm) -> None:
    said = "squeue: fatal: Could not establish a configuration source"
    commands.put("squeue", f'echo "{said}" >&2; exit 1')
    with pytest.raises(NotFound, match="run this on a login node, or set SLURM_CONF to"):
        slurm.agents()


def test_a_controller_that_does_not_answer_may_be_asked_again(commands: Commands, slurm: Slurm) -> None:
    said = "slurm_load_jobs error: Unable to contact slurm controller (connect failure)"
    commands.put("squeue", f'echo "{said}" >&2; exit 1')
    with pytest.raises(Unreachable, match="Unable to contact slurm controller"):
        slurm.agents()
