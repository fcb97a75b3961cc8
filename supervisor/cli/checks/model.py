"""A check, what it is given, and how all are run: each with a deadline, side by side unless it measures."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from supervisor.adapters.files.config import AgentConfig
from supervisor.cli.cluster.engine import EngineInfo
from supervisor.cli.cluster.findings import Finding, State
from supervisor.contract.errors import TfSupervisorError

LOOK_S = 30.0
"""To load what speaks to etcd takes a second of processor time: measured 7 s on a busy machine."""


@dataclass(frozen=True, slots=True)
class Told:
    """What a look says. `advice` is for this case; empty: the check's own."""

    state: State
    detail: str
    advice: str = ""


class Scene:
    """What is looked at: this machine, for one agent's configuration where there is one.

    Attributes:
        docker: the address of dockerd; empty where no container is wanted.
        image: that must be there; empty for none.
        needs_docker: somebody has said that there is to be a dockerd.
    """

    def __init__(
        self, config: AgentConfig | None, docker: str, image: str = "", *, needs_docker: bool = True
    ) -> None:
        self.config = config
        self.docker = docker
        self.needs_docker = needs_docker
        self.image = image
        self._lock = threading.Lock()

    @property
    def agent(self) -> AgentConfig:
        """The configuration; for checks that are only run with one."""
        assert self.config is not None
        return self.config

    @property
    def engine(self) -> EngineInfo:
        """What dockerd says of itself, asked once; raises Unreachable, Refused."""
        with self._lock:
            found = self._asked
        if isinstance(found, TfSupervisorError):
            raise found
        return found

    @property
    def has_engine(self) -> bool:
        """Whether dockerd answers; that it does not is one finding, not one of every check."""
        with self._lock:
            return not isinstance(self._asked, TfSupervisorError)

    @cached_property
    def _asked(self) -> EngineInfo | TfSupervisorError:
        from supervisor.cli.cluster.engine import Engine

        try:
            with Engine(self.docker) as engine:
                return engine.info()
        except TfSupervisorError as error:
            return error


Look = Callable[[Scene], Told | None]
"""None: there is nothing to say here."""


@dataclass(frozen=True, slots=True)
class Check:
    """One check. An error of our tree that the look raises is its failure.

    Attributes:
        advice: what to do when it is not well.
        wanted: whether this scene has what it looks at.
        deadline_s: a look that takes longer has failed.
        alone: it measures how long this machine takes, so no other look of ours runs beside it.
    """

    name: str
    look: Look
    advice: str
    wanted: Callable[[Scene], bool] = field(default=lambda scene: scene.config is not None)
    deadline_s: float = LOOK_S
    alone: bool = False


def run(checks: Sequence[Check], scene: Scene) -> list[Finding]:
    """Every wanted check's finding, in their order; one that does not end by its own deadline has failed."""
    runs = [_Run(check, scene) for check in checks if check.wanted(scene)]
    beside = [each for each in runs if not each.check.alone]
    for each in beside:
        each.start()
    for each in beside:
        each.wait()
    for each in runs:
        if each.check.alone:
            each.start()
            each.wait()
    return [finding for each in runs if (finding := each.finding()) is not None]


class _Run:
    """One check in a thread that nobody waits for at the end: a look at a dead disk may never return."""

    def __init__(self, check: Check, scene: Scene) -> None:
        self.check = check
        self._told: Told | None = None
        self._looked = False
        self._thread = threading.Thread(target=self._look, args=(scene,), daemon=True)
        self._due = 0.0

    def start(self) -> None:
        """Look, from now until the check's deadline."""
        self._due = time.monotonic() + self.check.deadline_s
        self._thread.start()

    def wait(self) -> None:
        """Return at the end of the look, or of its time."""
        self._thread.join(max(0.0, self._due - time.monotonic()))

    def _look(self, scene: Scene) -> None:
        try:
            self._told = self.check.look(scene)
        except TfSupervisorError as error:
            self._told = fail(str(error))
        self._looked = True

    def finding(self) -> Finding | None:
        """What it found. A bug in a check has printed its traceback, and is no finding."""
        if self._thread.is_alive():
            return self._say(fail(f"no answer after {self.check.deadline_s:g} s"))
        assert self._looked, f"the check of {self.check.name} has a bug, see above"
        return self._say(self._told) if self._told is not None else None

    def _say(self, told: Told) -> Finding:
        advice = "" if told.state is State.OK else told.advice or self.check.advice
        return Finding(self.check.name, told.state, told.detail, advice)


def ok(detail: str) -> Told:
    """All is well."""
    return Told(State.OK, detail)


def warn(detail: str, advice: str = "") -> Told:
    """It works, less well or less safely than it could."""
    return Told(State.WARN, detail, advice)


def fail(detail: str, advice: str = "") -> Told:
    """It cannot work."""
    return Told(State.FAIL, detail, advice)
