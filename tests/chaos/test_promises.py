"""Each promise has a checker that sees a forged history which breaks exactly this promise, and no other."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import pytest

from chaos.history.formats import (
    BORN,
    DELETE,
    GONE,
    KILLED,
    PUT,
    RUNS,
    STATE,
    STOPPED,
    Compared,
    EtcdLine,
    FaultRecord,
    Leak,
    Left,
    StepLine,
    StoreLine,
)
from chaos.history.history import History
from chaos.promises import CHECKS, PROMISES, check_history
from chaos.promises.ends import SAMPLE_MS
from tests.chaos.story import (
    CHIEF,
    CRC,
    D_MS,
    JOB,
    PS,
    UUID,
    WORKER,
    Story,
    begun,
    node_lost,
    over,
    ref,
    worker_killed,
)

AGAIN = f"{JOB}/worker:0@1.2"
WORKERS = f"incidents/{JOB}/g1-worker.0-a1"
Forge = Callable[[], History]


def edit(story: Story, key: str, nth: int = -1, **fields: object) -> float:
    """Change fields of the record that the nth write of a key made; returns when it was seen."""
    at = [index for index, line in enumerate(story.lines) if line.key == key and line.kind == PUT][nth]
    line = story.lines[at]
    story.lines[at] = replace(line, value=json.dumps(json.loads(line.value) | fields))
    return line.at_ms


def edit_all(story: Story, key: str, **fields: object) -> None:
    for nth in range(sum(line.key == key for line in story.lines)):
        edit(story, key, nth, **fields)


def write_with(story: Story, beside: str, puts: dict[str, dict[str, object]]) -> None:
    """Let the transaction that made a key have made others, too."""
    at = next(index for index, line in enumerate(story.lines) if line.key == beside)
    line = story.lines[at]
    story.lines[at:at] = [replace(line, key=key, value=json.dumps(body)) for key, body in puts.items()]
    logged = next(index for index, each in enumerate(story.log) if each.revision == line.revision)
    story.log[logged] = replace(story.log[logged], puts=(*story.log[logged].puts, *puts))


def drop(story: Story, name: str, *kinds: str) -> None:
    pid = story.pids[name]
    story.processes = [line for line in story.processes if line.pid != pid or line.kind not in kinds]


def flip_ms(story: Story, generation: int = 2) -> float:
    for line in story.lines:
        if line.key == f"switches/{JOB}" and json.loads(line.value)["generation"] == generation:
            return line.at_ms
    raise AssertionError("no such flip")


def log_of(story: Story, key: str, nth: int = -1) -> int:
    """Index of the transaction that made the nth write of a key."""
    return [index for index, each in enumerate(story.log) if key in (*each.puts, *each.deletes)][nth]


# One generation at a time.


def a_server_accepts_who_is_of_an_older_generation() -> History:
    story = node_lost()
    at_ms = flip_ms(story) + 300
    story.steps.append(StepLine(at_ms, "accepted", f"{JOB}/ps:0@2.1", 2, caller=WORKER, caller_generation=1))
    return story.history()


def what_is_over_goes_on_after_it_thaws() -> History:
    """On a node that is not lost, so that no other promise is about it."""
    story = node_lost()
    drop(story, CHIEF, GONE)
    held_ms, thawed_ms = flip_ms(story) - 50, flip_ms(story) + 300
    for ms, kind, state in ((held_ms, STATE, STOPPED), (thawed_ms, STATE, RUNS), (thawed_ms + 900, GONE, "")):
        story.now_ms = ms
        story.process(CHIEF, kind, state)
    story.now_ms = max(line.at_ms for line in story.lines)
    return story.history()


def what_is_over_is_never_killed() -> History:
    story = node_lost()
    drop(story, CHIEF, GONE)
    story.now_ms = flip_ms(story) + 7_000
    story.process(CHIEF, GONE)
    return story.history()


def a_killed_process_is_still_there() -> History:
    """SIGKILL was pending in time, and it hung in the kernel."""
    story = node_lost()
    drop(story, PS, GONE)
    story.now_ms += 5_000
    story.process(PS, GONE)
    return story.history()


# No write of a deposed.


def a_leaders_write_does_not_compare_its_token() -> History:
    story = worker_killed()
    at = log_of(story, f"switches/{JOB}", 1)
    story.log[at] = replace(story.log[at], compares=())
    return story.history()


def a_leaders_write_compares_that_there_is_none() -> History:
    story = worker_killed()
    at = log_of(story, f"switches/{JOB}", 1)
    story.log[at] = replace(story.log[at], compares=(Compared("leader", "create", "=", 0),))
    return story.history()


def an_agents_report_does_not_compare_its_incarnation() -> History:
    story = worker_killed()
    at = log_of(story, f"attempts/{JOB}/ps.0/00000001.000001", 0)
    story.log[at] = replace(story.log[at], compares=())
    return story.history()


def an_agent_that_was_succeeded_reports() -> History:
    """The log is right; the picture shows who it was."""
    story = worker_killed()
    edit(story, f"attempts/{JOB}/ps.0/00000001.000001", incarnation="a0")
    return story.history()


def a_lease_takes_what_is_not_a_sign_of_life() -> History:
    story = worker_killed()
    at = log_of(story, f"attempts/{JOB}/ps.0/00000001.000001")
    story.log[at] = replace(story.log[at], by_lease=True)
    return story.history()


def an_incarnation_goes_on_past_its_mark() -> History:
    story = node_lost()
    edit(story, "nodes/n1", succeeds=["a1"])
    return story.history()


# Lost nodes.


def a_task_of_a_lost_node_runs_on() -> History:
    story = node_lost()
    drop(story, WORKER, STATE)
    return story.history()


def a_task_of_a_lost_node_is_not_killed_as_it_thaws() -> History:
    """A frozen task may outlive D, but not go on: that breaks the promise of generations, too."""
    story = node_lost()
    drop(story, WORKER, KILLED, GONE)
    story.now_ms += 2_000
    story.process(WORKER, GONE)
    return story.history()


# Checkpoints.


def a_committed_checkpoint_loses_a_byte() -> History:
    story = worker_killed()
    line = story.store[-1]
    story.store.append(
        replace(line, after_ms=story.now_ms, at_ms=story.now_ms + 1, found="broken", why="a byte")
    )
    return story.history()


def a_committed_checkpoint_is_another() -> History:
    story = worker_killed()
    line = story.store[-1]
    story.store.append(replace(line, after_ms=story.now_ms, at_ms=story.now_ms + 1, manifest="00000000"))
    return story.history()


def nobody_has_looked_at_the_store() -> History:
    story = worker_killed()
    story.store = []
    return story.history()


def a_committed_checkpoint_was_never_stored() -> History:
    story = worker_killed()
    last = story.store[-1].path
    story.store = [line for line in story.store if line.path != last]
    return story.history()


def one_of_the_newest_two_is_collected() -> History:
    story = begun()
    key = f"commits/{JOB}/00000001.000000000010"
    body = json.loads(next(line.value for line in story.lines if line.key == key))
    story.write({key: body | {"state": "collecting"}})
    return over(story, nothing(story), (CHIEF, WORKER)).history()


def what_is_collected_comes_back() -> History:
    story = begun()
    story.commit(1, 40, None)
    key = f"commits/{JOB}/00000001.000000000010"
    body = json.loads(next(line.value for line in story.lines if line.key == key))
    story.write({key: body | {"state": "collecting"}})
    story.write({key: body})
    return over(story, nothing(story), (CHIEF, WORKER)).history()


def an_older_base_is_taken() -> History:
    story = node_lost()
    base = ref(1, 10)
    for nth in range(sum(line.key == f"switches/{JOB}" for line in story.lines)):
        at = [index for index, line in enumerate(story.lines) if line.key == f"switches/{JOB}"][nth]
        body = json.loads(story.lines[at].value)
        if body["base"] is not None:
            edit(story, f"switches/{JOB}", nth, base=base)
    story.steps = [
        replace(line, step=line.step - 20) if line.generation == 2 and line.kind != "accepted" else line
        for line in story.steps
    ]
    return story.history()


def an_older_step_is_restored() -> History:
    story = node_lost()
    story.steps = [replace(line, step=10) if line.kind == "restored" else line for line in story.steps]
    story.steps = [
        replace(line, step=-1) if line.kind == "restored" and line.generation == 1 else line
        for line in story.steps
    ]
    return story.history()


def other_weights_are_restored() -> History:
    story = node_lost()
    story.steps = [
        replace(line, chain=(1, 2)) if line.kind == "restored" and line.generation == 2 else line
        for line in story.steps
    ]
    return story.history()


def the_first_step_is_far_from_the_base() -> History:
    story = node_lost()
    story.steps = [
        replace(line, step=line.step + 400) if line.kind == "step" and line.generation == 2 else line
        for line in story.steps
    ]
    return story.history()


def a_commit_of_a_lower_generation_follows() -> History:
    story = node_lost()
    story.commit(1, 50, None)
    return story.history()


# What is left.


def a_process_is_left() -> History:
    history = worker_killed().history()
    history.left = (Left(history.ended_ms, "process", "77, L9#0", "n1"),)
    return history


def a_record_is_left() -> History:
    story = worker_killed()
    story.write({f"spares/n1/{JOB}": {}})
    return story.history()


def an_incident_is_left_open() -> History:
    story = worker_killed()
    edit_all(story, WORKERS, outcome="open")
    return story.history()


# A pause.

MARK = "lost/n1/a1"
LOST_TOO: dict[str, dict[str, object]] = {
    f"lost/{node}/a": {"node": node, "incarnation": "a"} for node in ("n3", "n4")
}


def a_job_moves_during_a_pause_of_the_cluster() -> History:
    story = node_lost()
    write_with(story, MARK, {"pause": {"in_force": True, "brake": True, "reason": "3 of 4 nodes are lost"}})
    return story.history()


def a_task_is_restarted_during_a_pause_of_its_job() -> History:
    story = worker_killed()
    edit(story, f"intents/{JOB}", 0, paused={"reason": "a look"})
    return story.history()


def a_job_moves_away_from_most_nodes() -> History:
    story = node_lost()
    write_with(story, MARK, LOST_TOO)
    return story.history()


@pytest.mark.parametrize("kept", ["a pause that is over", "marks before it", "one node fewer", "a cordon"])
def test_what_holds_nothing_is_no_pause(kept: str) -> None:
    story = node_lost()
    puts: dict[str, dict[str, object]] = {"pause": {"in_force": False, "passed": 0}, **LOST_TOO}
    if kept == "marks before it":
        puts["pause"]["passed"] = story.revision
    elif kept == "one node fewer":
        del puts["lost/n4/a"]
    elif kept == "a cordon":
        puts["cordons/n4"] = {"node": "n4", "reason": "new fans"}
    elif kept == "a pause that is over":
        del puts["lost/n3/a"], puts["lost/n4/a"]
    write_with(story, MARK, puts)
    assert check_history(story.history()) == ()


# Incidents.


def nothing(story: Story) -> FaultRecord:
    """A fault that nobody should notice."""
    return FaultRecord("nothing", "supervisor", "s1", story.now_ms, story.now_ms, story.now_ms)


def one_failure_makes_two_incidents() -> History:
    story = worker_killed()
    line = next(line for line in story.lines if line.key.startswith(f"incidents/{JOB}/"))
    body = json.loads(line.value) | {"id": "other", "attempt": 0, "outcome": "ended"}
    write_with(story, line.key, {f"incidents/{JOB}/other": body})
    return story.history()


def a_job_is_restarted_for_nothing() -> History:
    story = worker_killed()
    story.run = replace(story.run, faults=())
    return story.history()


def an_incident_is_opened_again() -> History:
    story = worker_killed()
    key = WORKERS
    body = json.loads([line.value for line in story.lines if line.key == key][-1])
    story.write({}, deletes=(key,))
    story.write({key: body})
    return story.history()


def a_closed_incident_is_rewritten() -> History:
    story = worker_killed()
    key = WORKERS
    body = json.loads([line.value for line in story.lines if line.key == key][-1])
    story.write({key: body | {"outcome": "superseded"}})
    return story.history()


def another_reason_is_given() -> History:
    story = worker_killed()
    edit_all(story, WORKERS, cause="start_failed")
    return story.history()


def another_task_is_blamed() -> History:
    story = worker_killed()
    edit_all(story, WORKERS, member="chief.0", task=f"{JOB}/chief:0")
    edit(story, WORKERS, outcome="ended")
    return story.history()


def more_is_restarted_than_is_due() -> History:
    story = worker_killed()
    edit_all(story, WORKERS, scope="all")
    edit(story, WORKERS, outcome="ended")
    return story.history()


def a_phase_is_too_long() -> History:
    story = worker_killed()
    edit(story, WORKERS, phases_ms={"detected": 2_000, "first_step": 100})
    return story.history()


def a_phase_of_a_lost_node_is_too_short() -> History:
    story = node_lost()
    edit(story, f"incidents/{JOB}/n1-a1", phases_ms={"detected": 800, "ready": 10, "first_step": 100})
    return story.history()


def a_task_that_came_late_is_told_as_the_first_step() -> History:
    """The others had gone on long before: the phases until then are not theirs."""
    return _late({"detected": 800, "ready": D_MS, "restored": 10_000, "first_step": 0})


def a_task_that_came_late_is_told_to_have_come_soon() -> History:
    return _late({"detected": 800, "ready": D_MS, "first_step": 60, "all_running": 100})


def _late(phases_ms: dict[str, int]) -> History:
    return late_worker(phases_ms).history()


def late_worker(phases_ms: dict[str, int]) -> Story:
    """The worker of generation 2 comes ten seconds after the chief's first step."""
    story = node_lost()
    late = f"{JOB}/worker:0@2.1"
    story.steps = [
        replace(line, at_ms=line.at_ms + 10_000) if (line.attempt, line.kind) == (late, "start") else line
        for line in story.steps
    ]
    edit(story, f"incidents/{JOB}/n1-a1", phases_ms=phases_ms)
    return story


