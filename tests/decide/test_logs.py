"""Causes in the end of a program's output. The files in `tails/` were written by the real programs."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recovery.policy.logs import MAX_LINE, STATUS_CODES, Raised, full_disk, last_words, raised
from supervisor.contract.incident import Cause

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
    assert found.line in path.read_text()


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        (f"{ERRORS}.AbortedError: Session 12 is not found.", Cause.PEER_LOST),
        (f"{ERRORS}.InvalidArgumentError: Unable to find a context_id matching 7", Cause.PEER_LOST),
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
    first, second = raised(DEEP.replace("{node}", "1")), raised(DEEP.replace("{node}", "2"))
    assert (
        first
        == second
        == Raised("ValueError", ("train.py:33 in main", "build.py:7 in build", "check.py:2 in check"))
    )
    assert raised(DEEP.replace("line 2", "line 3")) != first
    assert raised(DEEP.replace("ValueError", "TypeError")) != first


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
    assert raised(DEEP.replace("ValueError: <Units at 0x{node}> at 12:0{node}", last)) is None


def test_an_error_of_the_code_that_others_led_to_is_theirs() -> None:
    peer = DEEP.replace("ValueError:", "tensorflow.python.framework.errors_impl.UnavailableError:")
    key = DEEP.replace("ValueError:", "KeyError:")
    for between in (
        "\nDuring handling of the above exception, another exception occurred:\n\n",
        "\nThe above exception was the direct cause of the following exception:\n\n",
    ):
        assert raised(peer + between + DEEP) is None
        assert raised(peer.partition("\n")[2] + between + DEEP) is None, "the tail has cut the first heading"
        assert raised(key + between + DEEP) == raised(DEEP)


@pytest.mark.parametrize("tail", ["", "ValueError: x", "Traceback (most recent call last):\nValueError: x"])
def test_without_a_traceback_nothing_can_be_the_same(tail: str) -> None:
    assert raised(tail) is None


@given(st.text(max_size=300))
def test_any_output_is_read_without_an_error(tail: str) -> None:
    assert raised(tail) is None or "Traceback" in tail
