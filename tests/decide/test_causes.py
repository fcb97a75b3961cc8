"""The cause of an attempt's end."""

from __future__ import annotations

from dataclasses import replace
from signal import Signals

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.inside.child import waiting
from recovery.policy.causes import Judged, classify, describe
from supervisor.contract.desired import JobPhase
from supervisor.contract.incident import Cause, Raised
from supervisor.contract.observed import Exit, ExitReason
from tests.support.builders import ended, job_spec, report
from tests.support.records import records

SPEC = job_spec({"chief": 1, "ps": 1, "worker": 2, "dispatcher": 1, "evaluator": 1})
WORKING = (JobPhase.WAITING, JobPhase.RUNNING)
OVER = tuple(phase for phase in JobPhase if phase not in WORKING)


def cause_of(
    member: str, end: Exit | None, phase: JobPhase = JobPhase.RUNNING, *, trained: bool = False
) -> Cause | None:
    judged = classify(report(member, end), SPEC, phase, trained=trained)
    return judged.cause if judged is not None else None


@pytest.mark.parametrize(
    ("end", "cause"),
    [
        (ended(code=1), Cause.PROGRAM_EXIT),
        (ended(code=137), Cause.PROGRAM_EXIT),
        (ended(signal=Signals.SIGKILL), Cause.KILLED),
        (ended(signal=Signals.SIGTERM), Cause.KILLED),
        (ended(signal=Signals.SIGINT), Cause.KILLED),
        (ended(signal=Signals.SIGSEGV), Cause.PROGRAM_SIGNAL),
        (ended(signal=Signals.SIGABRT), Cause.PROGRAM_SIGNAL),
        (ended(signal=Signals.SIGBUS), Cause.PROGRAM_SIGNAL),
        (ended(signal=Signals.SIGFPE), Cause.PROGRAM_SIGNAL),
        (ended(signal=Signals.SIGILL), Cause.PROGRAM_SIGNAL),
        (ended(signal=40), Cause.PROGRAM_SIGNAL),
        (ended(reason=ExitReason.DEADLINE, signal=9), Cause.DEADLINE),
        (ended(reason=ExitReason.START_FAILED), Cause.START_FAILED),
        (ended(reason=ExitReason.LAUNCHER_LOST, signal=9), Cause.LAUNCHER_LOST),
        (ended(reason=ExitReason.KILLED, signal=9), None),
        (ended(reason=ExitReason.KILLED, code=1), None),
        (None, None),
    ],
)
@pytest.mark.parametrize("member", ["chief.0", "ps.0", "worker.1", "evaluator.0"])
def test_cause_by_exit(member: str, end: Exit | None, cause: Cause | None) -> None:
    assert cause_of(member, end) is cause


@pytest.mark.parametrize(
    ("member", "cause"),
    [
        ("chief.0", None),
        ("worker.0", None),
        ("ps.0", Cause.EXITED_EARLY),
        ("dispatcher.0", Cause.EXITED_EARLY),
        ("evaluator.0", None),
    ],
)
def test_exit_code_0_is_a_failure_of_a_server_only(member: str, cause: Cause | None) -> None:
    assert cause_of(member, ended(code=0)) is cause


def test_exit_code_0_of_servers_among_themselves_is_their_end() -> None:
    alone = job_spec({"ps": 2})
    assert classify(report("ps.0", ended(code=0)), alone, JobPhase.RUNNING) is None


@pytest.mark.parametrize("phase", OVER)
@given(end=records(Exit))
def test_nothing_fails_once_training_is_over_or_stopped(phase: JobPhase, end: Exit) -> None:
    assert cause_of("ps.0", end, phase) is None
    assert cause_of("worker.0", end, phase) is None


@given(end=records(Exit), member=st.sampled_from([task.member for task in SPEC.tasks()]))
def test_what_we_killed_is_no_failure_and_only_the_program_is_blamed_for_its_exit(
    end: Exit, member: str
) -> None:
    cause = cause_of(member, end)
    if end.reason is ExitReason.KILLED:
        assert cause is None
    if cause is not None and cause.program_fault:
        assert end.reason in (ExitReason.EXIT, ExitReason.START_FAILED)


@pytest.mark.parametrize(
    ("end", "sentence"),
    [
        (None, "digits/worker:0 on n1 runs with pid 4711"),
        (ended(code=3), "digits/worker:0 on n1 exited with code 3"),
        (ended(signal=11), "digits/worker:0 on n1 was ended by SIGSEGV (signal 11)"),
        (ended(signal=40), "digits/worker:0 on n1 was ended by signal 40"),
        (ended(reason=ExitReason.KILLED, signal=9), "digits/worker:0 on n1 was stopped by its agent"),
        (
            ended(reason=ExitReason.START_FAILED, detail="no such file: trian.py"),
            "digits/worker:0 on n1 could not be started: no such file: trian.py",
        ),
        (
            ended(reason=ExitReason.START_FAILED, detail="cannot go on: its job takes 2 GiB"),
            "digits/worker:0 on n1 was ended: cannot go on: its job takes 2 GiB",
        ),
        (
            ended(reason=ExitReason.DEADLINE, signal=9),
            "digits/worker:0 on n1 was killed at its deadline, which its agent could not extend",
        ),
        (
            ended(reason=ExitReason.LAUNCHER_LOST),
            "digits/worker:0 on n1 was killed, as its launcher was gone or silent",
        ),
    ],
)
def test_the_sentence_for_people(end: Exit | None, sentence: str) -> None:
    assert describe(report("worker.0", end)) == sentence