def infrastructure_burns_the_budget() -> History:
    story = worker_killed()
    edit_ledgers(story, program=1, infrastructure=0)
    return story.history()


def one_failure_is_charged_twice() -> History:
    story = worker_killed()
    edit_ledgers(story, program=0, infrastructure=2)
    return story.history()


def a_new_leader_forgets_what_was_spent() -> History:
    story = worker_killed()
    edit(story, f"switches/{JOB}", ledger={"program": 0, "infrastructure": 0, "streak": 0})
    return story.history()


def edit_ledgers(story: Story, *, program: int, infrastructure: int) -> None:
    """From the first charge on."""
    for nth in range(sum(line.key == f"switches/{JOB}" for line in story.lines)):
        at = [index for index, line in enumerate(story.lines) if line.key == f"switches/{JOB}"][nth]
        if json.loads(story.lines[at].value)["ledger"]["infrastructure"]:
            ledger = {"program": program, "infrastructure": infrastructure, "streak": program}
            edit(story, f"switches/{JOB}", nth, ledger=ledger)


# The rest.


def two_tasks_have_a_gpu() -> History:
    story = worker_killed()
    for member in ("ps.0", "worker.0"):
        edit(story, f"attempts/{JOB}/{member}/00000001.000001", 0, gpus=["GPU-1", f"GPU-{member}"])
    return story.history()


