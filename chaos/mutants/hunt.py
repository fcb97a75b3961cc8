"""Puts each mutant into a copy of the tree of its own, tries it there, and reports which promise noticed.

A caught mutant is tried again, at the same seed or point, in a copy without the mistake: a broken promise
there means that the catch proves nothing.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from time import monotonic

from chaos.mutants import leftovers
from chaos.mutants.edit import COPIED, BadEdit, copy_tree
from chaos.mutants.mutant import Mutant
from chaos.mutants.probe import HASH_SEED, Try
from chaos.mutants.verdict import Fate, Verdict

LIMIT_S = 1_800.0
"""The longest time for all tries of one mutant: a mistake may make a run endless."""


def hunt(
    mutants: Sequence[Mutant],
    jobs: int,
    tell: Callable[[str, int], None] = lambda _name, _tries: None,
    most: int | None = None,
    for_s: float = math.inf,
) -> Iterator[Verdict]:
    """Hunt them, `jobs` at a time, and yield each verdict as it falls.

    `tell` hears of every try; `most` is how many there are of a mutant at most, None for what it says.
    After `for_s` no more are begun.
    """
    began = monotonic()
    leftovers.sweep()
    with tempfile.TemporaryDirectory(prefix=leftovers.prefix_of(leftovers.TREES)) as root:
        sound = copy_tree(Path(root, "sound"))
        compiled = [sys.executable, "-m", "compileall", "-q", *COPIED]
        subprocess.run(compiled, cwd=sound, check=False, capture_output=True)
        pool = ThreadPoolExecutor(max_workers=jobs)
        try:
            futures = [pool.submit(hunt_one, each, Path(root), tell, most) for each in mutants]
            for future in as_completed(futures):
                if not future.cancelled():
                    yield future.result()
                if monotonic() - began > for_s:
                    for each in futures:
                        each.cancel()
        except BaseException:
            # Whoever interrupts it waits for nobody.
            pool.shutdown(wait=False, cancel_futures=True)
            _running.end()
            raise
        finally:
            pool.shutdown(cancel_futures=True)


class _Running:
    """Probes, of all threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._probes: set[subprocess.Popen[str]] = set()

    def add(self, probe: subprocess.Popen[str]) -> None:
        with self._lock:
            self._probes.add(probe)

    def discard(self, probe: subprocess.Popen[str]) -> None:
        with self._lock:
            self._probes.discard(probe)

    def end(self) -> None:
        """Kill all of them: whoever reads from one comes to its end."""
        with self._lock:
            for probe in self._probes:
                _end(probe)


_running = _Running()


def hunt_one(
    mutant: Mutant,
    root: Path,
    tell: Callable[[str, int], None] = lambda _name, _tries: None,
    most: int | None = None,
) -> Verdict:
    """Hunt one; `root/sound` is a copy of the tree, beside which others are made."""
    sound = root / "sound"
    with _copied(sound, root) as tree:
        try:
            for edit in mutant.edits:
                edit.make(tree)
        except BadEdit as error:
            return Verdict(mutant.name, Fate.UNPROVEN, text=str(error))
        limit = () if most is None else ("--most", str(most))
        with closing(_probe(tree, mutant.name, *limit)) as found:
            verdict = _tried(mutant, found, tell)
    if verdict.fate is not Fate.CAUGHT:
        return verdict
    again = list(_probe(sound, mutant.name, "--only", verdict.at))
    wrong = [text for each in again for text in (*each.violations, *filter(None, (each.error,)))]
    if wrong or not again:
        why = wrong[0] if wrong else "the try could not be repeated"
        return replace(verdict, fate=Fate.UNPROVEN, text=f"also without the mistake: {why}")
    return verdict


@contextmanager
def _copied(sound: Path, root: Path) -> Iterator[Path]:
    tree = Path(tempfile.mkdtemp(dir=root))
    try:
        # With its bytecode, and the times by which that knows its sources.
        yield shutil.copytree(sound, tree / "tree")
    finally:
        leftovers.kill(tree)
        shutil.rmtree(tree)


def _tried(mutant: Mutant, found: Iterator[Try], tell: Callable[[str, int], None]) -> Verdict:
    began = monotonic()
    others: list[str] = []
    tries = 0
    for tries, each in enumerate(found, 1):
        tell(mutant.name, tries)
        for violation in each.violations:
            checker = mutant.catches(violation)
            if checker:
                took_s = monotonic() - began
                seen = tuple(dict.fromkeys(others))
                return Verdict(mutant.name, Fate.CAUGHT, checker, each.at, tries, took_s, violation, seen)
            others.append(violation.partition("[")[2].partition("]")[0])
        if each.error:
            others.append(each.error.partition(":")[0])
        if not each.at:
            return Verdict(mutant.name, Fate.UNPROVEN, tries=tries, text=each.error)
    took_s, seen = monotonic() - began, tuple(dict.fromkeys(others))
    return Verdict(mutant.name, Fate.SURVIVED, tries=tries, took_s=took_s, others=seen)


def _probe(tree: Path, *arguments: str) -> Generator[Try]:
    """The tries of a probe in this tree; one without `at` at the end when it failed. Ends it when closed."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "COV_"))}
    env |= {"PYTHONPATH": str(tree), "PYTHONHASHSEED": HASH_SEED}
    parent = str(os.getpid())
    command = [sys.executable, "-m", "chaos.mutants.probe", "--parent", parent, *arguments]
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(
            command,
            cwd=tree,
            env=env,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            start_new_session=True,
        )
        _running.add(process)
        late = threading.Timer(LIMIT_S, _end, [process])
        late.start()
        assert process.stdout is not None
        try:
            for line in process.stdout:
                fields = json.loads(line)
                yield Try(fields["at"], tuple(fields["violations"]), fields["error"])
            if process.wait() != 0:
                errors.seek(0)
                last = errors.read().strip().splitlines()[-1:]
                yield Try("", error=f"the probe ended with {process.returncode}: {''.join(last)}")
        finally:
            late.cancel()
            _end(process)
            process.wait()
            process.stdout.close()
            _running.discard(process)


def _end(process: subprocess.Popen[str]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
