"""Attempts and ports: make what is there equal to what is wanted. Every rule may run again at any time."""

from __future__ import annotations

from dataclasses import replace
from itertools import takewhile

from agent.core import code, firewall, pool, secrets, warmth
from agent.core.desired import Wants, name_of, recipe_of
from agent.core.events import OverDisk
from agent.core.gpus import report
from agent.core.instructions import Dump, Launch, PrepareOutputs, Reach, ReadSpec, Recipe
from agent.core.prepared import address_of
from agent.core.saved.record import End
from agent.core.state import Attempt, HoldState, Launcher, PortReservation, ReportLevel
from agent.core.step_context import Work
from agent.inside import protocol
from supervisor.contract.addresses import is_at, port_of
from supervisor.contract.desired import Assignment, ClusterSpec, JobPhase, JobSwitch, listens
from supervisor.contract.job.serving import OF_A_PYTHON, Exports
from supervisor.contract.observed import CANNOT_GO_ON, ExitReason

SPEC_AGAIN_MS = 300
TERMINATE_AGAIN_MS = 1_000
MOST_TRIES = 3


def stop_unwanted(work: Work, wants: Wants) -> None:
    """Kill every attempt that no switch stands behind; it does not wait for any other task."""
    for attempt in list(work.state.attempts.values()):
        wanted = wants.run.get(attempt.id.task)
        ending = wants.linger.get(attempt.id.task)
        held = wants.held.get(attempt.id.task)
        if not attempt.alive:
            continue
        if ending is not None and ending.attempt_id == attempt.id and attempt.asked:
            _let_end(work, attempt, ending, wants.switches[ending.job])
        elif held is not None and held.attempt_id == attempt.id and attempt.pid and attempt.end is None:
            _keep_stopped(work, attempt, held.hold_on_failure_ms)
        elif wanted is None or wanted.attempt_id != attempt.id:
            work.kill(attempt, "its generation or attempt is not in force")


def _let_end(work: Work, attempt: Attempt, assignment: Assignment, switch: JobSwitch) -> None:
    """Ask the program to save and end, but not those that it may need for that; when time is out, kill it."""
    stopping = switch.phase is JobPhase.STOPPING
    patience_ms = switch.save_grace_ms
    if not stopping:
        # The leader counts from the last commit; this is for when there is no leader.
        patience_ms += work.state.settings.timing.commit_deadline_ms
    if attempt.ending_ms < 0:
        attempt = work.put_attempt(replace(attempt, ending_ms=work.now_ms))
    if work.now_ms >= attempt.ending_ms + patience_ms:
        work.kill(attempt, f"it has not ended within {patience_ms} ms")
        return
    due = stopping and not assignment.serves and work.now_ms >= attempt.terminated_ms + TERMINATE_AGAIN_MS
    if due and work.say(attempt.launcher_id, protocol.Terminate(str(attempt.id))):
        work.put_attempt(replace(attempt, terminated_ms=work.now_ms))


def _keep_stopped(work: Work, attempt: Attempt, hold_ms: int) -> None:
    """Its job has failed, and it can do no harm any more: somebody may look at it for a while."""
    if attempt.ending_ms < 0:
        attempt = work.put_attempt(replace(attempt, ending_ms=work.now_ms))
    if work.now_ms >= attempt.ending_ms + hold_ms:
        work.kill(attempt, f"it was kept for inspection for {hold_ms / 1000:g} s")
    elif not attempt.suspended and work.say(attempt.launcher_id, protocol.Suspend(str(attempt.id))):
        work.put_attempt(replace(attempt, suspended=True))


def dump(work: Work, asked: tuple[str, ...]) -> None:
    """Keep the stacks of attempts that run here, once for each time that they are suspected."""
    for attempt in list(work.state.attempts.values()):
        wanted = str(attempt.id) in asked
        if attempt.dumped != wanted and attempt.pid and attempt.end is None:
            work.put_attempt(replace(attempt, dumped=wanted))
            if wanted:
                work.emit(Dump(attempt.id))


