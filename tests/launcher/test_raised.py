"""A warm program notes the exception that ends its main thread, which its output may hide behind others."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from agent.inside.child.raised import FILE, MOST_TEXT, note
from agent.inside.launcher.mask import masked
from agent.logs.raised import parse, read_raised
from recovery.policy.logs import SYSTEM_EXIT, bounded, error_of_the_code, raised
from tests.launcher.harness import Agent, Rig, launcher

HELPER = """
import threading
gone = threading.Event()
def watch():
    gone.wait(); raise RuntimeError("Attempted to use a closed Session.")
threading.Thread(target=watch).start()
class UnavailableError(Exception): pass
UnavailableError.__module__ = "tensorflow.python.framework.errors_impl"
try:
    raise UnavailableError("failed to connect")
finally:
    threading.Timer(0.2, gone.set).start()
"""
SAME = {
    "plain": "def f(): raise ValueError('wrong')\nf()",
    "chained": "try: {}['k']\nexcept KeyError as e: raise ValueError('v') from e",
    "handling": "try: {}['k']\nexcept KeyError: raise ValueError('v')",
    "hidden": "try: {}['k']\nexcept KeyError: raise ValueError('v') from None",
    "own": "class Wrong(ValueError): pass\nraise Wrong('x')",
    "long": "raise ValueError('cannot convert:\\n' + '  [0. ],\\n' * 400 + 'of this type')",
    "deep": "def f(n):\n  if n: f(n - 1)\n  raise KeyError(n)\nf(300)",
    "pool": (
        "import concurrent.futures as c\ndef f(): raise ValueError(1)\n"
        "with c.ProcessPoolExecutor(1) as p: p.submit(f).result()"
    ),
}


@pytest.fixture(scope="module")
def both() -> Iterator[tuple[Rig, Agent]]:
    with launcher() as rig, Agent(rig.socket_path) as agent:
        yield rig, agent


def run(both: tuple[Rig, Agent], source: str) -> Path:
    """Run a program warm; returns the directory of its attempt."""
    rig, agent = both
    rig.write("prog.py", source)
    assert rig.run(agent, "python", "prog.py").code
    return rig.root / "logs" / str(len(list((rig.root / "logs").iterdir())))


def test_the_note_is_of_the_main_thread_whatever_is_printed_last(both: tuple[Rig, Agent]) -> None:
    directory = run(both, HELPER)
    output = (directory / "output.log").read_text()
    assert output.rstrip().endswith("RuntimeError: Attempted to use a closed Session.")
    (found,) = read_raised(directory, output)
    assert (found.name, found.text) == (
        "tensorflow.python.framework.errors_impl.UnavailableError",
        "failed to connect",
    )


@pytest.mark.parametrize("source", SAME.values(), ids=SAME)
def test_a_cold_start_that_repeats_an_error_is_seen_to(both: tuple[Rig, Agent], source: str) -> None:
    """The second run of an error is cold, and has no note: its output has to show the same."""
    directory = run(both, source)
    noted = read_raised(directory, "")
    cold = subprocess.run(
        [sys.executable, "prog.py"], cwd=both[0].root, capture_output=True, text=True, check=False
    )
    printed = raised(cold.stderr)
    assert (noted[0].name, noted[0].frames) == (printed[0].name, printed[0].frames)
    assert {each.name for each in noted} == {each.name for each in printed}
    assert bounded(noted)[0].text.split()[-3:] == printed[0].text.split()[-3:]
    shown = (directory / "output.log").read_text()
    assert error_of_the_code(shown, noted) == error_of_the_code(cold.stderr[-4096:], printed)


def test_what_a_program_that_ends_itself_notes(both: tuple[Rig, Agent]) -> None:
    exits = "import sys\ntry: {}['k']\nexcept KeyError: sys.exit('no data')"
    directory = run(both, exits)
    assert [(each.name, each.text) for each in read_raised(directory, "no data\n")] == [
        (SYSTEM_EXIT, "no data"),
        ("KeyError", "'k'"),
    ]


@pytest.mark.parametrize(
    "source",
    [
        "import os\nos._exit(3)",
        "import os\nif not os.fork(): raise ValueError('of a child')\nos.wait(); os._exit(3)",
    ],
)
def test_without_an_end_of_the_main_thread_there_is_no_note(both: tuple[Rig, Agent], source: str) -> None:
    assert not (run(both, source) / FILE).exists()


def test_a_note_holds_no_secret() -> None:
    """Also not the half of one that is left where a long message is cut."""
    secret = "correct horse battery staple"
    text = "x" * (MOST_TEXT - 10) + secret + "y" * 2 * MOST_TEXT
    with tempfile.TemporaryDirectory() as directory:
        note(ValueError(text), directory, partial(masked, values=[secret]))
        found = (Path(directory) / FILE).read_text()
    assert "***" in found
    assert "correct" not in found


def test_an_error_that_cannot_be_noted_ends_the_program_as_ever(both: tuple[Rig, Agent]) -> None:
    odd = "class Odd(Exception):\n  def __str__(self): raise TypeError\nraise Odd"
    directory = run(both, odd)
    assert not (directory / FILE).exists()
    assert "Odd: <exception str() failed>" in (directory / "output.log").read_text()


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{}",
        b"[1]",
        b'[{"name": "", "text": "", "frames": []}]',
        b'[{"name": "A\\n", "text": "", "frames": []}]',
        b'[{"name": "A", "text": 1, "frames": []}]',
        b'[{"name": "A", "text": "", "frames": [1]}]',
        b"[" * 100_000,
    ],
)
def test_what_no_launcher_would_note_is_left_out(raw: bytes) -> None:
    assert parse(raw) == ()
