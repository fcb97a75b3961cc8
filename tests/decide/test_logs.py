"""Causes in the end of a program's output. The files in `tails/` were written by the real programs."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recovery.policy.logs import (
    MAX_LINE,
    MAX_TEXT,
    STATUS_CODES,
    bounded,
    error_of_the_code,
    full_disk,
    has_shards_apart,
    last_words,
    raised,
    with_beginning,
)
from supervisor.contract.incident import OMITTED, Cause, Raised

TAILS = sorted((Path(__file__).parent / "tails").glob("*.txt"))
ERRORS = "tensorflow.python.framework.errors_impl"
NAMES = (
    f"{ERRORS}.UnavailableError: gone",
    f"{ERRORS}.DataLossError: flipped",
    "ModuleNotFoundError: No module named 'x'",
    "MemoryError",
    "OSError: [Errno 98] Address already in use",
    "UNAVAILABLE: failed to connect",
    "FATAL Flags parsing error: x",
    "train.py: error: unrecognized arguments: --x",
    "tf-supervisor: cannot run 'x'",
    "Traceback (most recent call last):",
    "F0000 00:00:1.1  7 a.cc:1] UNAVAILABLE: x",
)
TEXT = st.text(st.characters(blacklist_categories=("Cs", "Cc")), max_size=60)


def cause_of(tail: str) -> Cause | None:
    found = last_words(tail)
    return found.cause if found is not None else None


def traceback(line: str, before: str = "", after: str = "") -> str:
    return (
        f'{before}Traceback (most recent call last):\n  File "t.py", line 3, in f\n    g()\n{line}\n{after}'
    )


@pytest.mark.parametrize(
    ("line", "path"),
    [
        ("OSError: [Errno 28] No space left on device: '/data/x.tmp'", "/data/x.tmp"),
        (
            f"{ERRORS}.ResourceExhaustedError: /ckpt/m.data-0; No space left on device [Op:SaveV2]",
            "/ckpt/m.data-0",
        ),
        ("OSError: [Errno 28] No space left on device", ""),
        ("OSError: [Errno 2] No such file or directory: '/data/x'", ""),
    ],
)
def test_the_file_for_which_its_disk_had_no_room(line: str, path: str) -> None:
    assert full_disk(line) == path


def test_every_class_has_a_real_tail() -> None:
    told = {cause_of(path.read_text()) for path in TAILS}
    assert told >= {
        Cause.PEER_LOST,
        Cause.DATA_LOSS,
        Cause.OUT_OF_RANGE,
        Cause.RESOURCE_EXHAUSTED,
        Cause.NAN_LOSS,
        Cause.PORT_CLASH,
        Cause.USER_ERROR,
        Cause.MISSING_PROGRAM,
    }


@pytest.mark.parametrize("path", TAILS, ids=[path.stem for path in TAILS])
def test_a_real_tail(path: Path) -> None:
    found = last_words(path.read_text())
    assert found is not None
    assert path.stem.startswith(found.cause.value)
    assert found.line
    assert set(found.line.split()[:-1]) <= set(path.read_text().split())


FORGOTTEN_CLIENT = (
    "{{function_node __wrapped__IteratorGetNext}} Failed to get tasks: Unknown iteration client id 3000. The "
    "dispatcher is not configured to be fault tolerant, so this could be caused by a dispatcher restart. [Op"
)
FORGOTTEN_DATASET = (
    "{{function_node __wrapped__Make}} Failed to get or create iteration for job with id 5000: Dataset "
    "id 1000 not found [Op:MakeIterator] name: "
)


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        (f"{ERRORS}.AbortedError: Session 12 is not found.", Cause.PEER_LOST),
        (f"{ERRORS}.InvalidArgumentError: Unable to find a context_id matching 7", Cause.PEER_LOST),
        (f"{ERRORS}.NotFoundError: {FORGOTTEN_CLIENT}", Cause.PEER_LOST),
        (f"{ERRORS}.NotFoundError: {FORGOTTEN_DATASET}", Cause.PEER_LOST),
        (f"{ERRORS}.NotFoundError: /data/x.tfrecord; No such file or directory", Cause.PROGRAM_EXIT),
        (f"{ERRORS}.InvalidArgumentError: loss is bad : Tensor had NaN values", Cause.NAN_LOSS),
        (f"{ERRORS}.InvalidArgumentError: shapes do not match", Cause.PROGRAM_EXIT),
        (f"{ERRORS}.DataLossError: corrupted record at 1024", Cause.PROGRAM_EXIT),
        (f"{ERRORS}.NotFoundError: Key w not found in checkpoint", Cause.PROGRAM_EXIT),
        ("mine.UnavailableError: not TensorFlow's", Cause.PROGRAM_EXIT),
        ("ImportError: cannot import name 'x' from 'y'", Cause.USER_ERROR),
        ("ImportError: libcuda.so.1: cannot open shared object file", Cause.PROGRAM_EXIT),
        ("mine.ImportError: by another name", Cause.PROGRAM_EXIT),
        ("numpy._core._exceptions._ArrayMemoryError: Unable to allocate 1 TiB", Cause.RESOURCE_EXHAUSTED),
        ("OSError: [Errno 28] No space left on device", Cause.PROGRAM_EXIT),
        ("KeyboardInterrupt", Cause.PROGRAM_EXIT),
    ],
)
def test_the_exception_that_ended_it(line: str, cause: Cause) -> None:
    assert cause_of(traceback(line)) is cause


def test_the_last_traceback_decides() -> None:
    handled = traceback(f"{ERRORS}.UnavailableError: gone")
    assert cause_of(traceback("ValueError: wrong", before=f"{handled}\nstep 7\n")) is Cause.PROGRAM_EXIT
    chained = f"{traceback('KeyError: 1')}\nDuring handling of the above exception, another occurred:\n\n"
    assert cause_of(traceback(f"{ERRORS}.DataLossError: x", before=chained)) is Cause.DATA_LOSS


def test_lines_of_other_threads_between_a_traceback_and_its_end_are_passed_over() -> None:
    noise = "2026-01-01 10:00:00.1: E tensorflow/core/a.cc:7] UNAVAILABLE: x\nstep 12 loss 0.5\n"
    tail = traceback(f"{noise}{ERRORS}.OutOfRangeError: End of sequence")
    assert cause_of(tail) is Cause.OUT_OF_RANGE


def test_a_long_error_whose_heading_is_cut_off() -> None:
    tail = (
        f"ut, options)\n    ^^^^\n{ERRORS}.UnavailableError: Graph execution error:\n\nDetected at node 'x'\n"
    )
    assert cause_of(tail) is Cause.PEER_LOST


@pytest.mark.parametrize(("code", "cause"), STATUS_CODES.items())
def test_a_fatal_line_of_cpp(code: str, cause: Cause) -> None:
    assert (
        cause_of(f"I0000 00:00:1.1  7 a.cc:1] ok\nF0000 00:00:1.2  7 b.cc:9] Failed: {code}: x\n  @ 0x1")
        is cause
    )
    assert cause_of(f"2026-01-01 10:00:00.5: F tensorflow/b.cc:9] Check failed: s.ok() {code}: x") is cause
    assert cause_of(f"{code}: x\n") is cause


def test_an_error_line_of_cpp_is_no_end() -> None:
    assert cause_of("E0000 00:00:1.2  7 b.cc:9] UNAVAILABLE: retrying\nstep 4\n") is None


@pytest.mark.parametrize("tail", ["", "\n\n", "step 7\n", "usage: train.py [-h]\n", "Error: something\n"])
def test_what_says_nothing(tail: str) -> None:
    assert last_words(tail) is None


@given(before=st.lists(TEXT, max_size=4), name=st.sampled_from(NAMES), prefix=TEXT, after=TEXT)
def test_a_name_that_is_quoted_in_a_line_is_no_evidence(
    before: list[str], name: str, prefix: str, after: str
) -> None:
    """The rest of the line may be anything: `ERROR:root:...`, a JSON log, a user's sentence."""
    lines = [f"log {line}" for line in before]
    tail = "\n".join([*lines, f"log {prefix}{name} {after}", f"log {after}"])
    assert last_words(tail) is None


