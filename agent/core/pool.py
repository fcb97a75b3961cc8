"""Launchers: whose they are, which are to come and which to go."""

from __future__ import annotations

from dataclasses import replace

from agent.core.instructions import Recipe, Spawn
from agent.core.state import AgentState, Launcher
from agent.core.wants import Wants, recipe_of
from agent.core.work import Work
from agent.inside import protocol

HELLO_MS = 30_000
LEAVE_MS = 5_000
STALL_MS = 400
SPARE_DELAY_MS = 2_000
SPARE_AGAIN_MS = 10_000


def silence_ms(state: AgentState) -> int:
    """How long a launcher with an attempt may say nothing: two pulls missed, and what a busy machine adds."""
    return 3 * state.settings.timing.pull_ms + state.settings.timing.rpc_deadline_ms


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
    if state.stepped_ms >= 0 and work.now_ms - state.stepped_ms > STALL_MS:
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
    """Free launchers whose task has gone elsewhere, keep spares for running jobs, send the rest away."""
    _free(work)
    keep: dict[str, int] = {}
    for launcher in list(work.state.launchers.values()):
        if not launcher.usable or launcher.member:
            continue
        job = launcher.recipe.job
        live = wants.live.get(job)
        kept = keep.get(job, 0)
        if live is not None and live.job_uuid == launcher.recipe.job_uuid and kept < _spares(work.state):
            keep[job] = kept + 1
        elif work.say(launcher.launcher_id, protocol.Shutdown()):
            work.put_launcher(replace(launcher, leaving_ms=work.now_ms))
        elif live is None:
            work.doom(launcher, "its job has ended")
    _breed(work, wants, keep)


def _spares(state: AgentState) -> int:
    return state.settings.spare_launchers


def _free(work: Work) -> None:
    busy = {hold.launcher_id for hold in work.state.holds.values()}
    for launcher in list(work.state.launchers.values()):
        if launcher.member and launcher.launcher_id not in busy and not work.live_on(launcher.launcher_id):
            work.put_launcher(replace(launcher, member=""))


def _breed(work: Work, wants: Wants, have: dict[str, int]) -> None:
    """One spare at a time, and only when the job's tasks here have started: importing takes their CPU."""
    if work.state.spawn_failed_ms >= 0 and work.now_ms - work.state.spawn_failed_ms < SPARE_AGAIN_MS:
        return
    for assignment in wants.run.values():
        job = assignment.job
        if have.get(job, 0) >= _spares(work.state):
            continue
        mine = [each for each in wants.run.values() if each.job == job]
        running = [work.state.attempts.get(each.attempt_id) for each in mine]
        if all(
            each is not None and each.pid and work.now_ms - each.started_ms > SPARE_DELAY_MS
            for each in running
        ):
            spawn(work, recipe_of(assignment), "")
            have[job] = have.get(job, 0) + 1