def a_frozen_task_still_has_its_gpu() -> History:
    story = worker_killed()
    drop(story, WORKER, GONE)
    story.process(WORKER, STATE, STOPPED)
    for number in (1, 2):
        edit(story, f"attempts/{JOB}/worker.0/00000001.{number:06d}", 0, gpus=["GPU-1"])
    story.steps = [line for line in story.steps if line.attempt != WORKER or line.kind != "step"]
    return story.history()


def a_task_does_not_come_back() -> History:
    story = worker_killed()
    drop(story, AGAIN, GONE)
    story.steps = [line for line in story.steps if line.attempt != AGAIN or line.at_ms < story.run.healed_ms]
    now_ms, story.now_ms = story.now_ms, story.run.healed_ms
    story.process(AGAIN, GONE)
    story.now_ms = now_ms
    return story.history()


def a_task_hangs() -> History:
    story = worker_killed()
    story.steps = [
        line for line in story.steps if line.attempt != AGAIN or line.at_ms < story.run.healed_ms - 3_000
    ]
    edit(story, WORKERS, phases_ms={"detected": 10})
    return story.history()


def somebody_runs_whom_nobody_wants() -> History:
    story = worker_killed()
    drop(story, WORKER, GONE)
    story.process(WORKER, GONE)
    return story.history()


