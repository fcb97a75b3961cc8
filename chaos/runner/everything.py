"""Runs all attacks on the product within a time: mutants, the simulator, failpoints, a sweep.

Each part gets its share of the time that is left when it begins: the later parts get the time that it does
not need. The sweep is the last, as it can always make use of more. A part that fails keeps none from running.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

from chaos.duration import shown

EVERYTHING = "everything.json"
OVER_S = 300.0
"""The time after its limit in which a part may finish the run that it has begun; times the patience."""
END_S = 60.0
SEEDS = 10_000
DIGITS_SHARE = 0.04
AT_ONCE = 4
"""There are hundreds of failpoints, and one strike after the other takes an hour."""
CUT = -1


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of each part. `for_s`: it begins no run after so long."""

    directory: Path
    seed: int
    for_s: float
    patience: float


@dataclass(frozen=True, slots=True)
class Part:
    """One of them; `share` is against those of the others."""

    name: str
    text: str
    share: float
    words: Callable[[Limits], Sequence[str]]


@dataclass(frozen=True, slots=True)
class Done:
    """The result of a part. `code`: its exit code; CUT if it had to be ended."""

    name: str
    code: int
    took_s: float
    limit_s: float

    @property
    def well(self) -> bool:
        """Whether it found nothing wrong."""
        return self.code == 0


@dataclass(slots=True)
class Sums:
    """`everything.json`."""

    seed: int
    for_s: float
    parts: list[Done] = field(default_factory=list)

    @property
    def exit_code(self) -> int:
        """1 when a part found something, or could not be brought to its end."""
        return 0 if self.parts and all(part.well for part in self.parts) else 1


def _mutants(limits: Limits) -> Sequence[str]:
    found = str(limits.directory / "mutants.json")
    return ("mutants", "--for", _s(limits), "--shuffle", str(limits.seed), "--json", found)


def _sim(limits: Limits) -> Sequence[str]:
    # The next seed has others, all of them.
    first, found = limits.seed * SEEDS, str(limits.directory / "sim.json")
    seeds = f"{first}..{first + SEEDS - 1}"
    return ("sim", "--dense", "--for", _s(limits), "--seeds", seeds, "--strike", "1", "--json", found)


def _failpoints(limits: Limits) -> Sequence[str]:
    words = ("--for", _s(limits), "--at-once", str(AT_ONCE))
    return ("failpoints", "strike", *words, *_common(limits, "failpoints"))


def _sweep(limits: Limits) -> Sequence[str]:
    return ("sweep", "--for", _s(limits), *_common(limits, "sweep"), "--digits", str(DIGITS_SHARE))


def _common(limits: Limits, name: str) -> Sequence[str]:
    runs = str(limits.directory / name)
    return ("--seed", str(limits.seed), "--patience", str(limits.patience), "--runs", runs)


def _s(limits: Limits) -> str:
    return f"{max(1.0, limits.for_s):.0f}s"


PARTS = (
    Part("mutants", "bugs planted on purpose, each of which somebody has to notice", 1.0, _mutants),
    Part("simulator", f"up to {SEEDS} seeds on a virtual clock; a kill at each effect", 2.0, _sim),
    Part("failpoints", "daemons killed between two of their effects", 2.5, _failpoints),
    Part("sweep", "every kind of fault on a real cluster, and two at once", 4.5, _sweep),
)


class Everything:
    """Carries it out. `program`: what the words of a part are given to."""

    def __init__(
        self,
        limits: Limits,
        say: Callable[[str], None],
        parts: Sequence[Part] = PARTS,
        program: Sequence[str] = (sys.executable, "-m", "chaos"),
        over_s: float = OVER_S,
    ) -> None:
        self._limits, self._say, self._parts, self._program = limits, say, parts, program
        self._over_s = over_s * limits.patience

    def perform(self) -> Sums:
        """All parts, one after the other."""
        limits = self._limits
        limits.directory.mkdir(parents=True, exist_ok=True)
        until_s = time.monotonic() + limits.for_s
        sums = Sums(limits.seed, limits.for_s)
        for number, part in enumerate(self._parts):
            left = sum(each.share for each in self._parts[number:])
            for_s = max(0.0, until_s - time.monotonic()) * part.share / left
            self._say(f"{number + 1} of {len(self._parts)}: {part.name}, {part.text}; {shown(for_s)}")
            sums.parts.append(self._one(part, for_s))
            (limits.directory / EVERYTHING).write_text(json.dumps(asdict(sums), indent=1) + "\n")
        return sums

    def _one(self, part: Part, for_s: float) -> Done:
        limits = Limits(self._limits.directory, self._limits.seed, for_s, self._limits.patience)
        began_s = time.monotonic()
        # A terminal's Ctrl-C would reach it before our signal, and the second one cut its own end short.
        process = subprocess.Popen([*self._program, *part.words(limits)], process_group=0)
        try:
            code = process.wait(for_s + self._over_s)
        except subprocess.TimeoutExpired:
            code = CUT
        finally:
            _end(process)
        done = Done(part.name, code, round(time.monotonic() - began_s, 1), round(for_s, 1))
        how = "well" if done.well else "it had to be ended" if code == CUT else f"exit code {code}"
        self._say(f"{part.name}: {how}, after {shown(done.took_s)}")
        return done


def _end(process: subprocess.Popen[bytes]) -> None:
    """It takes down what it has started, if it is given the time."""
    if process.poll() is not None:
        return
    process.send_signal(signal.SIGINT)
    try:
        with suppress(subprocess.TimeoutExpired):
            process.wait(END_S)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