def end_over_disk(work: Work, event: OverDisk) -> None:
    """Its attempts end here, as the program's own fault: the job must not fill one node after the other."""
    for attempt in list(work.state.attempts.values()):
        launcher = work.state.launchers.get(attempt.launcher_id)
        if attempt.job_uuid != event.job_uuid or attempt.end is not None or launcher is None:
            continue
        reason = f"{CANNOT_GO_ON}: {event.reason}"
        work.end(attempt, End(ExitReason.START_FAILED, None, None, work.now_ms, False, reason))
        work.doom(launcher, reason)


def stop_all(work: Work, reason: str) -> None:
    """Rule 3: nothing may run past the deadline. The launchers know it too."""
    for attempt in list(work.state.attempts.values()):
        work.kill(attempt, reason)


def hold_ports(work: Work, wants: Wants) -> None:
    """A launcher and a port for each task that is prepared or runs here; ask for those not held yet."""
    for name, assignment in wants.prepare.items():
        if name in work.state.holds:
            continue
        member = assignment.task.member
        there = pool.find(work, _recipe(work, assignment), member) is not None
        brought = code.standing_at(work, assignment, launcher=there)
        if brought.failure:
            lacks = HoldState.FAILED
            work.put_hold(
                PortReservation(
                    assignment.job, assignment.plan_id, member, "", lacks, failure=brought.failure
                )
            )
        # A new launcher would wait for the code, and be given up for it; one that is there need not wait.
        elif brought.done or there:
            _new_hold(work, assignment, None)
    for hold in list(work.state.holds.values()):
        _pursue_wanted(work, wants, hold)
    _release(work, wants)


def start_wanted(work: Work, wants: Wants) -> None:
    """Start each attempt whose turn has come: deadline, ClusterSpec, port, all before it confirmed dead."""
    for assignment in wants.run.values():
        attempt = work.state.attempts.get(assignment.attempt_id)
        if attempt is None:
            _start(work, wants, assignment)
        elif not attempt.asked and attempt.end is None:
            _launch(work, wants, assignment, attempt)


def tell_of_moves(work: Work, wants: Wants) -> None:
    """Read each ClusterSpec that has changed while attempts of its plan run here, and tell a coordinator."""
    for assignment in wants.run.values():
        attempt = work.state.attempts.get(assignment.attempt_id)
        edition = wants.switches[assignment.job].edition
        if not edition or attempt is None or not attempt.pid or attempt.end is not None:
            continue
        spec = _spec(work, wants, assignment)
        if spec is None or not assignment.hears_moves or attempt.heard == spec.edition:
            continue
        # A worker that has joined and does not listen yet hides those after it: they have no gap.
        cluster = {entry.role: list(takewhile(listens, entry.addresses)) for entry in spec.roles}
        if work.say(attempt.launcher_id, protocol.Peers(str(attempt.id), cluster)):
            work.put_attempt(replace(attempt, heard=spec.edition))


def forget(work: Work, wants: Wants) -> None:
    """Drop attempts that etcd has in full and that no record can ask for again; acknowledge their exits."""
    view = work.state.view
    assigned = {(each.task, each.generation) for each in view.assignments} if view else set()
    for attempt in list(work.state.attempts.values()):
        if attempt.told < ReportLevel.DEAD or attempt.alive:
            continue
        acked = attempt.acked or _acknowledge(work, attempt)
        if acked and attempt.settled and (attempt.id.task, attempt.id.generation) not in assigned:
            del work.state.attempts[attempt.id]
    wanted = {each.attempt_id for each in wants.run.values()}
    for attempt_id in [each for each in work.state.outputs if each not in wanted]:
        del work.state.outputs[attempt_id]
    plans = {each.plan_id for each in wants.run.values()}
    for plan_id in [each for each in work.state.specs if each not in plans]:
        del work.state.specs[plan_id]