@given(quoted=st.lists(st.sampled_from(NAMES), max_size=3), noise=TEXT)
def test_quotes_before_the_end_do_not_change_what_ended_it(quoted: list[str], noise: str) -> None:
    before = "".join(f"INFO:train:{noise} {name}\n" for name in quoted)
    assert cause_of(traceback(f"{ERRORS}.DataLossError: x", before=before)) is Cause.DATA_LOSS
    assert cause_of(traceback("ValueError: x", before=before)) is Cause.PROGRAM_EXIT


@given(tail=st.text(max_size=400))
def test_any_output_can_be_read(tail: str) -> None:
    found = last_words(tail)
    assert found is None or len(found.line) <= MAX_LINE


DEEP = """\
Traceback (most recent call last):
  File "/nodes/{node}/code/ab12/train.py", line 40, in <module>
    main()
  File "/nodes/{node}/code/ab12/train.py", line 33, in main
    model = build(units)
            ^^^^^^^^^^^^
  File "/nodes/{node}/code/ab12/lib/build.py", line 7, in build
    raise ValueError(units)
  File "/nodes/{node}/code/ab12/lib/check.py", line 2, in check
    assert units
ValueError: <Units at 0x{node}> at 12:0{node}
"""


def test_the_same_line_that_raises_the_same_is_the_same_error() -> None:
    first, second = (
        error_of_the_code(DEEP.replace("{node}", "1")),
        error_of_the_code(DEEP.replace("{node}", "2")),
    )
    assert (
        first
        == second
        == Raised("ValueError", "", ("train.py:33 in main", "build.py:7 in build", "check.py:2 in check"))
    )
    assert error_of_the_code(DEEP.replace("line 2", "line 3")) != first
    assert error_of_the_code(DEEP.replace("ValueError", "TypeError")) != first