def a_change_was_not_seen() -> History:
    """The key was written again later, and its version shows that one is missing."""
    story = worker_killed()
    story.lines = [
        replace(line, version=line.version + 1) if line.key == WORKERS else line for line in story.lines
    ]
    return story.history()


def a_change_was_seen_twice() -> History:
    story = worker_killed()
    line = next(line for line in story.lines if line.key == "nodes/n2")
    story.lines.insert(story.lines.index(line), line)
    return story.history()


def the_log_of_etcd_has_another_change() -> History:
    story = worker_killed()
    at = log_of(story, f"switches/{JOB}", 2)
    story.log[at] = replace(story.log[at], puts=(*story.log[at].puts, f"switches/{JOB}2"))
    return story.history()


def a_client_missed_an_event() -> History:
    story = worker_killed()
    del story.watched[2]
    return story.history()


def a_client_was_told_twice() -> History:
    story = worker_killed()
    story.watched.insert(2, story.watched[2])
    return story.history()


def a_client_was_not_sent_the_last_event() -> History:
    story = worker_killed()
    del story.watched[-1]
    return story.history()


def a_client_was_sent_nothing() -> History:
    story = worker_killed()
    story.watched = []
    return story.history()


def a_secret_is_in_a_log() -> History:
    history = worker_killed().history()
    history.leaks = (Leak("job environment", "agent.log"),)
    return history