@given(end=records(Exit))
def test_every_exit_has_a_sentence(end: Exit) -> None:
    assert describe(report("ps.0", end)).startswith("digits/ps:0 on n1 ")


def test_a_program_whose_peers_never_listened_was_never_ready() -> None:
    never = ended(code=waiting.NEVER_READY, reason=ExitReason.START_FAILED)
    assert cause_of("worker.0", never) is Cause.NEVER_READY
    assert cause_of("worker.0", ended(code=waiting.NEVER_READY)) is Cause.PROGRAM_EXIT


IMPORT_ERROR = """Traceback (most recent call last):
  File "train.py", line 1, in <module>
    import tensorflo
ModuleNotFoundError: No module named 'tensorflo'
"""


def test_a_program_whose_directory_was_never_seen_is_not_to_blame() -> None:
    unseen = ended(code=waiting.NO_DIRECTORY, reason=ExitReason.START_FAILED)
    assert cause_of("worker.0", unseen) is Cause.STORE_LOST
    assert not Cause.STORE_LOST.program_fault


@pytest.mark.parametrize(
    ("end", "cause"),
    [
        (ended(code=1), Cause.STORE_LOST),
        (ended(signal=Signals.SIGABRT), Cause.STORE_LOST),
        (ended(signal=Signals.SIGKILL), Cause.KILLED),
        (replace(ended(code=1), oom=True), Cause.OOM),
        (replace(ended(code=1), tail=IMPORT_ERROR), Cause.USER_ERROR),
        (ended(reason=ExitReason.DEADLINE, signal=9), Cause.DEADLINE),
        (ended(code=0), None),
    ],
)
def test_an_error_shortly_after_the_store_failed_is_the_stores(end: Exit, cause: Cause | None) -> None:
    assert cause_of("chief.0", replace(end, store_lost=True)) is cause


def test_the_line_that_tells_of_the_cause_goes_with_it() -> None:
    judged = classify(report("worker.0", replace(ended(code=1), tail=IMPORT_ERROR)), SPEC, JobPhase.RUNNING)
    assert judged == Judged(Cause.USER_ERROR, "ModuleNotFoundError: No module named 'tensorflo'")


def test_an_error_of_the_user_shows_before_the_first_step_or_is_none() -> None:
    end = replace(ended(code=1), tail=IMPORT_ERROR)
    assert cause_of("worker.0", end) is Cause.USER_ERROR
    assert cause_of("worker.0", end, trained=True) is Cause.PROGRAM_EXIT


def test_a_command_that_cannot_be_run() -> None:
    end = ended(reason=ExitReason.START_FAILED, code=127, detail="cannot run 'trian': No such file")
    assert cause_of("worker.0", end) is Cause.MISSING_PROGRAM
    assert cause_of("worker.0", end, trained=True) is Cause.START_FAILED


@pytest.mark.parametrize(
    ("end", "cause"),
    [
        (ended(signal=Signals.SIGKILL), Cause.OOM),
        (ended(code=137), Cause.OOM),
        (ended(code=0), None),
        (ended(reason=ExitReason.KILLED, signal=9), None),
        (ended(reason=ExitReason.DEADLINE, signal=9), Cause.DEADLINE),
    ],
)
def test_the_kernels_oom_killer(end: Exit, cause: Cause | None) -> None:
    """A helper process that it killed does not fail a program that ended well."""
    assert cause_of("worker.0", replace(end, oom=True)) is cause


def test_an_abort_is_what_its_fatal_line_says() -> None:
    fatal = "F0000 00:00:1.1   77 agent.cc:1] Terminating process: UNAVAILABLE: peer is gone\n"
    assert cause_of("worker.0", replace(ended(signal=Signals.SIGABRT), tail=fatal)) is Cause.PEER_LOST
    assert cause_of("worker.0", replace(ended(signal=Signals.SIGSEGV), tail=fatal)) is Cause.PROGRAM_SIGNAL
    assert cause_of("worker.0", replace(ended(signal=Signals.SIGKILL), tail=fatal)) is Cause.KILLED


