"""`supervisorctl` as its users run it: exit codes, messages, JSON."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from supervisor.cli.jobs.control import print_accepted
from supervisor.cli.jobs.follow import (
    ENDED_OTHERWISE,
    JOB_FAILED,
    JOB_STOPPED,
    JOB_UNSAVED,
    Goal,
    end_code,
)
from supervisor.cli.options import Globals
from supervisor.contract import codec
from supervisor.contract.desired import JobPhase
from supervisor.contract.errors import UserError
from supervisor.contract.views.jobs import Accepted, JobView, TaskView
from tests.cli.shell import ctl

JOB = "name: a\nstrategy: plain\ncommand: [./x]\nroles: {worker: {count: 1}}\n"


def test_help_and_version(tmp_path: Path) -> None:
    done = ctl(tmp_path, "--help")
    assert done.returncode == 0
    assert "Restart a job, or one task of it." in done.stdout
    assert ctl(tmp_path, "--version").stdout == ctl(tmp_path, "version").stdout
    assert json.loads(ctl(tmp_path, "version", "--output", "json").stdout)["api_protocol"] == 1


@pytest.mark.parametrize("arguments", [("version",), ("--help",)])
def test_an_output_that_cannot_be_written_is_named_without_a_traceback(arguments: tuple[str, ...]) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "supervisor.cli.main", *arguments],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=30,
            check=False,
        )
    assert done.returncode == 1
    assert done.stderr == "error: the output cannot be written: No space left on device\n"


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("stat",), 2, "unknown command 'stat'; did you mean 'start'?"),
        (("status", "--nope"), 2, "No such option"),
        (("status",), 3, "error: no cluster here: run `supervisorctl local up`"),
        (("local", "status"), 3, "run `supervisorctl local up`"),
        (("local", "down"), 3, "run `supervisorctl local up`"),
        (("local", "up", "--nodes", "0"), 2, "--nodes 0: give a number from 1 to 64"),
        (("submit", "none.yaml", "--state", "s"), 3, "error: none.yaml: no such file"),
        *(
            ((verb, "bad.yaml", "--state", "s"), 2, "bad.yaml:1: nam: unknown key; did you mean 'name'?")
            for verb in ("submit", "run")
        ),
        (("submit", "good.yaml", "--state", "s"), 3, "no cluster here"),
        (("validate", "none.yaml", "--offline"), 3, "error: none.yaml: no such file"),
        (("validate", "bad.yaml"), 2, "bad.yaml:1: nam: unknown key; did you mean 'name'?"),
        (("validate", "good.yaml", "--config", "c"), 3, "error: c: no such file"),
        (("wait", "a", "--for", "ended", "--state", "s"), 3, "no cluster here"),
        (("wait", "a", "--for", "x"), 2, "use running, succeeded, failed, stopped, ended or step=N"),
        (
            ("wait", "a"),
            2,
            "error: write --for with one of running, succeeded, failed, stopped, ended or step=N",
        ),
        (
            ("submit", "train.py"),
            2,
            "error: train.py: a Python program, and no job file; `supervisorctl init",
        ),
        (("logs", "a", "--task", "w"), 2, "error: --task 'w': write ROLE:INDEX, for example worker:0"),
        (("tail", "a"), 2, "error: 'a' is not a task: write JOB/ROLE:INDEX, for example digits/worker:0"),
        (("restart", "a/b"), 2, "error: 'a/b' is not a task"),
        (
            ("scale", "a", "worker"),
            2,
            "error: 'worker' is not a role and its count",
        ),
        (("scale", "a", "w=1", "w=2"), 2, "error: a role is named twice; give each one count"),
        (("pause", ""), 2, "error: job '' is not a valid name"),
        (("resume", ""), 2, "error: job '' is not a valid name"),
        (("status", "--state", "s", "--config", "c"), 2, "--state and --config name two clusters"),
        (("status", "--config", "c"), 3, "error: c: no such file"),
        (("status", "--config", "bad.yaml"), 2, "bad.yaml:1: nam: unknown key"),
    ],
)
def test_mistakes(tmp_path: Path, arguments: tuple[str, ...], code: int, message: str) -> None:
    (tmp_path / "bad.yaml").write_text(JOB.replace("name", "nam"))
    (tmp_path / "good.yaml").write_text(JOB)
    done = ctl(tmp_path, *arguments)
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert (done.returncode, done.stdout) == (code, "")


def test_validate_offline(tmp_path: Path) -> None:
    (tmp_path / "good.yaml").write_text(JOB)
    done = ctl(tmp_path, "validate", "good.yaml", "--offline")
    assert (done.returncode, done.stdout) == (0, "a: the file is valid: 1 tasks\n")
    done = ctl(tmp_path, "-o", "json", "validate", "good.yaml", "--offline", "--name", "b")
    assert json.loads(done.stdout)["job"] == "b"


def test_validate_without_a_cluster_says_what_it_has_not_checked(tmp_path: Path) -> None:
    (tmp_path / "good.yaml").write_text(JOB)
    done = ctl(tmp_path, "validate", "good.yaml")
    assert (done.returncode, done.stdout) == (0, "a: the file is valid: 1 tasks\n")
    assert "warning: no cluster was asked (none was started here): it is not checked whether" in done.stderr
    done = ctl(tmp_path, "-o", "json", "validate", "good.yaml")
    assert "the nodes have what it asks for" in json.loads(done.stdout)["cautions"][0]


def test_a_mounted_job_may_get_its_place_from_the_cluster(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(JOB + "checkpoint: {mode: mounted}\n")
    done = ctl(tmp_path, "validate", "job.yaml", "--offline")
    assert (done.returncode, done.stdout) == (0, "a: the file is valid: 1 tasks\n")


def test_the_state_directory_may_come_from_the_environment(tmp_path: Path) -> None:
    done = ctl(tmp_path, "status", TFSUP_STATE="elsewhere")
    assert f"looked in {tmp_path}/elsewhere" in done.stderr


def test_a_client_without_a_place_for_checkpoints(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(f"cluster: c\nsupervisors: ['unix:{tmp_path}/none']\n")
    (tmp_path / "good.yaml").write_text(JOB)
    done = ctl(tmp_path, "submit", "good.yaml", "--config", "c.yaml")
    assert done.returncode == 2
    assert "the client configuration has no checkpoint_base; add file:///" in done.stderr


def test_escape_sequences_of_a_file_do_not_reach_the_terminal(tmp_path: Path) -> None:
    (tmp_path / "evil.yaml").write_text(JOB + 'env: {"\\e[2J": x}\n')
    done = ctl(tmp_path, "validate", "evil.yaml", "--offline")
    assert done.returncode == 2
    assert "\x1b" not in done.stderr


def view(phase: JobPhase, step: int = -1, *states: str) -> JobView:
    tasks = tuple(
        TaskView(f"a/w:{n}", "w", n, "", state, 1, 1, "", step, 0.0) for n, state in enumerate(states)
    )
    return JobView("a", "u", "plain", phase, 1, step, 0.0, None, None, 0, 0, 0, 3, "", "", 0, tasks)


@pytest.mark.parametrize(
    ("goal", "job", "code"),
    [
        ("running", view(JobPhase.RUNNING, 1, "running", "running"), 0),
        ("running", view(JobPhase.RUNNING, 1, "running", "exited"), None),
        ("running", view(JobPhase.WAITING), None),
        ("running", view(JobPhase.SUCCEEDED), 0),
        ("running", view(JobPhase.FAILED), JOB_FAILED),
        ("succeeded", view(JobPhase.SUCCEEDED), 0),
        ("succeeded", view(JobPhase.FINISHING), None),
        ("succeeded", view(JobPhase.FAILED), JOB_FAILED),
        ("succeeded", view(JobPhase.STOPPED), JOB_STOPPED),
        ("failed", view(JobPhase.FAILED), 0),
        ("failed", view(JobPhase.SUCCEEDED), ENDED_OTHERWISE),
        ("ended", view(JobPhase.STOPPED), 0),
        ("step=5", view(JobPhase.RUNNING, 5), 0),
        ("step=5", view(JobPhase.RUNNING, 4), None),
        ("step=5", view(JobPhase.SUCCEEDED, 4), ENDED_OTHERWISE),
        ("step=5", view(JobPhase.FAILED, 9), 0),
    ],
)
def test_what_is_waited_for(goal: str, job: JobView, code: int | None) -> None:
    assert Goal.parse(goal).result(job) == code


@pytest.mark.parametrize(("left", "code"), [("", 0), ("g1-s100 is not committed", JOB_UNSAVED)])
def test_a_success_without_its_last_save_has_a_code_of_its_own(left: str, code: int) -> None:
    assert end_code(replace(view(JobPhase.SUCCEEDED), uncommitted=left)) == code


@pytest.mark.parametrize("text", ["", "step=", "step=-1", "step=x", "done"])
def test_goals_that_do_not_exist(text: str) -> None:
    with pytest.raises(UserError, match="running, succeeded, failed, stopped, ended or step=N"):
        Goal.parse(text)


@pytest.mark.parametrize("output", ["text", "json"])
def test_what_the_leader_warns_of_is_on_the_error_output(
    output: str, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = codec.decode(Accepted, codec.encode(Accepted("a", "submitted", ("\x1bno GPUs",))))
    print_accepted(Globals(output=output), answer)
    said = capsys.readouterr()
    assert said.err.startswith("warning: ")
    assert "no GPUs" in said.err
    assert "\x1b" not in said.err
    if output == "json":
        assert json.loads(said.out)["detail"] == "submitted"
    else:
        assert said.out == "a: submitted\n"