FORGED: dict[str, tuple[Forge, ...]] = {
    "one generation at a time": (
        a_server_accepts_who_is_of_an_older_generation,
        what_is_over_goes_on_after_it_thaws,
    ),
    "no write of a deposed": (
        a_leaders_write_does_not_compare_its_token,
        a_leaders_write_compares_that_there_is_none,
        an_agents_report_does_not_compare_its_incarnation,
        an_agent_that_was_succeeded_reports,
        a_lease_takes_what_is_not_a_sign_of_life,
        an_incarnation_goes_on_past_its_mark,
    ),
    "lost nodes are dead before D": (a_task_of_a_lost_node_runs_on,),
    "a pause holds": (
        a_job_moves_during_a_pause_of_the_cluster,
        a_task_is_restarted_during_a_pause_of_its_job,
        a_job_moves_away_from_most_nodes,
    ),
    "committed stays restorable": (
        a_committed_checkpoint_loses_a_byte,
        a_committed_checkpoint_is_another,
        a_committed_checkpoint_was_never_stored,
        nobody_has_looked_at_the_store,
        one_of_the_newest_two_is_collected,
        what_is_collected_comes_back,
    ),
    "the base is the newest good": (an_older_base_is_taken,),
    "the first step is the base's": (
        an_older_step_is_restored,
        other_weights_are_restored,
        the_first_step_is_far_from_the_base,
        a_commit_of_a_lower_generation_follows,
    ),
    "nothing is left": (a_process_is_left, a_record_is_left, an_incident_is_left_open),
    "one failure, one incident": (
        one_failure_makes_two_incidents,
        a_job_is_restarted_for_nothing,
        an_incident_is_opened_again,
        a_closed_incident_is_rewritten,
    ),
    "budgets are kept": (
        infrastructure_burns_the_budget,
        one_failure_is_charged_twice,
        a_new_leader_forgets_what_was_spent,
    ),
    "a GPU is in one task": (two_tasks_have_a_gpu,),
    "converges": (a_task_does_not_come_back, a_task_hangs, somebody_runs_whom_nobody_wants),
    "histories are whole": (
        a_change_was_not_seen,
        a_change_was_seen_twice,
        the_log_of_etcd_has_another_change,
        a_client_missed_an_event,
        a_client_was_told_twice,
        a_client_was_not_sent_the_last_event,
        a_client_was_sent_nothing,
    ),
    "the reason is the fault": (
        another_reason_is_given,
        another_task_is_blamed,
        more_is_restarted_than_is_due,
    ),
    "no secret is told": (a_secret_is_in_a_log,),
    "phases are the stopwatch's": (
        a_phase_is_too_long,
        a_phase_of_a_lost_node_is_too_short,
        a_task_that_came_late_is_told_as_the_first_step,
        a_task_that_came_late_is_told_to_have_come_soon,
    ),
}
CASES = [(promise, forge) for promise, forges in FORGED.items() for forge in forges]