def test_an_abort_of_a_program_whose_main_thread_raised_is_of_what_it_raised() -> None:
    handled = f"Traceback (most recent call last):\n{ERRORS}.UnavailableError: gone\n"
    end = replace(ended(signal=Signals.SIGABRT), tail=handled)
    assert cause_of("worker.0", end) is Cause.PROGRAM_SIGNAL, "it was handled, and something else aborted"
    noted = (Raised(f"{ERRORS}.UnavailableError", "gone"),)
    assert cause_of("worker.0", replace(end, raised=noted)) is Cause.PEER_LOST
    fatal = "F0000 00:00:1.1   77 a.cc:1] Check failed: x == y\n"
    judged = classify(report("worker.0", replace(end, tail=fatal)), SPEC, JobPhase.RUNNING)
    assert judged == Judged(Cause.PROGRAM_SIGNAL, "Check failed: x == y")


ERRORS = "tensorflow.python.framework.errors_impl"


SHARDS = """Traceback (most recent call last):
  File "train.py", line 94, in train
    manager.save(checkpoint_number=now_at)
tensorflow.python.framework.errors_impl.InvalidArgumentError: Graph execution error:

Detected at node MergeV2Checkpoints defined at (most recent call last):
<stack traces unavailable>
 allow_missing_files was set to false and /ckpt/u/g1/ckpt-50_temp/part-00000-of-00003 did not exist.NOT_FOUND
 [[{{node MergeV2Checkpoints}}]] [Op:__inference_tf_function_save_277]
"""


NO_PLACE = """Traceback (most recent call last):
  File "train.py", line 32, in <module>
tensorflow.python.framework.errors_impl.NotFoundError: Graph execution error:

Detected at node SaveV2 defined at (most recent call last):
<stack traces unavailable>
2 root error(s) found.
  (0) NOT_FOUND:   /ckpt/u/g1/backup/chief/ckpt-1_temp; No such file or directory
\t [[{{node SaveV2}}]]
Additional GRPC error information from remote target /job:ps/replica:0/task:0 while calling RecvTensor:
:UNKNOWN:Error received from peer  {grpc_status:5}
0 successful operations.
"""


@pytest.mark.parametrize("trained", [True, False])
@pytest.mark.parametrize(
    ("mode", "tail", "cause"),
    [
        ("staged", SHARDS, Cause.USER_ERROR),
        ("staged", NO_PLACE, Cause.USER_ERROR),
        ("mounted", NO_PLACE, Cause.PROGRAM_EXIT),
        ("staged", NO_PLACE.replace("/job:ps/", "/job:chief/"), Cause.PROGRAM_EXIT),
        ("mounted", SHARDS, Cause.PROGRAM_EXIT),
        ("staged", SHARDS.replace("_temp/part", "/part"), Cause.PROGRAM_EXIT),
    ],
)
def test_a_save_in_shards_that_are_on_several_nodes_is_an_error_of_the_user(
    mode: str, tail: str, cause: Cause, *, trained: bool
) -> None:
    spec = replace(SPEC, checkpoint=replace(SPEC.checkpoint, mode=mode))
    end = replace(ended(code=1), tail=tail)
    judged = classify(report("chief.0", end), spec, JobPhase.RUNNING, trained=trained)
    assert judged is not None
    assert judged.cause is cause
    assert ("mode: mounted" in judged.line) is (cause is Cause.USER_ERROR)


NOT_FOUND = "tensorflow.python.framework.errors_impl.NotFoundError"
NO_SERVER = f"""Traceback (most recent call last):
  File "train.py", line 4, in <module>
    tf.distribute.Server(spec, protocol=resolver.rpc_layer)
{NOT_FOUND}: No server factory registered for the given ServerDef: cluster {{
}}
protocol: "grpc+verbs"

The available server factories are: [ GRPC_SERVER ]
"""
NO_SESSION = (
    "Traceback (most recent call last):\n"
    f"{NOT_FOUND}: No session factory registered for the given session options: "
    '{target: "grpc+verbs://h:1" config: } Registered factories are {DIRECT_SESSION, GRPC_SESSION}.\n'
)


@pytest.mark.parametrize(
    ("protocol", "tail", "trained", "cause", "told"),
    [
        ("grpc+verbs", NO_SERVER, False, Cause.USER_ERROR, True),
        ("grpc+verbs", NO_SESSION, False, Cause.USER_ERROR, True),
        ("grpc+verbs", NO_SERVER, True, Cause.PROGRAM_EXIT, True),
        ("grpc", NO_SERVER, False, Cause.PROGRAM_EXIT, False),
        ("grpc+verbs", "NotFoundError: no such file\n", False, Cause.PROGRAM_EXIT, False),
    ],
)
def test_a_build_without_the_protocol_is_named(
    protocol: str, tail: str, cause: Cause, *, trained: bool, told: bool
) -> None:
    end = replace(ended(code=1), tail=tail)
    spec = replace(SPEC, protocol=protocol)
    judged = classify(report("chief.0", end), spec, JobPhase.RUNNING, trained=trained)
    assert judged is not None
    assert judged.cause is cause
    assert ("built without the job's protocol grpc+verbs" in judged.line) is told
