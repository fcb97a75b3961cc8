"""Bugs that nobody has thought of: a rule of the leader or of agents raises for a job, from its Nth call on.

Each function of the leader's pure modules that takes a job's picture is such a rule, and each function of the
agent's core that takes an assignment, an attempt, a launcher or a reservation. It is replaced wherever
modules name it, for as long as the flaw is installed.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, wraps
from types import FunctionType, ModuleType

import agent.core
import supervisor.control.decide
from agent.core.state import Attempt, Launcher, PortReservation
from supervisor.contract.desired import Assignment
from supervisor.control.decide.snapshot import JobState

NAMES_IN = ("supervisor.control.", "supervisor.api.", "agent.core.")
SPARED = frozenset({"parking", "snapshot", "rests", "admission", "adoption", "deletion"})
"""Modules that park or delete jobs or choose those to visit, and those that answer operators."""
SPARED_IN_AGENTS = frozenset({"set_aside", "step_context", "adopt", "record", "state"})
"""Modules that set things aside, and those that hold or save what an agent is."""
_ABOUT = ("Assignment", "Attempt", "PortReservation", "Launcher")


_EFFECTS = (
    *(f"leader.{kind}" for kind in ("prepare", "close", "flip", "incident", "recovered", "restart_in_place")),
    *(f"leader.{kind}" for kind in ("stopping", "stopped", "checkpoint_collecting", "plan_removed")),
    *(f"agent.{what}" for what in ("spawn", "fence", "launch", "report", "say_Kill", "say_Reserve")),
    *(f"agent.write_{record}" for record in ("Prepared", "Staged")),
    *("commit.record", "stage.rename"),
)
EFFECTS = tuple(f"effect {each}.{when}" for each in _EFFECTS for when in ("before", "after"))
"""Effects on behalf of one job, at which an error may be raised, in place of a rule."""


class Flawed(Exception):
    """The error that a flaw raises. It is in no error tree."""


@dataclass
class Flaw:
    """A rule, by module and name, that raises for a job at its `at`-th call, or from that one on.

    `hits` counts its calls for that job while it is `armed`, `strikes` those in which it has raised. `calm`:
    nothing else goes wrong in its run.
    """

    rule: str
    job: str
    at: int = 1
    lasts: bool = False
    calm: bool = False
    hits: int = 0
    strikes: int = 0
    armed: bool = True

    @property
    def struck(self) -> bool:
        """Whether it has raised."""
        return self.strikes > 0

    @property
    def charged(self) -> int:
        """The charges to the job's budget that it may explain: an agent's error ends an attempt as a
        program's own fault does, so that the job does not go from node to node.
        """
        by_agents = self.rule in agent_rules() or not self.rule.startswith("effect leader.")
        return self.strikes if by_agents and self.rule not in rules() else 0

    def reach(self, point: str) -> None:
        """Raise, if this is the effect to raise at, and its time has come."""
        if self.armed and self.rule == f"effect {point}":
            self.hits += 1
            if self.hits == self.at:
                self.strikes += 1
                raise Flawed(f"{point}, hit {self.hits}")

    def may_park(self, job: str) -> bool:
        """Whether a job may be parked for it. The job of an effect that raises is not known in advance."""
        return self.struck and (self.job == job or self.rule.startswith("effect "))

    def meet(self, given: tuple[object, ...]) -> None:
        """Raise, if this call is one to raise in. As in the rule itself, a variable holds the subject."""
        about = next((each for each in given if job_of(each) == self.job), None)
        if not self.armed or about is None:
            return
        self.hits += 1
        if self.hits == self.at or (self.lasts and self.hits > self.at):
            self.strikes += 1
            raise Flawed(f"{self.rule} for {self.job}, call {self.hits}")


def job_of(value: object) -> str:
    """The job that an argument of a rule is about; empty for any other argument."""
    match value:
        case JobState():
            return value.name
        case Assignment() | PortReservation():
            return value.job
        case Attempt():
            return value.id.task.job
        case Launcher():
            return value.recipe.job
        case _:
            return ""


@cache
def rules() -> dict[str, FunctionType]:
    """Every rule of the leader, by module and name."""
    return _rules_in(supervisor.control.decide, SPARED, ("JobState",))


@cache
def agent_rules() -> dict[str, FunctionType]:
    """Every rule of agents, as `agent.MODULE.NAME`."""
    found = _rules_in(agent.core, SPARED_IN_AGENTS, _ABOUT)
    return {f"agent.{name}": rule for name, rule in found.items()}


def _rules_in(package: ModuleType, spared: frozenset[str], about: tuple[str, ...]) -> dict[str, FunctionType]:
    found: dict[str, FunctionType] = {}
    for each in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        short = each.name.rpartition(".")[2]
        if short in spared:
            continue
        module = importlib.import_module(each.name)
        for name, value in vars(module).items():
            mine = isinstance(value, FunctionType) and value.__module__ == module.__name__
            if mine and _takes(value, about):
                found[f"{short}.{name}"] = value
    return found


def install(flaw: Flaw) -> Callable[[], None]:
    """Have the rule raise; the result ends that."""
    rule = {**rules(), **agent_rules()}.get(flaw.rule)
    if rule is None:
        return lambda: None  # an effect: the world has it raise

    @wraps(rule)
    def flawed(*given: object, **named: object) -> object:
        flaw.meet((*given, *named.values()))
        return rule(*given, **named)

    # A generator raises where it is walked through.
    @wraps(rule)
    def flawed_generator(*given: object, **named: object) -> Iterator[object]:
        flaw.meet((*given, *named.values()))
        yield from rule(*given, **named)

    instead = flawed_generator if inspect.isgeneratorfunction(rule) else flawed
    places = [
        (module, name)
        for module_name, module in list(sys.modules.items())
        if module_name.startswith(NAMES_IN)
        for name, value in list(vars(module).items())
        if value is rule
    ]
    for module, name in places:
        setattr(module, name, instead)

    def undo() -> None:
        for module, name in places:
            setattr(module, name, rule)

    return undo


def _takes(function: FunctionType, about: tuple[str, ...]) -> bool:
    hints = [str(hint) for name, hint in function.__annotations__.items() if name != "return"]
    return any(re.search(rf"\b{each}\b", hint) for each in about for hint in hints)
