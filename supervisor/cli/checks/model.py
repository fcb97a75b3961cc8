"""A check, its input, and the run of all checks: each has a deadline, and they run at the same time unless
they measure.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from supervisor.adapters.files.config.agent import AgentConfig
from supervisor.cli.cluster.engine import EngineInfo
from supervisor.cli.cluster.findings import Finding, State
from supervisor.contract.errors import TfSupervisorError

LOOK_S = 30.0
"""Seconds for a check. Loading the client of etcd takes a second of processor time: 7 s were measured on a
busy machine."""


@dataclass(frozen=True, slots=True)
class Told:
    """The result of a check. `advice` is for this case; empty: the check's own."""

    state: State
    detail: str
    advice: str = ""


class Scene:
    """The subject of the checks: this machine, with an agent's configuration if there is one.

    Attributes:
        docker: the address of dockerd; empty if no container is wanted.
        image: the required image; empty for none.
        needs_docker: the configuration or an option requires a dockerd.
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
        """The configuration, for checks that run only with one."""
        assert self.config is not None
        return self.config

    @property
    def engine(self) -> EngineInfo:
        """The report of dockerd on itself, read once; raises Unreachable, Refused."""
        with self._lock:
            found = self._asked
        if isinstance(found, TfSupervisorError):
            raise found
        return found

    @property
    def has_engine(self) -> bool:
        """Whether dockerd answers. Otherwise only one check reports it."""
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
"""The function of a check; it returns None if the check does not apply."""


@dataclass(frozen=True, slots=True)
class Check:
    """One check. An error of our tree that its function raises is a failure.

    Attributes:
        advice: the remedy for a problem.
        wanted: whether the check applies to a scene.
        deadline_s: seconds after which the check has failed.
        alone: it measures a duration, so no other check runs beside it.
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
    """One check in a daemon thread: a look at a dead disk may never return."""

    def __init__(self, check: Check, scene: Scene) -> None:
        self.check = check
        self._told: Told | None = None
        self._looked = False
        self._thread = threading.Thread(target=self._look, args=(scene,), daemon=True)
        self._due = 0.0

    def start(self) -> None:
        """Start the check; its deadline counts from now."""
        self._due = time.monotonic() + self.check.deadline_s
        self._thread.start()

    def wait(self) -> None:
        """Return when the check has ended, or at its deadline."""
        self._thread.join(max(0.0, self._due - time.monotonic()))

    def _look(self, scene: Scene) -> None:
        try:
            self._told = self.check.look(scene)
        except TfSupervisorError as error:
            self._told = fail(str(error))
        self._looked = True

    def finding(self) -> Finding | None:
        """The finding; None if there is none. A bug in a check prints its traceback, and gives no finding."""
        if self._thread.is_alive():
            return self._say(fail(f"no answer after {self.check.deadline_s:g} s"))
        assert self._looked, f"the check of {self.check.name} has a bug, see above"
        return self._say(self._told) if self._told is not None else None

    def _say(self, told: Told) -> Finding:
        advice = "" if told.state is State.OK else told.advice or self.check.advice
        return Finding(self.check.name, told.state, told.detail, advice)


def ok(detail: str) -> Told:
    """A result without a problem."""
    return Told(State.OK, detail)


def warn(detail: str, advice: str = "") -> Told:
    """A result for something that works, but less well or less safely than possible."""
    return Told(State.WARN, detail, advice)


def fail(detail: str, advice: str = "") -> Told:
    """A result for something that cannot work."""
    return Told(State.FAIL, detail, advice)