@pytest.mark.parametrize(
    "last",
    [
        "tensorflow.python.framework.errors_impl.UnavailableError: gone",
        "tensorflow.python.framework.errors_impl.InvalidArgumentError: gone",
        "OSError: gone",
        "FileNotFoundError: gone",
        "ConnectionRefusedError: gone",
        "RuntimeError: gone",
        "mine.ValueError: gone",
        "ModuleNotFoundError: No module named 'x'",
        "KeyboardInterrupt",
    ],
)
def test_what_may_be_about_files_peers_or_the_machine_is_no_error_of_the_code(last: str) -> None:
    assert error_of_the_code(DEEP.replace("ValueError: <Units at 0x{node}> at 12:0{node}", last)) is None


def test_an_error_of_the_code_that_others_led_to_is_theirs() -> None:
    peer = DEEP.replace("ValueError:", "tensorflow.python.framework.errors_impl.UnavailableError:")
    key = DEEP.replace("ValueError:", "KeyError:")
    for between in (
        "\nDuring handling of the above exception, another exception occurred:\n\n",
        "\nThe above exception was the direct cause of the following exception:\n\n",
    ):
        assert error_of_the_code(peer + between + DEEP) is None
        assert error_of_the_code(peer.partition("\n")[2] + between + DEEP) is None, (
            "the tail has cut the first heading"
        )
        assert error_of_the_code(key + between + DEEP) == error_of_the_code(DEEP)


@pytest.mark.parametrize("tail", ["", "ValueError: x", "Traceback (most recent call last):\nValueError: x"])
def test_without_a_traceback_nothing_can_be_the_same(tail: str) -> None:
    assert error_of_the_code(tail) is None


@given(st.text(max_size=300))
def test_any_output_is_read_without_an_error(tail: str) -> None:
    assert error_of_the_code(tail) is None or "Traceback" in tail


ASIDE = {
    "another thread": "Exception in thread Thread-1 (watch):\n",
    "a child": "Process SpawnPoolWorker-3:\n",
    "a destructor": "Exception ignored in: <function Session.__del__ at 0x7f>\n",
    "at exit": "Exception ignored in atexit callback: <function close at 0x7f>\n",
    "a handler of logs": "--- Logging error ---\n",
    "a task": "Task exception was never retrieved\nfuture: <Task finished name='Task-1'>\n",
}


@pytest.mark.parametrize("heading", ASIDE.values(), ids=ASIDE)
@pytest.mark.parametrize(
    ("line", "cause"),
    [
        (f"{ERRORS}.UnavailableError: failed to connect", Cause.PEER_LOST),
        ("ModuleNotFoundError: No module named 'x'", Cause.USER_ERROR),
        ("ValueError: wrong", Cause.PROGRAM_EXIT),
    ],
)
def test_what_another_thread_prints_later_does_not_decide(heading: str, line: str, cause: Cause) -> None:
    other = heading + traceback("RuntimeError: Attempted to use a closed Session.")
    tail = traceback(line) + other
    found = last_words(tail)
    assert found is not None
    assert (found.cause, found.line) == (cause, line)
    error = error_of_the_code(tail)
    assert error == (Raised("ValueError", "", ("t.py:3 in f",)) if line.startswith("ValueError") else None)
    alone = last_words(other)
    assert alone is not None
    assert alone.line == "RuntimeError: Attempted to use a closed Session.", "where nothing else is known"
    assert error_of_the_code(other + traceback("ValueError: wrong")) is None, "it may have led to this one"