def _acknowledge(work: Work, attempt: Attempt) -> bool:
    gone = attempt.launcher_id not in work.state.launchers
    if not gone and not work.say(attempt.launcher_id, protocol.AckExit(str(attempt.id))):
        return False
    work.put_attempt(replace(attempt, acked=True))
    return True


def _recipe(work: Work, assignment: Assignment) -> Recipe:
    return recipe_of(assignment, work.state.settings.resources.runtime)


def _running(wants: Wants, hold: PortReservation) -> Assignment | None:
    for assignment in wants.run.values():
        if name_of(assignment) == hold.name:
            return assignment
    return None


def _new_hold(work: Work, assignment: Assignment, reuse: int | None) -> PortReservation:
    launcher = pool.choose(work, _recipe(work, assignment), assignment.task.member)
    return work.put_hold(
        PortReservation(
            assignment.job,
            assignment.plan_id,
            assignment.task.member,
            launcher.launcher_id,
            HoldState.WAITING,
            reuse=reuse,
        )
    )


def _pursue_wanted(work: Work, wants: Wants, hold: PortReservation) -> None:
    wanted = wants.prepare.get(hold.name) or _running(wants, hold)
    if wanted is not None:
        _pursue(work, hold, wanted)


def _pursue(work: Work, hold: PortReservation, assignment: Assignment) -> None:
    """Bring a reservation closer to HELD."""
    launcher = work.state.launchers.get(hold.launcher_id)
    if launcher is None:
        if hold.state is HoldState.FAILED or work.now_ms < hold.again_ms:
            return
        if hold.tries >= MOST_TRIES:
            failure = f"no launcher became ready in {hold.tries} more tries"
            failure += f"; the last one ended so: {hold.ended}" if hold.ended else ""
            if assignment.preload and assignment.container is None:
                modules = ", ".join(assignment.preload)
                failure += f"; try `{assignment.argv[0]} -c 'import {modules}'` on this node"
            work.put_hold(replace(hold, state=HoldState.FAILED, failure=failure))
            return
        # Its launcher is dead and everything of it gone, so another may claim the very same port.
        tries = 1 if hold.state is HoldState.HELD else hold.tries + (0 if hold.delay else 1)
        launcher = pool.choose(work, _recipe(work, assignment), hold.member)
        reuse = hold.port or hold.reuse
        if launcher.recipe.networked:
            # That address is gone; whoever knew it must not meet another task there.
            hold, reuse = replace(hold, port=0), None
        hold = replace(
            hold, launcher_id=launcher.launcher_id, state=HoldState.WAITING, reuse=reuse, tries=tries
        )
        work.put_hold(hold)
    if hold.state is not HoldState.WAITING:
        return
    settings = work.state.settings
    request = protocol.Reserve(
        hold.name,
        settings.port_low,
        settings.port_high,
        # In a network of its own nobody else could have the port.
        "" if launcher.recipe.networked else settings.lock_dir,
        avoid=(*assignment.avoid_ports, *_awaited_ports(work, hold)),
        reuse=hold.reuse,
    )
    if work.say(launcher.launcher_id, request):
        work.put_hold(replace(hold, state=HoldState.ASKED))


def _awaited_ports(work: Work, hold: PortReservation) -> tuple[int, ...]:
    """Ports that other tasks' next launchers are to claim again; until then nothing but this keeps them."""
    others = (each for each in work.state.holds.values() if each.name != hold.name)
    return tuple(sorted({each.port or each.reuse or 0 for each in others} - {0, hold.reuse}))


def _release(work: Work, wants: Wants) -> None:
    wanted = wants.holds
    using = {
        (each.plan_id, each.id.task.member, each.id.task.job)
        for each in work.state.attempts.values()
        if each.alive
    }
    for hold in list(work.state.holds.values()):
        if hold.name not in wanted and (hold.plan_id, hold.member, hold.job) not in using:
            work.say(hold.launcher_id, protocol.Release(hold.name))
            del work.state.holds[hold.name]


