"""Launchers: whose they are, which are to come, which to go, and the kill of one that is silent."""

from __future__ import annotations

from dataclasses import replace

from agent.core.desired import Wants
from agent.core.instructions import Recipe, Spawn
from agent.core.state import AgentState, Launcher
from agent.core.step_context import Work
from agent.inside import protocol

HELLO_MS = 30_000
LEAVE_MS = 5_000
STALL_TICKS = 8
"""Without a step for so many ticks of a leader, four of its own, an agent was not running itself."""
SPARE_DELAY_MS = 2_000
SPARE_AGAIN_MS = 10_000
SPARE_BYTES = 3 << 29
"""The free memory for one more spare; a launcher that has imported TensorFlow takes a third of it."""
SCARCE_BYTES = 1 << 28
"""With less free memory than this, spares are removed first."""


def silence_ms(state: AgentState) -> int:
    """How long a launcher with an attempt may say nothing: two pulls missed, and what a busy machine adds."""
    return 3 * state.settings.timing.pull_ms + state.settings.timing.rpc_deadline_ms


def room(state: AgentState) -> tuple[bool, bool]:
    """Whether memory is too scarce to keep spares; whether there is enough for one more."""
    return 0 <= state.free_bytes < SCARCE_BYTES, state.free_bytes >= SPARE_BYTES


def choose(work: Work, recipe: Recipe, member: str) -> Launcher:
    """The launcher for a task: its own, else a spare (the warmest), else a new one."""
    found = find(work, recipe, member)
    return work.put_launcher(replace(found, member=member)) if found else spawn(work, recipe, member)


def find(work: Work, recipe: Recipe, member: str) -> Launcher | None:
    """The launcher that is there for a task: its own, else a spare (the warmest)."""
    fitting = [each for each in work.state.launchers.values() if each.usable and each.recipe == recipe]
    for launcher in fitting:
        if launcher.member == member:
            return launcher
    spares = [each for each in fitting if not each.member]
    return max(
        spares, key=lambda each: (each.welcomed, each.warm, each.settled, each.launcher_id), default=None
    )


def spawn(work: Work, recipe: Recipe, member: str) -> Launcher:
    """Intend a new launcher; its id is never used twice, as no life of an agent is."""
    state = work.state
    work.state = state = replace(state, born=state.born + 1)
    launcher = Launcher(f"{state.life}-{state.born}", recipe, heard_ms=work.now_ms, member=member)
    work.emit(Spawn(launcher.launcher_id, recipe))
    return work.put_launcher(launcher)


def watch_over(work: Work) -> None:
    """Kill launchers that are silent, never came or do not leave; go on with those being killed."""
    state = work.state
    stall_ms = STALL_TICKS * state.settings.timing.tick_ms
    if state.stepped_ms >= 0 and work.now_ms - state.stepped_ms > stall_ms:
        # We were not running ourselves: what launchers said meanwhile is still in the inbox.
        for launcher in list(state.launchers.values()):
            work.put_launcher(replace(launcher, heard_ms=work.now_ms))
        return
    for launcher in list(state.launchers.values()):
        silent = work.now_ms - launcher.heard_ms
        if launcher.doomed:
            work.doom(launcher, "")
        elif launcher.leaving_ms >= 0 and work.now_ms - launcher.leaving_ms > LEAVE_MS:
            work.doom(launcher, "it does not leave")
        elif any(each.pid for each in work.live_on(launcher.launcher_id)):
            if silent > silence_ms(state) and state.me is not None:
                work.doom(launcher, f"it has missed its pulls for {silent} ms")
        elif not launcher.connected and silent > HELLO_MS:
            work.doom(launcher, "it does not come")


def tend(work: Work, wants: Wants) -> None:
    """Free launchers whose task has gone elsewhere, keep spares for live jobs, send the rest away."""
    _free(work)
    keep: dict[str, int] = {}
    scarce, _ = room(work.state)
    for launcher in _spares(work.state):
        job = launcher.recipe.job
        live = wants.live.get(job)
        mine = live is not None and live.job_uuid == launcher.recipe.job_uuid
        fits = wants.spares.get(job, launcher.recipe) == launcher.recipe
        if mine and fits and not scarce and keep.get(job, 0) < work.state.settings.spare_launchers:
            keep[job] = keep.get(job, 0) + 1
        elif work.say(launcher.launcher_id, protocol.Shutdown()):
            work.put_launcher(replace(launcher, leaving_ms=work.now_ms))
        elif live is None:
            work.doom(launcher, "its job has ended")
    _breed(work, wants, keep)


def ready_spares(state: AgentState) -> tuple[str, ...]:
    """The job of each launcher in reserve that is warm."""
    return tuple(each.recipe.job for each in _spares(state) if each.warm and each.welcomed)


def _spares(state: AgentState) -> list[Launcher]:
    return [each for each in state.launchers.values() if each.usable and not each.member]


def _free(work: Work) -> None:
    busy = {hold.launcher_id for hold in work.state.holds.values()}
    for launcher in list(work.state.launchers.values()):
        if launcher.member and launcher.launcher_id not in busy and not work.live_on(launcher.launcher_id):
            work.put_launcher(replace(launcher, member=""))


def _breed(work: Work, wants: Wants, have: dict[str, int]) -> None:
    """One spare at a time, where memory allows, and only when nothing starts here, as importing takes CPU."""
    state = work.state
    if state.spawn_failed_ms >= 0 and work.now_ms - state.spawn_failed_ms < SPARE_AGAIN_MS:
        return
    _, enough = room(state)
    if not enough or wants.prepare or _starting(work, wants):
        return
    if any(not each.settled for each in _spares(state)):
        return
    for job, recipe in wants.spares.items():
        if recipe is not None and have.get(job, 0) < state.settings.spare_launchers:
            spawn(work, recipe, "")
            return


def _starting(work: Work, wants: Wants) -> bool:
    running = [work.state.attempts.get(each.attempt_id) for each in wants.run.values()]
    return any(
        each is None or not each.pid or work.now_ms - each.started_ms <= SPARE_DELAY_MS for each in running
    )
