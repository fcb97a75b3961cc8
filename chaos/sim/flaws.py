"""Bugs that nobody has thought of: a rule of the leader raises for one job, from its Nth call on.

Each function of the leader's pure modules that takes a job's picture is such a rule. It is replaced wherever
the leader's modules name it, for as long as the flaw is installed.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, wraps
from types import FunctionType, ModuleType

import supervisor.control
from supervisor.control.snapshot import JobPicture

RULES_OF = "supervisor.control"
NAMES_IN = ("supervisor.control.", "supervisor.api.")
SPARED = frozenset({"parking", "snapshot", "desk", "vault", "entry", "adoption"})
"""Modules that park jobs, and those that answer operators."""


class Flawed(Exception):
    """What a flaw raises. It is in no error tree."""


@dataclass
class Flaw:
    """A rule, by module and name, that raises for a job at its `at`-th call, or from that one on.

    `hits` counts its calls for that job while it is `armed`; `struck`: it has raised. `calm`: nothing else
    goes wrong in its run.
    """

    rule: str
    job: str
    at: int = 1
    lasts: bool = False
    calm: bool = False
    hits: int = 0
    struck: bool = False
    armed: bool = True

    def meet(self, given: tuple[object, ...]) -> None:
        """Raise, if this call is one to raise in."""
        if not self.armed or not any(
            isinstance(each, JobPicture) and each.name == self.job for each in given
        ):
            return
        self.hits += 1
        if self.hits == self.at or (self.lasts and self.hits > self.at):
            self.struck = True
            raise Flawed(f"{self.rule} for {self.job}, call {self.hits}")


@cache
def rules() -> dict[str, FunctionType]:
    """Every rule, by module and name."""
    found: dict[str, FunctionType] = {}
    for module in _modules():
        for name, value in vars(module).items():
            if (
                isinstance(value, FunctionType)
                and value.__module__ == module.__name__
                and _takes_a_job(value)
            ):
                found[f"{module.__name__.rpartition('.')[2]}.{name}"] = value
    return found


def install(flaw: Flaw) -> Callable[[], None]:
    """Have the rule raise; the result ends that."""
    rule = rules()[flaw.rule]

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


def _modules() -> Iterator[ModuleType]:
    for each in pkgutil.iter_modules(supervisor.control.__path__):
        if each.name not in SPARED:
            yield importlib.import_module(f"{RULES_OF}.{each.name}")


def _takes_a_job(function: FunctionType) -> bool:
    return any(
        "JobPicture" in str(hint) for name, hint in function.__annotations__.items() if name != "return"
    )