@pytest.mark.parametrize(("promise", "forge"), CASES, ids=[forge.__name__ for _, forge in CASES])
def test_a_forged_history_breaks_its_promise_and_no_other(promise: str, forge: Forge) -> None:
    found = check_history(forge())
    assert {violation.promise for violation in found} == {promise}, found


@pytest.mark.parametrize("story", [worker_killed, node_lost], ids=lambda story: story.__name__)
def test_a_good_history_breaks_none(story: Callable[[], Story]) -> None:
    assert check_history(story().history()) == ()


def test_a_task_that_came_late_is_told_beside_the_first_step() -> None:
    phases = {"detected": 800, "ready": D_MS, "first_step": 60, "all_running": 10_000}
    assert check_history(late_worker(phases).history()) == ()


@pytest.mark.parametrize(("incidents", "broken"), [("any", set()), ("one", {"phases are the stopwatch's"})])
def test_a_node_may_be_lost_by_the_heal_of_a_fault_that_need_not_lose_it(
    incidents: str, broken: set[str]
) -> None:
    story = node_lost()
    (done,) = story.run.faults
    early = replace(done, begin_ms=done.begin_ms - 15_000, in_force_ms=done.in_force_ms - 15_000)
    expected = replace(done.expects, incidents=incidents)
    story.run = replace(story.run, faults=(replace(early, expects=expected),))
    assert {violation.promise for violation in check_history(story.history())} == broken


@pytest.mark.parametrize(("marked", "broken"), [(True, set()), (False, {"the reason is the fault"})])
def test_a_node_that_comes_back_before_its_tasks_are_replaced_has_them_in_place(
    marked: bool, broken: set[str]
) -> None:
    story = worker_killed(marked=marked)
    (done,) = story.run.faults
    expected = replace(done.expects, causes=("node_lost",), scopes=("all",))
    story.run = replace(story.run, faults=(replace(done, family="agent", target="n1", expects=expected),))
    edit_all(story, WORKERS, cause="deadline")
    assert {violation.promise for violation in check_history(story.history())} == broken


@pytest.mark.parametrize(("cause", "broken"), [("killed", 1), ("peer_lost", 0)])
def test_who_lost_a_peer_tells_of_that_at_its_own_node(cause: str, broken: int) -> None:
    story = worker_killed()
    (done,) = story.run.faults
    expected = replace(done.expects, causes=("killed", "peer_lost"), scopes=())
    story.run = replace(story.run, faults=(replace(done, family="node", target="n9", expects=expected),))
    edit_all(story, WORKERS, cause=cause)
    assert len(check_history(story.history(), ("the reason is the fault",))) == broken


@pytest.mark.parametrize(
    ("by", "known", "broken"), [("leader", False, 0), ("leader", True, 1), ("n0", False, 1)]
)
def test_a_leader_records_again_what_is_of_savers_of_long_ago(by: str, known: bool, broken: int) -> None:
    """Of a job of which nothing is recorded any more; nobody else may, and not of one that is known."""
    story = worker_killed()
    if known:
        story.write({"heads/other": {"serial": 1, "newest": None}})
    saved = {"job_uuid": UUID, "ref": ref(1, 10), "parent": None, "path": "other/g00001", "size": 1}
    record = {**saved, "manifest_crc32c": CRC, "node": "n0", "incarnation": "gone", "state": "committed"}
    story.write({"commits/other/00000001.000000000010": {**record, "pinned": False}}, by=by)
    assert len(check_history(story.history(), ("no write of a deposed",))) == broken


@pytest.mark.parametrize(("hides", "broken"), [(True, set()), (False, {"phases are the stopwatch's"})])
def test_a_step_that_could_not_be_told_of_is_told_at_the_heal(hides: bool, broken: set[str]) -> None:
    """A full disk takes no output."""
    story = worker_killed()
    (done,) = story.run.faults
    heal_ms = done.begin_ms + 2_500
    expected = replace(done.expects, hides_steps=hides)
    story.run = replace(story.run, faults=(replace(done, heal_ms=heal_ms, expects=expected),))
    edit(story, WORKERS, phases_ms={"detected": 10, "first_step": 2_600})
    assert {violation.promise for violation in check_history(story.history())} == broken


