"""One attack on a site: it is made, it must end as declared, and all else must be as before.

`python -m tests.attacks.run CONFIGURATION [NAME ...]` prints an outcome a line, as JSON; as root it runs as
another user where the agent is not to be root.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from chaos.cluster.program import REPOSITORY
from chaos.container_image import site_packages
from supervisor.contract import codec
from supervisor.contract.desired import JobPhase
from tests.attacks.attack import PRELUDE, Attack, Failed, Harmless, Refused, Stopped, Where
from tests.attacks.corpus import ATTACKS
from tests.attacks.picture import Picture
from tests.attacks.shell import AttackFailed
from tests.attacks.site import PYTHON, STRANGER, Site

OVER = "THE ATTACK IS OVER"
CLEAN_S = 60.0
_POLL_S = 0.1
_SAID = 300
_ANSWER_S = 15.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """The end of an attack, `refused`, `failed`, `harmless` or `stopped`, and its output.

    Without `problems` it ended as it must.
    """

    name: str
    where: str
    end: str
    said: str = ""
    seconds: float = 0.0
    problems: tuple[str, ...] = ()


def make(site: Site, attack: Attack) -> Outcome:
    """Make an attack and look at what it has done."""
    began = time.monotonic()
    before, step = site.picture(), site.step()
    end, said, problems = _made(site, attack)
    said = said.replace(str(site.cluster.root), "")
    if site.node.on:
        problems += _effects(site, before, step)
    seconds = round(time.monotonic() - began, 1)
    return Outcome(attack.name, site.where.name, end, said[:_SAID], seconds, tuple(problems))


def _effects(site: Site, before: Picture, step: int) -> list[str]:
    """The differences left once slow ends had time; whether the victim goes on; bugs."""
    deadline = time.monotonic() + CLEAN_S
    while True:
        now = site.picture()
        found = before.problems(now)
        if not found or time.monotonic() > deadline:
            break
        time.sleep(_POLL_S)
    try:
        site.wait(lambda: site.step() > step, "a step of the victim", wait_s=20)
    except AttackFailed as error:
        found.append(str(error))
    return found + site.told_of_bugs() + site.leaks()


def _made(site: Site, attack: Attack) -> tuple[str, str, list[str]]:
    """Make the attack; return its end, its output and the problems found."""
    try:
        if attack.calls:
            return _called(site, attack)
        program = f"{PRELUDE}{attack.program}\nsay({OVER!r})\n"
        home = site.directory(attack.name, program, attack.job, attack.text)
        if attack.files is not None:
            attack.files(home)
        code, said = site.mallory.ask(words=["submit", str(home / "job.yaml")])
        if isinstance(ends := attack.end(site.where), Refused):
            return _refused(ends, code, said.replace(f"{home}/", ""))
        if code:
            return "refused", said, [f"refused with {code}: {said}"]
        return _run(site, attack)
    except AttackFailed as error:
        # It is not to disturb the next one.
        site.mallory.ask(words=["stop", attack.name])
        return "unknown", "", [str(error)]


def _refused(ends: Refused, code: int, said: str) -> tuple[str, str, list[str]]:
    if code == 0:
        return "accepted", said, [f"not refused: exit code {code}: {said}"]
    wrong = [] if re.search(ends.says, said) else [f"refused with another reason than {ends.says!r}: {said}"]
    return "refused", said.strip(), wrong


def _called(site: Site, attack: Attack) -> tuple[str, str, list[str]]:
    code, said = site.mallory.ask(calls=attack.calls, site=site.known)
    if code:
        return "unknown", "", [f"the client failed: {said}"]
    problems = _got_in(said)
    if not re.search(r"^(denied|done):", said, re.MULTILINE):
        problems.append(f"nothing was tried: {said}")
    if isinstance(attack.end(site.where), Harmless):
        return "harmless", said, problems
    end, told, wrong = _run(site, attack)
    return end, told, problems + wrong


def _got_in(output: str) -> list[str]:
    return re.findall(r"^GOT IN:.*", output, re.MULTILINE)


_PHASES = {
    Harmless: JobPhase.SUCCEEDED,
    Failed: JobPhase.FAILED,
    Stopped: JobPhase.STOPPED,
}


def _run(site: Site, attack: Attack) -> tuple[str, str, list[str]]:
    """Wait for the end of its job; what does not end by itself is stopped."""
    name, ends = attack.name, attack.end(site.where)
    if isinstance(ends, Stopped):
        site.wait(partial(_has_printed, site, name, ends.prints), f"{ends.prints!r} of {name}")
        if attack.starts_another:
            site.start_another(f"after-{name}")
        site.mallory.ctl("stop", name)
    site.wait(lambda: _ended(site, name), f"the end of {name}")
    view = site.mallory.view(name)
    # Code that a client has shipped never starts.
    output = "" if attack.calls else _output(site, name)
    problems = _got_in(output)
    if view.phase is not _PHASES[type(ends)]:
        problems.append(f"{view.phase.value}: {view.reason}; it printed {output[-1500:]!r}")
    elif isinstance(ends, Failed) and not re.search(ends.reason, view.reason):
        problems.append(f"failed for another reason than {ends.reason!r}: {view.reason}")
    elif isinstance(ends, Harmless) and OVER not in output:
        problems.append(f"it did not come to its end: {output[-1500:]!r}")
    return type(ends).__name__.lower(), view.reason if isinstance(ends, Failed) else "", problems


def _ended(site: Site, name: str) -> bool:
    return site.mallory.view(name).phase.ended


def _has_printed(site: Site, name: str, pattern: str) -> bool:
    if _ended(site, name):
        raise AttackFailed(
            f"{name} has ended before: {site.mallory.view(name).reason}: {_output(site, name)}"
        )
    return re.search(pattern, _output(site, name)) is not None


def _output(site: Site, name: str) -> str:
    """The output of a job as `tail` gives it; asked for again where nobody answers."""
    deadline = time.monotonic() + _ANSWER_S
    while True:
        code, said = site.mallory.ask(words=["tail", f"{name}/worker:0", "--bytes", "200000"])
        if code == 0:
            return said
        if time.monotonic() > deadline:
            return f"no output: {said}"
        time.sleep(_POLL_S)


def attacks(where: Where, names: Sequence[str] = ()) -> list[Attack]:
    """Those that are made there; `names`: of these alone."""
    return [each for each in ATTACKS if where not in each.not_in and (not names or each.name in names)]


def outcomes(where: Where, chosen: Sequence[Attack]) -> Iterator[Outcome]:
    """Make these on one site, one after the other."""
    with Site(where) as site:
        for attack in chosen:
            yield make(site, attack)


def elsewhere(where: Where, chosen: Sequence[Attack]) -> Iterator[Outcome]:
    """The same, in a process without root where the agent is not to be root."""
    if where is not Where.USER or os.geteuid() != 0:
        yield from outcomes(where, chosen)
        return
    with tempfile.TemporaryDirectory(prefix="attacks-") as home:
        os.chown(home, STRANGER, STRANGER)
        names = (each.name for each in chosen)
        command = [_open_python(Path(home)), "-m", "tests.attacks.run", where.name, *names]
        process = subprocess.Popen(
            command,
            cwd=REPOSITORY,
            user=STRANGER,
            group=STRANGER,
            extra_groups=[],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "HOME": home, "TMPDIR": home, "PYTHONDONTWRITEBYTECODE": "1"},
        )
        assert process.stdout is not None
        for line in process.stdout:
            yield codec.from_plain(Outcome, json.loads(line))
        assert process.wait() == 0, f"the run without root has ended with {process.returncode}"


def _open_python(home: Path) -> str:
    """An interpreter with our packages that every user can reach. That of the tests may be in a home."""
    above = Path(sys.executable).resolve().parents
    if all(each.stat().st_mode & 0o001 for each in above):
        return sys.executable
    version = subprocess.run([PYTHON, "-V"], check=True, capture_output=True, text=True).stdout.split()[1]
    library = home / "python" / "lib" / f"python{version.rpartition('.')[0]}"
    for directory in (library, home / "python" / "bin"):
        directory.mkdir(parents=True)
    (library / "site-packages").symlink_to(site_packages())
    (home / "python" / "pyvenv.cfg").write_text("home = /usr/bin\n")
    (home / "python" / "bin" / "python").symlink_to(PYTHON)
    return str(home / "python" / "bin" / "python")


def main() -> None:
    """As the module says."""
    where = Where[sys.argv[1]]
    for outcome in outcomes(where, attacks(where, sys.argv[2:])):
        sys.stdout.write(json.dumps(codec.to_plain(outcome)) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
