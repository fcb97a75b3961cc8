"""Operators' hands on a running job, in a real embedded cluster, through the real command line."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest

from tests.cli.printing import TASK, PrintingShell, printing
from tests.cli.shell import completed
from tests.support.waiting import wait_until


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrintingShell]:
    with printing(tmp_path_factory.mktemp("control"), nodes=2, supervisors=2) as made:
        yield made


def test_a_command_runs_in_the_tasks_surroundings(shell: PrintingShell) -> None:
    wait_until(shell.answers)
    script = "import os; print(os.getcwd(), os.environ['TFSUP_TASK'], len(os.environ['SECRET']))"
    done = shell("exec", TASK, "--", sys.executable, "-c", script)
    directory = shell.cluster.layout.state.parent
    assert done.stdout == f"{directory} {TASK} 19\n"
    found = shell.json("exec", TASK, "--", "sh", "-c", "echo out; echo err >&2; exit 7", code=7)
    assert (found["exit_code"], found["stdout"], found["stderr"]) == (7, "out\n", "err\n")
    assert str(found["attempt"]).startswith(f"{TASK}@")
    assert "cannot run 'no-such-program'" in shell("exec", TASK, "--", "no-such-program", code=127).stderr
    assert "1 to" not in shell("exec", "count/worker:1", "--", "true", code=3).stderr


def test_a_command_dies_with_its_time_its_caller_its_agent_and_its_task(
    shell: PrintingShell, tmp_path: Path
) -> None:
    marks = {name: tmp_path / name for name in ("time", "caller", "agent", "task")}
    # A grandchild in a session of its own must go as well.
    script = "echo $$ > {0}.1; setsid sleep 300 & echo $! > {0}.2; sleep 300"

    def pids(mark: Path) -> list[int]:
        found = []
        for number in (1, 2):
            with suppress(OSError, ValueError):
                found.append(int(Path(f"{mark}.{number}").read_text()))
        return found

    def started_both(mark: Path) -> bool:
        return len(pids(mark)) == 2

    def gone(mark: Path) -> bool:
        return len(pids(mark)) == 2 and not any(Path(f"/proc/{pid}").exists() for pid in pids(mark))

    started = time.monotonic()
    shell("exec", "--timeout", "1", TASK, "--", "sh", "-c", script.format(marks["time"]), code=124)
    assert time.monotonic() - started < 50
    wait_until(lambda: gone(marks["time"]))
    for end, code in (("caller", -signal.SIGKILL), ("agent", 5), ("task", 125)):
        mark = marks[end]
        wait_until(shell.answers)
        with (tmp_path / "out").open("wb") as out:
            running = shell.start("exec", TASK, "--", "sh", "-c", script.format(mark), out=out, err=out)
            wait_until(partial(started_both, mark))
            if end == "caller":
                running.kill()
            elif end == "agent":
                shell.cluster.kill_member(str(shell.task()["node"]).replace("node", "agent"))
            else:
                os.kill(shell.running_pid(), signal.SIGKILL)
            wait_until(partial(gone, mark))
            assert running.wait(30) == code


def test_a_signal_reaches_the_task_and_its_end_names_the_operator(shell: PrintingShell) -> None:
    before = shell.running_pid()
    assert "there is no signal 'NONSENSE'" in shell("signal", TASK, "NONSENSE", code=2).stderr
    assert "there is no signal '0'" in shell("signal", TASK, "0", code=2).stderr
    assert "no task count/worker:9" in shell("signal", "count/worker:9", "TERM", code=3).stderr
    assert f"pid {before}" in str(shell.json("signal", TASK, "sigterm")["detail"])
    wait_until(lambda: shell.attempt_pid() not in (0, before))

    def told() -> bool:
        incidents = shell.json("explain", "count")["incidents"]
        assert isinstance(incidents, list)
        return any("an operator sent SIGTERM" in str(incident["detail"]) for incident in incidents)

    wait_until(told)


def test_tail_misses_nothing_across_everything_that_dies(shell: PrintingShell, tmp_path: Path) -> None:
    shown, said = tmp_path / "shown", tmp_path / "said"
    events, events_said = tmp_path / "events", tmp_path / "events_said"

    def newest() -> int:
        lines = shown.read_text().splitlines()[:-1] if shown.exists() else []
        numbers = [int(line.split()[1]) for line in lines if line.startswith("line ")]
        return numbers[-1] if numbers else 0

    def goes_on() -> None:
        before = newest()
        wait_until(lambda: newest() > before + 20)

    with (
        shown.open("wb") as out,
        said.open("wb") as err,
        events.open("wb") as events_out,
        events_said.open("wb") as events_err,
    ):
        listening = shell.start(
            "events", "-f", "-n", "2000", "--output", "json", out=events_out, err=events_err
        )
        running = shell.start("tail", "-f", "-c", "0", TASK, out=out, err=err)
        wait_until(lambda: newest() > 0)
        os.kill(shell.running_pid(), signal.SIGKILL)
        goes_on()
        shell.cluster.kill_member(shell.leader())
        goes_on()
        node = str(shell.task()["node"])
        shell.cluster.kill_member(node.replace("node", "agent"))
        goes_on()
        for member in ("supervisor-0", "supervisor-1"):
            shell.cluster.stop_member(member, signal.SIGKILL)
        wait_until(lambda: "waiting for the cluster" in said.read_text())
        for member in ("supervisor-0", "supervisor-1"):
            shell.cluster.start_member(member)
        goes_on()
        # The node is frozen: it must not hold what comes from the next one.
        frozen = str(shell.task()["node"]).replace("node", "agent")
        shell.cluster.kill_member(frozen, signal.SIGSTOP)
        try:
            before = newest()
            wait_until(lambda: str(shell.task()["node"]).replace("node", "agent") != frozen)
            wait_until(lambda: newest() > before + 20)
        finally:
            shell.cluster.kill_member(frozen, signal.SIGCONT)
        everything = shell.json("events", "-n", "2000")["events"]
        assert isinstance(everything, list)
        serials = [event["serial"] for event in everything]
        wait_until(
            lambda: [json.loads(line)["serial"] for line in events.read_text().splitlines()] >= serials
        )
        for process in (running, listening):
            process.send_signal(signal.SIGINT)
            assert process.wait(30) == 130
    told = [json.loads(line)["serial"] for line in events.read_text().splitlines()]
    assert told[: len(serials)] == serials
    # Once for each outage, and not each time that it asks; on a busy machine there are more of them.
    assert events_said.read_text().count("waiting for the cluster") in range(1, 6)
    text = shown.read_text().splitlines()
    numbers = [int(line.split()[1]) for line in text[1:-1] if line.startswith("line ")]
    assert "Traceback" not in said.read_text()
    assert said.read_text().count("waiting for the cluster") in range(1, 6)
    # A kill between the print and the file repeats a number; what a frozen node had not sent is told of.
    gaps = [(a, b) for a, b in pairwise(numbers) if b not in (a, a + 1)]
    lacks = ("is not shown", "cannot be read", "is not stored")
    notes = [line for line in said.read_text().splitlines() if any(each in line for each in lacks)]
    assert len(gaps) <= len(notes), (gaps, notes)


def test_tail_shows_every_attempt_with_its_name_and_no_secret(shell: PrintingShell) -> None:
    for _ in range(2):
        shell.killed()
    done = shell("tail", TASK)
    heads = [line for line in done.stderr.splitlines() if line.startswith("==> ")]
    assert len(heads) >= 3
    assert "no-one-may-see" not in done.stdout + done.stderr + shell("events").stdout


def test_a_job_is_described_in_the_words_of_its_file(shell: PrintingShell, tmp_path: Path) -> None:
    text = shell("describe", "count").stdout
    assert "restart:\n  max: 50 " in text
    assert "no-one-may-see-this" not in text
    described = shell.json("describe", "count")["fields"]
    assert isinstance(described, list)
    found = {".".join(each["path"]): (each["value"], each["source"]) for each in described}
    assert found["env.SECRET"] == ('"{redacted}"', "job file")
    assert found["checkpoint.keep"] == ("5", "default")
    assert found["checkpoint.uri"][1] == "checkpoint_base"
    (tmp_path / "again.yaml").write_text(text)
    refused = shell("validate", "--offline", str(tmp_path / "again.yaml"), code=2).stderr
    assert "env.SECRET: unknown placeholder {redacted}" in refused
    assert "no job 'none'; jobs here: count" in shell("describe", "none", code=3).stderr


def test_what_no_node_can_give_is_refused_with_its_line(shell: PrintingShell, tmp_path: Path) -> None:
    (tmp_path / "big.yaml").write_text(
        "name: big\nstrategy: plain\ncommand: [./x]\nroles:\n  small: {count: 1}\n"
        "  large:\n    count: 1\n    resources: {gpus: 64}\n"
    )
    for verb in ("validate", "submit", "run"):
        error = shell(verb, str(tmp_path / "big.yaml"), code=2).stderr
        assert f"{tmp_path}/big.yaml:8: roles.large.resources: job big can never run here" in error
        assert "big/large:0 needs 64 GPUs, 0 free (64 short)" in error
    assert (
        "--name 'a/b' is not a valid name"
        in shell("submit", str(tmp_path / "big.yaml"), "--name", "a/b", code=2).stderr
    )


def test_start_after_stop(shell: PrintingShell) -> None:
    shell("stop", "--save", "count")
    shell("wait", "count", "--for", "stopped", "--timeout", "60")
    assert "does not run at the moment" in shell("signal", TASK, "TERM", code=3).stderr
    assert "has no checkpoint of step 7" in shell("restart", "count", "--from", "7", code=3).stderr
    assert "is not a checkpoint" in shell("pin", "count", "x", code=2).stderr
    assert "has no checkpoint of g1-s5" in shell("pin", "count", "g1-s5", code=3).stderr
    shell("start", "count")
    shell("wait", "count", "--for", "running", "--timeout", "60")


def test_a_deleted_job_is_gone_and_its_name_is_free(shell: PrintingShell) -> None:
    pid, before = shell.running_pid(), shell.job()
    here = shell.cluster.layout.state / "tasks" / str(before["uuid"])
    assert here.exists()
    assert "`delete --yes count`" in shell("delete", "count", code=2).stderr
    shell("delete", "--yes", "--timeout", "60", "count")
    assert not Path(f"/proc/{pid}").exists()
    assert "no job 'count'" in shell("status", "count", code=3).stderr
    assert "no job 'count'" in shell("delete", "--yes", "count", code=3).stderr
    wait_until(lambda: not here.exists(), "its directories go")
    shell("submit", str(shell.cluster.layout.state.parent / "job.yaml"))
    shell("wait", "count", "--for", "running", "--timeout", "60")
    assert int(str(shell.job()["generation"])) > int(str(before["generation"]))


def test_the_status_of_the_cluster_shows_no_token_in_a_pipe(shell: PrintingShell) -> None:
    page = str(shell.json("local", "status")["page"])
    token = page.partition("token=")[2]
    assert token
    shown = shell("local", "status").stdout
    assert token not in shown
    assert f"(its token is in {shell.cluster.layout.http_token})" in shown


def test_a_shell_completes_the_names_of_the_cluster(shell: PrintingShell, tmp_path: Path) -> None:
    program = f"supervisorctl --state {shell.cluster.layout.state}"
    assert completed(tmp_path, f"{program} status c") == ["count"]
    assert completed(tmp_path, f"{program} tail count/") == [TASK]
    assert completed(tmp_path, f"{program} restart count/w") == [TASK]
    assert completed(tmp_path, f"{program} logs count --role w") == ["worker"]
    assert completed(tmp_path, f"{program} logs count --task w") == ["worker:0"]
    wait_until(
        lambda: completed(tmp_path, f"{program} cordon node-") == ["node-0", "node-1"], "both are here"
    )