def test_a_stop_that_is_seen_late_was_asked_for_when_the_job_was_well() -> None:
    """On a busy machine the look before it may be older than the heal."""
    story = worker_killed()
    at = max(index for index, line in enumerate(story.lines) if line.key == f"intents/{JOB}")
    story.lines[at] = replace(story.lines[at], after_ms=story.run.healed_ms - 100)
    assert check_history(story.history()) == ()


def test_a_job_that_is_stopped_as_soon_as_it_is_well_was_well() -> None:
    """Between two looks of the checker, and for less time than lies between them."""
    story = worker_killed()
    (born_ms,) = (
        line.at_ms for line in story.processes if line.pid == story.pids[AGAIN] and line.kind == BORN
    )
    well_ms = born_ms + SAMPLE_MS / 2
    story.run = replace(story.run, healed_ms=well_ms - SAMPLE_MS * 0.6, converged_ms=well_ms)
    at = max(index for index, line in enumerate(story.lines) if line.key == f"intents/{JOB}")
    story.lines[at] = replace(story.lines[at], after_ms=well_ms)
    assert check_history(story.history(), ("converges",)) == ()
    # And its end may have been seen so late that the last look at it alive was before that.
    for index, line in enumerate(story.processes):
        if line.pid == story.pids[AGAIN] and line.kind == GONE:
            story.processes[index] = replace(line, after_ms=well_ms - 9)
    assert check_history(story.history(), ("converges",)) == ()


def test_a_task_that_is_seen_after_the_stop_was_there_before() -> None:
    """On a busy machine the look at processes comes late; the kernel tells when they began."""
    story = worker_killed()
    stopped = max(index for index, line in enumerate(story.lines) if line.key == f"intents/{JOB}")
    seen_ms = story.lines[stopped].at_ms + SAMPLE_MS
    for index, line in enumerate(story.processes):
        if line.pid == story.pids[AGAIN] and line.kind == BORN:
            story.processes[index] = replace(line, at_ms=seen_ms)
    assert check_history(story.history(), ("converges",)) == ()


ZOMBIES = {"one generation at a time", "converges"}
SEVERAL: tuple[tuple[Forge, set[str]], ...] = (
    (what_is_over_is_never_killed, ZOMBIES),
    (a_killed_process_is_still_there, ZOMBIES),
    (a_task_of_a_lost_node_is_not_killed_as_it_thaws, ZOMBIES | {"lost nodes are dead before D"}),
    (a_frozen_task_still_has_its_gpu, {"a GPU is in one task", "converges"}),
)


@pytest.mark.parametrize(("forge", "promises"), SEVERAL, ids=[forge.__name__ for forge, _ in SEVERAL])
def test_what_breaks_several_promises_is_told_of_each(forge: Forge, promises: set[str]) -> None:
    assert {violation.promise for violation in check_history(forge())} == promises


def test_every_promise_is_forged_and_has_a_sentence() -> None:
    assert CHECKS.keys() == FORGED.keys() == PROMISES.keys()
    assert all(PROMISES.values())


def test_what_faults_have_spoilt_on_purpose_is_excused() -> None:
    story = worker_killed()
    line = story.store[-1]
    fault = replace(story.run.faults[0], damages=(line.path,))
    story.run = replace(story.run, faults=(fault,))
    story.store.append(
        replace(line, after_ms=story.now_ms, at_ms=story.now_ms + 1, found="broken", why="a byte")
    )
    assert check_history(story.history()) == ()


def test_what_is_older_than_the_recording_has_no_times_to_be_held_against() -> None:
    """A recording that begins late knows of what was before only that it is there."""
    story = node_lost()
    story.lines = [replace(line, after_ms=-1.0) for line in story.lines]
    late = [replace(line, kind=PUT) for line in story.lines if line.kind != DELETE]
    assert late
    timed = ("lost nodes are dead before D", "one generation at a time", "phases are the stopwatch's")
    assert check_history(story.history(), timed) == ()


def test_the_lines_of_a_story_are_of_one_history() -> None:
    """The builder itself: each write is of one revision, and the log has the same."""
    story: Story = node_lost()
    assert {line.revision for line in story.lines} == {each.revision for each in story.log}
    assert all(isinstance(line, EtcdLine) for line in story.lines)
    assert all(isinstance(line, StoreLine) for line in story.store)
    assert story.pids.keys() >= {CHIEF, PS, WORKER}
