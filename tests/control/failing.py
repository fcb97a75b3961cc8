"""Failures of attempts that tests of the leader let happen, and what is made of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from recovery.policy.blame import NOTICE_LAG_MS
from supervisor.contract.incident import Cause, Incident
from supervisor.contract.job.spec import JobSpec, RestartPolicy, Rule
from supervisor.contract.observed import Exit, ExitReason
from supervisor.contract.timing import FAST
from tests.control.world import World
from tests.support.builders import job_spec

ERRORS = "tensorflow.python.framework.errors_impl"
FOLLOWERS_WAIT_MS = max(FAST.suspect_ms + FAST.beat_ms, NOTICE_LAG_MS[Cause.LAUNCHER_LOST])


def raised(line: str) -> str:
    return f'Traceback (most recent call last):\n  File "t.py", line 3, in <module>\n    g()\n{line}\n'


LOST_PEER = raised(f"{ERRORS}.UnavailableError: Socket closed")
TYPO = raised("ModuleNotFoundError: No module named 'tensorflo'")
NAN = raised("tensorflow.python.training.basic_session_run_hooks.NanLossDuringTrainingError: NaN loss")
CLASH = raised(f"{ERRORS}.UnknownError: Could not start gRPC server")
FLIPPED = raised(f"{ERRORS}.DataLossError: checksum does not match")
BUG = raised("ValueError: wrong")
EVALUATED = {"chief": 1, "ps": 1, "worker": 1, "evaluator": 1}


def end(
    world: World, member: str, tail: str = "", *, code: int | None = 1, signal: int | None = None
) -> None:
    """A running attempt ends, with these last words."""
    world._exited(world.running()[member], Exit(ExitReason.EXIT, code, signal, 10, True, tail=tail))


def kill(world: World, member: str) -> None:
    end(world, member, code=None, signal=9)


def quiet(world: World) -> World:
    """No task makes a step from now on."""
    for agent in world.agents.values():
        agent.steps = False
    return world


def only_the_evaluator_tells(world: World, *generations: int) -> None:
    """It prints the step of the checkpoint that it has just read; those that train make none."""
    for agent in world.agents.values():
        for task in ("chief:0", "worker:0"):
            for generation in generations:
                agent.tells[f"digits/{task}@{generation}.1"] = lambda beat: replace(
                    beat, step=-1, step_age_ms=-1, first_step=-1, first_step_age_ms=-1
                )


def spec_with(
    *,
    max_restarts: int = 3,
    max_in_window: int = 20,
    window_ms: int = 3_600_000,
    rules: Mapping[str, Rule] | None = None,
) -> JobSpec:
    policy = RestartPolicy(
        max_restarts=max_restarts, max_in_window=max_in_window, window_ms=window_ms, rules=dict(rules or {})
    )
    return job_spec(restart=policy)


def failures(world: World) -> list[Incident]:
    return [each for each in world.incidents().values() if each.cause is not Cause.SUBMITTED]


def back(world: World, member: str, number: int) -> int:
    return world.until(
        lambda: member in world.running() and world.running()[member].number == number, limit_ms=120_000
    )


def settled(world: World) -> World:
    for _ in range(10):
        world.tick()
    return world