def _start(work: Work, wants: Wants, assignment: Assignment) -> None:
    state = work.state
    if not state.may_run(work.now_ms) or not _predecessors_dead(work, assignment):
        return
    if not _gpus_free(work, assignment):
        return
    has_all = _has_all(work, assignment)
    spec = _spec(work, wants, assignment)
    if spec is None:
        return
    hold = _own_hold(work, assignment)
    brought = code.standing(work, assignment)
    if assignment.moves and not brought.done:
        return
    if hold is None:
        hold = _new_hold(work, assignment, _port_of(work, assignment, spec))
        _pursue(work, hold, assignment)
        return
    if hold.state is HoldState.FAILED:
        attempt = _new_attempt(work, wants, assignment, hold)
        failure = f"no port: {hold.failure}"
        work.end(attempt, End(ExitReason.LAUNCHER_LOST, None, None, work.now_ms, True, failure))
        # The next attempt asks again.
        del work.state.holds[hold.name]
        return
    launcher = state.launchers.get(hold.launcher_id)
    if hold.state is not HoldState.HELD or launcher is None or not launcher.welcomed or not launcher.usable:
        return
    reach = state.reach_of(launcher.launcher_id)
    if reach is None:
        return
    if not assignment.moves and _told_elsewhere(assignment, spec, address_of(reach, hold)):
        attempt = _new_attempt(work, wants, assignment, hold)
        detail = f"others know it by an address that is gone; this node's is now {address_of(reach, hold)}"
        work.end(
            attempt,
            End(ExitReason.LAUNCHER_LOST, None, None, work.now_ms, True, detail, address_lost=True),
        )
        return
    if any(True for _ in work.live_on(launcher.launcher_id)) or not report.memory_free(work, assignment):
        return
    if not has_all or not _knows_how(work, assignment, launcher):
        return
    _launch(work, wants, assignment, _new_attempt(work, wants, assignment, hold))


def _own_hold(work: Work, assignment: Assignment) -> PortReservation | None:
    """The reservation of an assignment; not that of its earlier attempt with other GPUs."""
    hold = work.state.holds.get(name_of(assignment))
    launcher = work.state.launchers.get(hold.launcher_id) if hold is not None else None
    same = launcher is None or launcher.recipe == _recipe(work, assignment)
    if hold is None or same or not assignment.joins:
        return hold
    work.say(hold.launcher_id, protocol.Release(hold.name))
    del work.state.holds[hold.name]
    return None


def _knows_how(work: Work, assignment: Assignment, launcher: Launcher) -> bool:
    """Whether a launcher can do all that a task needs; one of an earlier release gives way."""
    lacks = ""
    if assignment.checkpoint_adopt and not launcher.adopts:
        lacks = "cannot adopt a path"
    if assignment.secrets and not launcher.keeps_secrets:
        lacks = "cannot keep secrets"
    if assignment.joins and not launcher.joins:
        lacks = "cannot make a program join"
    if lacks:
        work.doom(launcher, f"it is of an earlier release, which {lacks}")
    return not lacks


def _predecessors_dead(work: Work, assignment: Assignment) -> bool:
    """Inside a generation attempt n waits until all before it are confirmed dead; none may be after it."""
    for attempt in work.state.attempts.values():
        if attempt.id.task != assignment.task or attempt.id.generation != assignment.generation:
            continue
        # And etcd knows that it is: the leader never sees two attempts of a task run.
        if attempt.alive or attempt.told < ReportLevel.DEAD or attempt.id.number > assignment.attempt:
            return False
    return True


def _has_all(work: Work, assignment: Assignment) -> bool:
    """Whether output directory and secrets are there; asks for both at once."""
    has_outputs, asked = _outputs_ready(work, assignment), secrets.standing(work, assignment)
    return has_outputs and asked.done


def _outputs_ready(work: Work, assignment: Assignment) -> bool:
    """Whether its output directory is there; asks for it, once, after all attempts before it are dead."""
    outputs, attempt = work.state.outputs, assignment.attempt_id
    if not assignment.output_budget_bytes:
        return True  # an earlier release has decided on it
    if attempt not in outputs:
        outputs[attempt] = work.now_ms
        work.emit(
            PrepareOutputs(
                attempt,
                assignment.job_uuid,
                assignment.checkpoint_uri,
                assignment.output_budget_bytes,
                assignment.keep_work_ms,
                assignment.follow,
                _exports(assignment),
            )
        )
    return outputs[attempt] < 0


