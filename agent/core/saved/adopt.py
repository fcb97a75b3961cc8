"""Between the state and the state file: what a successor must find, and what it makes of it (rule 12)."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from dataclasses import replace

from agent.core.gpus.health import remembered
from agent.core.saved.record import AgentRecord, AttemptRecord, End, LauncherRecord, PortRecord, Saved
from agent.core.state import AgentState, Attempt, HoldState, Launcher, PortReservation, ReportLevel
from agent.settings import AgentSettings
from supervisor.contract.ids import AttemptId, TaskId
from supervisor.contract.observed import ExitReason

LONGEST_CHAIN = 100
SHORT_CHAIN = 8


def record_of(state: AgentState) -> AgentRecord:
    """The record that must be on disk before the instructions that led to `state` are carried out."""
    return AgentRecord(
        node=state.settings.node,
        boot_id=state.boot_id,
        incarnation=state.life,
        succeeds=state.predecessors,
        born=state.born,
        launchers=tuple(
            LauncherRecord(
                each.launcher_id,
                each.recipe,
                each.pid,
                each.start_ticks,
                each.member,
                each.reach,
                each.had_secrets,
            )
            for each in state.launchers.values()
        ),
        ports=tuple(_port_record(each) for each in state.holds.values() if each.state is HoldState.HELD),
        attempts=tuple(_attempt_record(each) for each in state.attempts.values()),
        gpus=state.gpus.kept(),
        cluster=state.cluster,
        seen=state.seen,
        addresses=tuple(state.addresses.values()),
    )


def unknown(record: AgentRecord | None, living: AbstractSet[str]) -> tuple[str, ...]:
    """Launchers that live, and that a state file which is the last one would hold.

    The intent is in the file before anything is spawned. One that a life in the file has given up may come up
    late all the same, where docker was slow; it is never given anything.
    """
    known = {each.launcher_id for each in record.launchers} if record is not None else set()
    return tuple(sorted(each for each in living - known if record is None or not _given_up(record, each)))


def is_older(record: AgentRecord | None, saved: Saved | None) -> bool:
    """Whether a later record than this one was durable once; no, where nothing tells."""
    if saved is None:
        return False
    return record is None or record.origin != saved.origin or record.serial < saved.serial


def counted(record: AgentRecord | None, saved: Saved | None, life: str) -> Saved:
    """The number that a new life goes on from."""
    serials = [each.serial for each in (record, saved) if each is not None]
    origins = [each.origin for each in (saved, record) if each is not None]
    return Saved(life, max(serials, default=0), next(iter(origins), life))


def _given_up(record: AgentRecord, launcher_id: str) -> bool:
    life, _, number = launcher_id.rpartition("-")
    if life == record.incarnation:
        return number.isdigit() and int(number) <= record.born
    return life in record.succeeds


def anew(record: AgentRecord | None, settings: AgentSettings, life: str, boot_id: str) -> AgentState:
    """The state of a life that takes nothing over (rule 12), but what is true of this machine's GPUs."""
    state = AgentState(settings, life, boot_id, settings.timing.d_ms)
    return state if record is None else replace(state, gpus=remembered(record.gpus))


def restore(
    record: AgentRecord | None,
    settings: AgentSettings,
    life: str,
    boot_id: str,
    now_ms: int,
    alive: AbstractSet[tuple[int, int]],
) -> AgentState:
    """The state of a new life: what the last one left on this machine.

    `alive`: those (pid, start ticks) of the record that live now. Launchers whose process is gone are doomed,
    so that whatever escaped from them is found by its marker. After a reboot nothing is left, but the ends of
    its attempts are still to be told.
    """
    predecessors: tuple[str, ...] = ()
    if record is not None:
        chain = (record.incarnation, *record.succeeds)
        # What still runs here may have been placed on any of these lives; their lost marks count, too.
        predecessors = chain[: LONGEST_CHAIN if record.attempts or record.ports else SHORT_CHAIN]
    state = AgentState(settings, life, boot_id, settings.timing.d_ms, predecessors)
    if record is None:
        return state
    state = replace(state, gpus=remembered(record.gpus), cluster=record.cluster, seen=record.seen)
    rebooted = record.boot_id != boot_id
    state.addresses.update({each.plan_id: each for each in record.addresses})
    for each in record.attempts:
        attempt = _attempt(each)
        if rebooted and attempt.alive:
            detail = "the machine was restarted"
            end = End(ExitReason.LAUNCHER_LOST, None, None, now_ms, True, detail, rebooted=True)
            attempt = replace(attempt, end=end)
        state.attempts[attempt.id] = attempt
    if rebooted:
        return state
    for launcher in record.launchers:
        dead = launcher.pid != 0 and (launcher.pid, launcher.start_ticks) not in alive
        # The last life ended before it knew the address that others would need.
        lacks = launcher.recipe.networked and launcher.reach is None
        state.launchers[launcher.launcher_id] = Launcher(
            launcher.launcher_id,
            launcher.recipe,
            heard_ms=now_ms,
            member=launcher.member,
            pid=launcher.pid,
            start_ticks=launcher.start_ticks,
            doomed=dead or lacks,
            had_secrets=launcher.had_secrets,
            reach=launcher.reach,
        )
    for port in record.ports:
        hold = PortReservation(
            port.job,
            port.plan_id,
            port.member,
            port.launcher_id,
            HoldState.HELD,
            reuse=port.port,
            port=port.port,
            warm=port.warm,
        )
        state.holds[hold.name] = hold
    return state


def _port_record(hold: PortReservation) -> PortRecord:
    return PortRecord(hold.job, hold.plan_id, hold.member, hold.launcher_id, hold.port, hold.warm)


def _attempt_record(attempt: Attempt) -> AttemptRecord:
    end = attempt.end
    return AttemptRecord(
        job=attempt.id.task.job,
        role=attempt.id.task.role,
        index=attempt.id.task.index,
        generation=attempt.id.generation,
        number=attempt.id.number,
        job_uuid=attempt.job_uuid,
        plan_id=attempt.plan_id,
        launcher_id=attempt.launcher_id,
        port=attempt.port,
        address=attempt.address,
        warm=attempt.warm,
        patterns=attempt.patterns,
        pid=attempt.pid,
        start_ticks=attempt.start_ticks,
        started_ms=attempt.started_ms,
        end=end,
        drained=attempt.drained,
        look=attempt.look,
        uncommitted=attempt.uncommitted,
        told=int(attempt.told),
        watch_nan=attempt.watch_nan,
        hold_ms=attempt.hold_ms,
        ending_ms=attempt.ending_ms,
        gpus=attempt.gpus,
        gpus_shared=attempt.gpus_shared,
    )


def _attempt(record: AttemptRecord) -> Attempt:
    return Attempt(
        AttemptId(TaskId(record.job, record.role, record.index), record.generation, record.number),
        record.job_uuid,
        record.plan_id,
        record.launcher_id,
        record.port,
        record.address,
        record.warm,
        record.patterns,
        record.watch_nan,
        record.hold_ms,
        asked=True,
        pid=record.pid,
        start_ticks=record.start_ticks,
        started_ms=record.started_ms,
        ending_ms=record.ending_ms,
        end=record.end,
        drained=record.drained,
        look=record.look,
        uncommitted=record.uncommitted,
        told=ReportLevel(record.told),
        gpus=record.gpus,
        gpus_shared=record.gpus_shared,
    )