def test_what_was_noted_decides_whatever_was_printed() -> None:
    noted = (Raised(f"{ERRORS}.UnavailableError", "failed to connect"),)
    for tail in (
        traceback("RuntimeError: closed"),
        "",
        "F0000 00:00:1.2  7 b.cc:9] ABORTED: x\n",
        "a\nb: error: x",
    ):
        found = last_words(tail, noted)
        assert found is not None
        assert (found.cause, found.line) == (Cause.PEER_LOST, f"{ERRORS}.UnavailableError: failed to connect")


def test_an_exception_of_a_lost_peer_is_of_that_loss() -> None:
    lost, closed = Raised(f"{ERRORS}.UnavailableError", "gone"), Raised("RuntimeError", "closed")
    assert last_words("", (closed, lost)) == last_words("", (lost,))
    assert last_words("", (Raised(f"{ERRORS}.DataLossError", "x"), lost)) != last_words("", (lost,))
    chain = "\nDuring handling of the above exception, another exception occurred:\n\n"
    before = f"{traceback(f'{ERRORS}.UnavailableError: gone')}{chain}"
    assert last_words(traceback("RuntimeError: closed", before=before)) == last_words("", (lost,))
    apart = traceback("RuntimeError: closed", before=traceback(f"{ERRORS}.UnavailableError: gone"))
    assert cause_of(apart) is Cause.PROGRAM_EXIT, "a loss that was handled"


def test_a_program_that_ends_itself_says_why_in_its_output() -> None:
    exits, lost = Raised("SystemExit"), Raised(f"{ERRORS}.UnavailableError", "gone")
    assert last_words("done\n", (exits,)) is None
    found = last_words(
        "usage: t.py [-h]\nt.py: error: no such flag", (exits, Raised("argparse.ArgumentError"))
    )
    assert found is not None
    assert found.cause is Cause.USER_ERROR
    assert last_words("done\n", (exits, lost)) == last_words("", (lost,))
    found = last_words("run prepare.py first\n", (Raised("SystemExit", "run prepare.py first"),))
    assert found is not None
    assert (found.cause, found.line) == (Cause.PROGRAM_EXIT, "run prepare.py first")


LISTED = (
    "Graph execution error:\n\nDetected at node S defined at (most recent call last):\n  File S\n"
    "\t [[{{node S}}]]\nAdditional GRPC error information from remote target /job:ps:\n"
    ":UNKNOWN:Error received from peer  {grpc_status:5}\n"
    "  (1) NOT_FOUND:  /c/ckpt-1_temp; No such file or directory\n0 successful operations."
)
GRAPH = (
    "Graph execution error:\n\nDetected at node a/b defined at (most recent call last):\n"
    "<stack traces unavailable>\nReceived a label value of 12\n"
)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            "From /job:worker/replica:0/task:0:\nKey: label.  Types differ.\n\t [[{{node P}}]]",
            "From /job:worker/replica:0/task:0: Key: label.  Types differ.",
        ),
        (
            "Cannot convert:\n   [0. ],\n   [0. ],\nof type (PerReplica).",
            "Cannot convert: of type (PerReplica).",
        ),
        (
            GRAPH,
            "Graph execution error: Received a label value of 12",
        ),
        (
            "2 root error(s) found.\n  (0) INTERNAL: From /job:ps/replica:0/task:0:\nno memory\n",
            "2 root error(s) found. (0) INTERNAL: From /job:ps/replica:0/task:0: no memory",
        ),
        (
            LISTED,
            "Graph execution error: (1) NOT_FOUND:  /c/ckpt-1_temp; No such file or directory",
        ),
        (
            "{{function_node __wrapped__Fill_device_/job:a/task:0/device:CPU:0}} OOM [Op:Fill] name: ",
            "OOM [Op:Fill] name:",
        ),
        ("shapes differ:\n  3\n  4", "shapes differ: 3"),
        ("wrong\nand more", "wrong"),
        ("", ""),
    ],
)
def test_a_reason_goes_on_to_what_is_wrong(text: str, line: str) -> None:
    name = f"{ERRORS}.InternalError"
    found = last_words("", (Raised(name, text),))
    assert found is not None
    assert found.line == (f"{name}: {line}" if line else name)
    if text:
        assert last_words(traceback(f"{name}: {text}")) == found


def test_a_status_alone_goes_on_too() -> None:
    found = last_words("UNAVAILABLE: From /job:ps/replica:0/task:0:\nrecvmsg: Connection reset by peer\n")
    assert found is None, "the last line is no status"
    found = last_words("=====================\nUNAVAILABLE: From /job:ps/replica:0/task:0:\nreset by peer\nx")
    assert found is not None
    assert found.line == "UNAVAILABLE: From /job:ps/replica:0/task:0: reset by peer"