def _exports(assignment: Assignment) -> Exports | None:
    if assignment.serving is None:
        return None
    env = {name: value for name, value in assignment.env.items() if name in OF_A_PYTHON}
    return Exports(assignment.serving, assignment.argv[0], assignment.workdir, env, assignment.environment)


def _gpus_free(work: Work, assignment: Assignment) -> bool:
    """Rule 5: whoever had one of its GPUs is confirmed dead, whichever job it is of, or shares it too."""
    return not any(
        attempt.alive and not (attempt.gpus_shared and assignment.gpus_shared)
        for attempt in work.state.attempts.values()
        if not set(attempt.gpus).isdisjoint(assignment.gpus)
    )


def _new_attempt(work: Work, wants: Wants, assignment: Assignment, hold: PortReservation) -> Attempt:
    return work.put_attempt(
        Attempt(
            assignment.attempt_id,
            assignment.job_uuid,
            assignment.plan_id,
            hold.launcher_id,
            hold.port,
            address_of(work.state.reach_of(hold.launcher_id), hold),
            warm=warmth.starts_warm(work, assignment, wants.switches[assignment.job]),
            patterns=assignment.step_patterns,
            watch_nan=assignment.watch_nan,
            hold_ms=assignment.hold_on_failure_ms,
            gpus=assignment.gpus,
            gpus_shared=assignment.gpus_shared,
        )
    )


def _launch(work: Work, wants: Wants, assignment: Assignment, attempt: Attempt) -> None:
    launcher = work.state.launchers.get(attempt.launcher_id)
    spec = _spec(work, wants, assignment)
    hold = work.state.holds.get(name_of(assignment))
    if launcher is None or not launcher.welcomed or launcher.doomed or spec is None or hold is None:
        return
    if hold.state is not HoldState.HELD or not work.state.may_run(work.now_ms):
        return
    asked = secrets.standing(work, assignment)
    if not asked.done or not firewall.admits(work, attempt, spec):
        return
    work.put_attempt(replace(attempt, asked=True))
    if assignment.secrets:
        work.put_launcher(replace(launcher, had_secrets=True))
    base = wants.switches[assignment.job].base
    launch = Launch(launcher.launcher_id, assignment, spec, base, hold.name, attempt.warm, attempt.address)
    work.emit(launch)


def _spec(work: Work, wants: Wants, assignment: Assignment) -> ClusterSpec | None:
    """The ClusterSpec of an assignment, in the edition that is in force; None while it is not here."""
    state = work.state
    found = state.specs.get(assignment.plan_id)
    if found is not None and found.edition < wants.switches[assignment.job].edition:
        found = None
    if found is None and work.now_ms >= state.reading.get(assignment.plan_id, 0):
        state.reading[assignment.plan_id] = work.now_ms + SPEC_AGAIN_MS
        work.emit(ReadSpec(assignment.job, assignment.plan_id))
    return found


def _port_of(work: Work, assignment: Assignment, spec: ClusterSpec) -> int | None:
    """The port that others were told of at this node; None for a task that may have moved here by itself."""
    try:
        address = spec.address(assignment.role, assignment.index)
    except (KeyError, IndexError):
        return None
    recipe = _recipe(work, assignment)
    launcher = pool.find(work, recipe, assignment.task.member)
    here = Reach(work.state.settings.host) if not recipe.networked else launcher and launcher.reach
    if not here or assignment.moves or not is_at(address, here.host):
        return None
    return port_of(address)


def _told_elsewhere(assignment: Assignment, spec: ClusterSpec, address: str) -> bool:
    try:
        return spec.address(assignment.role, assignment.index) != address
    except (KeyError, IndexError):
        return False  # said when it is started
