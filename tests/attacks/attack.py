"""An attack as data: what a job or a client tries, how it must end, and where it cannot be held back.

The attacks are in `corpus/`. `site.py` is the cluster that they are made on. `run.py` makes one and
judges it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path


class Where(Enum):
    """The kind of node that runs the tasks; the value is the heading of a column."""

    USER = "process, agent not root"
    ROOT = "process, agent root"
    DOCKER = "container"


@dataclass(frozen=True, slots=True)
class Refused:
    """`supervisorctl` refuses the job with a text that matches, and starts none."""

    says: str


@dataclass(frozen=True, slots=True)
class Failed:
    """The job fails, and its reason matches."""

    reason: str


@dataclass(frozen=True, slots=True)
class Harmless:
    """The program comes to its end, and nothing that it tried has worked."""


@dataclass(frozen=True, slots=True)
class Stopped:
    """It runs until its owner stops it; by then it has printed a line that matches."""

    prints: str


End = Refused | Failed | Harmless | Stopped

SAME_USER = "same user: not separated"
NOT_SEPARATED: Mapping[Where, str] = {Where.USER: SAME_USER}
"""For an attack on what is the agent's, or another job's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attack:
    """One attack.

    Attributes:
        name: also the job's, which user mallory submits.
        tries: for the table: what it is after.
        ends: how it must end; ends_in: where it ends otherwise.
        program: Python for the one task. `PRELUDE` stands before it.
        job: put into the job file, instead of what is there.
        text: the whole job file, where the other two cannot say it.
        calls: requests of a client with mallory's certificate, instead of a job (`calls.py`).
        files: puts more into the directory that is shipped.
        not_in: where it is not made, with the reason.
        starts_another: while it runs, another job must start and succeed.
    """

    name: str
    tries: str
    ends: End = Harmless()
    program: str = ""
    job: Mapping[str, object] = field(default_factory=dict)
    text: str = ""
    calls: str = ""
    files: Callable[[Path], None] | None = None
    ends_in: Mapping[Where, End] = field(default_factory=dict)
    not_in: Mapping[Where, str] = field(default_factory=dict)
    starts_another: bool = False

    def end(self, where: Where) -> End:
        """The end that the attack must have there."""
        return self.ends_in.get(where, self.ends)


PRELUDE = """\
import json, os, signal, socket, stat, subprocess, sys, threading, time
SITE = json.load(open("site.json"))
def say(*words):
    print(*(str(word)[:300] for word in words), flush=True)
def tried(what, do):
    "What must not work."
    try:
        found = do()
    except Exception as error:
        say("denied:", what, type(error).__name__, error)
    else:
        say("GOT IN:", what, repr(found))
def done(what, do):
    "What may work, and must have no effect on others."
    try:
        say("done:", what, repr(do()))
    except Exception as error:
        say("denied:", what, type(error).__name__, error)
def put(path, text):
    "Write at once: an error is told here."
    file = os.open(path, os.O_WRONLY)
    try:
        return os.write(file, text.encode())
    finally:
        os.close(file)
def each(what, name, do):
    "Try it on each process of that name."
    for pid in SITE["pids"][name]:
        tried(what + " of the " + name, lambda: do(pid))
"""