LONG = traceback("ValueError: cannot convert:\n" + "   [0.  ],\n" * 4000 + "of type (PerReplica)")


def test_a_long_message_has_its_beginning_and_its_end() -> None:
    (error,) = raised(LONG[-60_000:])
    assert (error.name, error.frames) == ("ValueError", ("t.py:3 in f",))
    assert error.text.startswith("cannot convert:")
    assert error.text.endswith("of type (PerReplica)")
    assert len(error.text) <= MAX_TEXT + 1
    tail = with_beginning(LONG[-4096:], (error,))
    assert len(tail.encode()) <= 4096
    assert tail.splitlines()[:3] == [
        "Traceback (most recent call last):",
        '  File "t.py", line 3, in f',
        "ValueError: cannot convert:",
    ]
    assert OMITTED in tail.splitlines()
    assert tail.endswith("of type (PerReplica)\n")
    assert error_of_the_code(tail, (error,)) == Raised("ValueError", "", ("t.py:3 in f",))
    whole = traceback("ValueError: x")
    assert with_beginning(whole, raised(whole)) == whole
    assert with_beginning("bye", (Raised("SystemExit", "bye", ("t.py:3 in f",)),)) == "bye"


@pytest.mark.parametrize("between", ["2026-01-01 10:00:00.1: I a.cc:7] ok\n", "step 700 loss 0.5\n"])
def test_an_exception_long_before_the_end_did_not_end_the_program(between: str) -> None:
    handled = traceback(f"{ERRORS}.UnavailableError: gone") + between + "still here\n" * 2000
    assert raised(handled) == ()
    assert raised(handled[:2000]) != ()


def test_a_traceback_that_a_message_quotes_is_not_the_one_that_ended_it() -> None:
    """As of a `tf.py_function`."""
    quoted = 'bad\nTraceback (most recent call last):\n\n  File "s.py", line 270, in g\n\nKeyError: 1\n'
    (error,) = raised(traceback(f"{ERRORS}.InvalidArgumentError: {quoted}"))
    assert error.name == f"{ERRORS}.InvalidArgumentError"


def test_an_abort_is_not_of_an_exception_that_was_handled() -> None:
    tail = traceback(f"{ERRORS}.UnavailableError: gone")
    assert last_words(tail, aborted=True) is None
    assert last_words(tail) is not None
    thrown = (
        "terminate called after throwing an instance of 'std::runtime_error'\n  what():  no device\nbye\n"
    )
    found = last_words(thrown, aborted=True)
    assert found is not None
    assert found.line == "std::runtime_error: no device"


HOSTILE = (
    "allow_missing_files was set to false and " + "_temp" * 12_000,
    "allow_missing_files was set to false and a_temp/part-00000-of-" * 1000,
    "Traceback (most recent call last):\n  x\n" * 1500,
    'Traceback (most recent call last):\n  File "a", line 1, in f\nValueError: x\n' * 900,
    'Traceback (most recent call last):\n  File "' + '/"' * 30_000,
    '  File "' + '", line 1' * 6000,
    "tensorflow" + ".a" * 30_000,
    "tensorflow." + "Error" * 12_000 + ": x",
    "During handling of the above exception, another exception occurred:\n" * 800,
    "python" * 10_000,
    "a" * 60_000 + " error: ",
    "step " * 12_000,
    ("F0000 " + "1:" * 40 + "\n") * 700,
    "ValueError:" * 5_000,
)


@pytest.mark.parametrize("text", HOSTILE, ids=[text[:24] for text in HOSTILE])
def test_any_output_is_judged_in_time_that_grows_with_it(text: str) -> None:
    """60 KB take some milliseconds; time that grows with the square of that takes seconds."""

    def took_s(text: str) -> float:
        began_s = time.process_time()
        for look in (last_words, raised, error_of_the_code, has_shards_apart):
            look(text)
        return time.process_time() - began_s

    assert min(took_s(text) for _ in range(3)) < 0.5


def test_what_is_kept_of_exceptions_is_bounded() -> None:
    kept = bounded(Raised("a.B", "x" * 100_000) for _ in range(100))
    assert sum(len(each.text) for each in kept) < 8192
    text = f'Traceback (most recent call last):\n  File "{"f" * 9999}", line 1, in g\n{"A" * 9999}: x\n'
    ((error,), own) = raised(text), error_of_the_code(text)
    assert max(map(len, (error.name, *error.frames))) <= MAX_LINE
    assert own is None
