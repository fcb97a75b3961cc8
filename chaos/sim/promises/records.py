"""Promises about what is written down: restarts, appeals, quarantines, and what a manifest says."""

from __future__ import annotations

import json
import re
from dataclasses import replace

from chaos.sim.cluster.etcd import Effect
from chaos.sim.cluster.loop import Life
from chaos.sim.cluster.programs import Program
from chaos.sim.cluster.saves import files_below
from chaos.sim.promises.bases import is_whole
from chaos.sim.promises.evidence import Evidence, Zombie
from supervisor.contract import codec, keys
from supervisor.contract.checkpoint import CheckpointRef, CommitRecord, CommitState
from supervisor.contract.desired import Assignment, Cordon, GpuQuarantine, JobPhase, JobSwitch, LostMark
from supervisor.contract.ids import AttemptId, TaskId
from supervisor.contract.incident import Cause, Incident, Outcome
from supervisor.contract.job.spec import Rule, Scope
from supervisor.contract.observed import AttemptReport, Incarnation

RECORDED = "a restart has a record and is charged"
APPEAL_S = 2.5
"""A leader that hears an appeal withdraws the mark; its watch may have been silent for two seconds."""
OBEYED_S = 3.0
STEPPED_S = 1.0
_ATTEMPT = re.compile(r"-a(\d+)(#\d+)?$", re.ASCII)
"""In the id of an incident of one attempt, which may be the second of that name."""
_SAVED = re.compile(r"g\d+-s(\d+)", re.ASCII)
ECHO_S = 1.5
"""A launcher's loss is noticed after two seconds (rule 4)."""


def _is_lively(program: Program, now_s: float) -> bool:
    """Whether it has just started, or steps now and a moment ago: who stood still then was judged by that."""
    ages_s = [now_s - at_s for at_s, _ in program.steps]
    if not ages_s:
        return now_s - program.started_s < STEPPED_S
    return ages_s[-1] < STEPPED_S and any(STEPPED_S <= age_s < 2 * STEPPED_S for age_s in ages_s)


class Records:
    """Looks at every write that takes effect, before the picture has taken it in, and at the store."""

    def __init__(self, seen: Evidence) -> None:
        self._seen = seen
        self._world = seen.world
        self._picture = seen.picture
        self._appealed_s: dict[str, float] = {}
        self._ended_s: dict[str, float] = {}
        self._described: set[str] = set()
        self._started: set[tuple[str, AttemptId]] = set()
        self._charged: set[tuple[str, str]] = set()

    def forget(self) -> None:
        """Etcd has lost all that was written."""
        self._appealed_s.clear()
        self._ended_s.clear()

    def on_effect(self, effect: Effect) -> None:
        """A write is about to take effect."""
        for key in effect.deleted:
            if key.startswith("lost/"):
                self._appealed_s.pop(key.replace("lost/", "appeals/", 1), None)
        for key, raw in effect.puts.items():
            if key.startswith("switches/"):
                switch = codec.decode(JobSwitch, raw)
                self._check_restart(effect, switch)
                self._check_success(switch)
                self._check_saver(switch)
                self._check_given_up(switch)
                self._note_end(switch)
            else:
                self._on_put(effect, key, raw)

    def _on_put(self, effect: Effect, key: str, raw: bytes) -> None:
        match key.split("/", maxsplit=1)[0]:
            case "commits" if key in effect.before:
                before = codec.decode(CommitRecord, effect.before[key].value)
                self._check_withdrawn(before, key, codec.decode(CommitRecord, raw))
            case "appeals" if self._picture.has(key.replace("appeals/", "lost/", 1)):
                self._appealed_s.setdefault(key, effect.at_s)
            case "lost" if key in effect.before:
                self._check_final(effect, key, codec.decode(LostMark, raw))
            case "attempts":
                self._check_dead(codec.decode(AttemptReport, raw))
            case "assignments" if key in effect.before:
                old = codec.decode(Assignment, effect.before[key].value)
                self._check_in_place(effect, old, codec.decode(Assignment, raw))
            case "quarantines":
                self._check_seen(codec.decode(GpuQuarantine, raw))
            case "cordons":
                self._check_cordon(effect, codec.decode(Cordon, raw))
            case "incidents":
                incident = codec.decode(Incident, raw)
                self._check_spared(incident)
                self._check_steps(incident)
                if key not in effect.before:
                    self._check_cause(effect, incident)
            case _:
                pass

    def _check_success(self, switch: JobSwitch) -> None:
        """Rule 7: a job succeeds when its last finished save is committed, or its switch says otherwise."""
        before = self._picture.switch(switch.job)
        if before is None or before.phase is switch.phase or switch.phase is not JobPhase.SUCCEEDED:
            return
        saved = self._world.training.last_save(switch.job)
        committed = max((ref.step for ref in self._picture.committed(switch.job)), default=-1)
        if committed < saved and not (switch.uncommitted and self._names(switch, saved)):
            text = f"{switch.job}: {saved} is saved, {committed} is committed: {switch.reason}"
            self._seen.broken("success comes after the last commit", text)

    def _names(self, switch: JobSwitch, saved: int) -> bool:
        """Whether the warning names this save, or its node cannot be asked for its name.

        A save may have a higher number than its step, by one for each recovery.
        """
        if any(int(step) >= saved for step in _SAVED.findall(switch.uncommitted)):
            return True
        program = self._world.training.last_saver(switch.job)
        seat = self._world.nodes[program.machine.name] if program is not None else None
        process = seat.process if seat is not None else None
        away = {*self._world.weather.cut_from_supervisors, *self._world.weather.cut_from_etcd}
        return process is None or process.life is not Life.RUNNING or process.name.split("#")[0] in away

    def _check_saver(self, switch: JobSwitch) -> None:
        """Rule 7.3: a member of the plan in force saves, so that some node commits."""
        plan = self._picture.plan(switch.job, switch.plan_id)
        if plan is None or switch.phase.ended or plan.generation != switch.generation:
            return
        members = {each.member for each in plan.placements}
        if switch.saver not in members:
            text = f"{switch.job}: {switch.saver or 'nobody'} saves, and {sorted(members)} are in force"
            self._seen.broken("a member of the plan in force saves", text)

    def _check_given_up(self, switch: JobSwitch) -> None:
        """Rule 8: what two generations could not restore, one after the other, is left alone by the third."""
        before = self._picture.switch(switch.job)
        if before is None or switch.generation <= before.generation or switch.base is None:
            return
        asked = switch.restart_serial > before.restart_serial or before.job_uuid != switch.job_uuid
        others = set(self._picture.committed(switch.job, before)) - {switch.base}
        latest = (before.generation, before.generation - 1)
        if others and not asked and all(self._refused(switch.job, each) == {switch.base} for each in latest):
            self._seen.broken("a base that nobody can restore is given up", f"{switch.base} is tried again")

    def _refused(self, job: str, generation: int) -> set[CheckpointRef | None]:
        """The base of a generation that failed of nothing but that; empty where anything else happened."""
        found = [
            codec.decode(Incident, self._picture.must(key))
            for key in self._picture.under(f"incidents/{job}/")
        ]
        ends = [each for each in found if each.from_generation == generation]
        roots = [each for each in ends if each.cause is not Cause.PEER_LOST]
        if any(each.cause is not Cause.DATA_LOSS for each in roots):
            return set()
        return {each.base for each in roots}

    def on_program(self, what: str, program: Program) -> None:
        """Something happened to a program."""
        if what == "ended":
            self._ended_s[str(program.attempt)] = self._world.loop.time()
        elif what == "started":
            # The operator may begin a job anew, whose generations count on.
            this = program.job_uuid, program.attempt
            if this in self._started:
                self._seen.broken("an attempt is started once", f"{program.attempt} starts again")
            self._started.add(this)
            self._check_turn(program.attempt, program.machine.name)

    def _check_turn(self, attempt: AttemptId, node: str) -> None:
        """Rule 6: on its node each attempt waits until etcd knows that the one before is dead.

        One that moves there waits for a lost node instead (rule 3).
        """
        holder = self._picture.raw(keys.node(node))
        raw = self._picture.raw(keys.attempt(replace(attempt, number=max(1, attempt.number - 1))))
        if attempt.number == 1 or raw is None or holder is None:
            return
        report, me = codec.decode(AttemptReport, raw), codec.decode(Incarnation, holder)
        same = report.node == node and report.incarnation in (me.incarnation, *me.succeeds)
        if same and not report.confirmed_dead:
            self._seen.broken("the next attempt waits for the death of the one before", f"{attempt}")

    def _check_dead(self, report: AttemptReport) -> None:
        """Rule 4: nothing of what is reported dead is there, by the machine's own truth."""
        if not report.confirmed_dead:
            return
        for program in self._world.training.alive(report.job):
            if program.attempt == report.attempt and program.machine.name == report.node:
                self._seen.broken("confirmed dead is dead", f"{report.attempt} is {program.row}")

    def _check_in_place(self, effect: Effect, before: Assignment, now: Assignment) -> None:
        """Rules 6 and 13: who has ended starts again in place when etcd knows that it is dead, on record.

        A node that has lost its memory may be given back what it lost: that waits for its loss (rule 3).
        """
        raw = self._picture.raw(keys.attempt(before.attempt_id))
        end = codec.decode(AttemptReport, raw).exit if raw is not None else None
        lost = self._picture.has(keys.lost(before.node, before.incarnation))
        stays = now.incarnation == before.incarnation or not lost
        if stays and now.attempt > before.attempt and end is not None and not end.confirmed_dead:
            asked = any(
                codec.decode(Incident, value).cause is Cause.OPERATOR
                for key, value in effect.puts.items()
                if key.startswith("incidents/")
            )
            if not asked:
                self._seen.broken(
                    "the next attempt waits for the death of the one before", f"{now.attempt_id}"
                )
        raw = effect.puts.get(keys.switch(now.job))
        if now.attempt > before.attempt and raw is not None:
            key = keys.incident_record(now.job, codec.decode(JobSwitch, raw).incident)
            record = effect.puts.get(key, self._picture.raw(key))
            if record is None or codec.decode(Incident, record).outcome is not Outcome.OPEN:
                self._seen.broken(RECORDED, f"{now.attempt_id} is started for {key}, which is over")

    def _note_end(self, switch: JobSwitch) -> None:
        """Note the programs that must end at once: the job stops without time to save, or has ended."""
        before = self._picture.switch(switch.job)
        if before is None or before.phase is switch.phase or switch.save_grace_ms:
            return
        if switch.phase is JobPhase.STOPPING or switch.phase.ended:
            for program in self._world.training.alive(switch.job):
                if program.attempt.task.member not in switch.held:
                    self._seen.zombies.setdefault(id(program), Zombie(self._world.loop.time()))

    def _check_restart(self, effect: Effect, switch: JobSwitch) -> None:
        """Rule 13: each restart has a record, and is charged in the transaction that makes it."""
        before = self._picture.switch(switch.job)
        if before is None or before.job_uuid != switch.job_uuid or switch.phase.ended:
            return
        flips = switch.generation > before.generation
        if not switch.incident or (switch.incident == before.incident and not flips):
            return
        key = keys.incident_record(switch.job, switch.incident)
        raw = effect.puts.get(key, self._picture.raw(key))
        if raw is None:
            self._seen.broken(RECORDED, f"{switch.incident} restarts {switch.job} without a record")
            return
        incident = codec.decode(Incident, raw)
        if flips and incident.outcome is not Outcome.OPEN:
            self._seen.broken(RECORDED, f"{incident.id} is over, and begins generation {switch.generation}")
        now, old = switch.ledger, before.ledger
        spent = now.restarts - old.restarts
        # What one task's restart was charged for may take all of them after it, also when another is between.
        this = switch.job_uuid, incident.id
        due = incident.cause is not Cause.SUBMITTED and this not in self._charged
        self._charged.add(this)
        if switch.incident != before.incident and spent != due:
            self._seen.broken(RECORDED, f"{switch.incident} ({incident.cause.value}): {old} -> {now}")

    def _check_withdrawn(self, before: CommitRecord, key: str, record: CommitRecord) -> None:
        """Rules 8 and 9: what is bad is bad, and what fell off the lineage may be wanted yet."""
        if before.state is not CommitState.COMMITTED or record.state is CommitState.COMMITTED:
            return
        if record.state is CommitState.QUARANTINED and not record.suspected:
            if is_whole(self._world.stored(), record) and record.path not in self._world.rotten:
                self._seen.broken("only what is bad is quarantined", f"{record.ref}: {record.reason}")
        elif record.state is CommitState.QUARANTINED:
            self._seen.count("suspected checkpoints")
            job = keys.parse(key)[0]
            whole = self._seen.whole.get((job, record.ref.generation), {record.ref})
            if record.ref in whole and record.ref not in self._seen.stillborn.get(job, ()):
                self._seen.broken("only a base that nothing starts from is suspected", str(record.ref))
        elif record.state is CommitState.COLLECTING:
            switch = self._picture.must_switch(keys.parse(key)[0])
            mine = record.job_uuid == switch.job_uuid
            if mine and record.ref not in self._picture.committed(switch.job):
                # No run lasts for days.
                self._seen.broken("what fell off the lineage stays for days", f"{record.ref} is collected")

    def _check_final(self, effect: Effect, key: str, mark: LostMark) -> None:
        """Rule 3: a flip uses no mark that its agent, alive, has contested for long."""
        before = codec.decode(LostMark, effect.before[key].value)
        since_s = self._appealed_s.get(key.replace("lost/", "appeals/", 1))
        if mark.final and not before.final and since_s is not None and effect.at_s - since_s > APPEAL_S:
            self._seen.broken("an appeal is heard", f"{key}, {effect.at_s - since_s:.1f} s after the appeal")

    def _check_cordon(self, effect: Effect, cordon: Cordon) -> None:
        """Rule 10: given up is who did not obey, by what really runs there."""
        if not cordon.incarnation or "did not end" not in cordon.reason:
            return
        words = cordon.reason.split()
        ended_s = next((self._ended_s[word] for word in words if word in self._ended_s), effect.at_s)
        if effect.at_s - ended_s > OBEYED_S:
            self._seen.broken("who obeys is not given up", f"{cordon.node}: {cordon.reason}")

    def _check_steps(self, incident: Incident) -> None:
        """Rule 13: no number of an incident is more than its programs have printed."""
        ours = [each for each in self._world.training.programs if each.attempt.task.job == incident.job]
        if any(each.mute or each.epochs for each in ours):
            return
        number = _ATTEMPT.search(incident.id)
        member = (incident.member, incident.from_generation, int(number[1]) if number else 0)
        printed = {step for each in ours for _, step in each.steps}
        failed = [
            each.last_step
            for each in ours
            if (each.attempt.task.member, each.attempt.generation, each.attempt.number) == member
        ]
        furthest = max(printed, default=-1)
        began = incident.to_base.step if incident.to_base is not None and incident.scope is Scope.ALL else 0
        if 0 <= incident.to_step < began:
            began = incident.to_step  # it does not restore
        wrong = {
            "from_step": incident.from_step >= 0 and incident.from_step not in printed,
            "to_step": incident.to_step >= 0 and incident.to_step not in printed,
            "last_step": bool(failed) and incident.last_step > max(failed),
            "lost_steps": incident.lost_steps > 0 and began + incident.lost_steps > furthest,
        }
        for name in [each for each in wrong if wrong[each]]:
            text = f"{incident.id}: {name} is {getattr(incident, name)}; the furthest step is {furthest}"
            self._seen.broken("an incident tells what was seen", text)

    def _check_cause(self, effect: Effect, incident: Incident) -> None:
        """Rules 10 and 13: what cannot be seen is not known to be wrong, and who steps does not hang."""
        if incident.cause is Cause.HANG:
            self._check_hang(effect, incident)
        if incident.cause is Cause.PEER_LOST and incident.member:
            self._check_echo(effect.at_s, incident)
        if incident.cause is not Cause.GPU:
            return
        self._check_board(incident.node, f"{incident.id}: {incident.detail}")

    def _check_seen(self, quarantine: GpuQuarantine) -> None:
        if not quarantine.lifted:
            self._check_board(quarantine.node, f"{quarantine.uuid}: {quarantine.reason}")

    def _check_board(self, node: str, what: str) -> None:
        """Check that no GPU is quarantined for being invisible alone, without a fault."""
        seat = self._world.nodes.get(node)
        board = seat.machine.gpus if seat is not None and seat.machine is not None else None
        if board is not None and board.hung and board.faults == 0:
            self._seen.broken("what cannot be seen is left alone", what)

    def _check_echo(self, now_s: float, incident: Incident) -> None:
        """Rule 13: what speaks of a lost peer is no cause before that peer's own loss could be known."""
        task, number = TaskId.from_member(incident.job, incident.member), _ATTEMPT.search(incident.id)
        assert number is not None, incident.id
        attempt = AttemptId(task, incident.from_generation, int(number[1]))
        if now_s - self._ended_s.get(str(attempt), -ECHO_S) < ECHO_S:
            self._seen.broken("an echo is no cause", f"{incident.id}: {incident.detail}")

    def _check_spared(self, incident: Incident) -> None:
        """Rule 13: a job that says nothing of hangs is failed for none: its program may be healthy."""
        if incident.cause is not Cause.HANG or incident.outcome is not Outcome.FAILED:
            return
        spec = self._picture.spec(incident.job)
        if spec.progress.act_after_ms is None and spec.restart.rules.get("hang") is not Rule.FAIL:
            self._seen.broken("no healthy program is failed for a hang", f"{incident.id}: {incident.detail}")

    def _check_hang(self, effect: Effect, incident: Incident) -> None:
        """Rule 13: neither the blamed task steps, nor one that is restarted beside it."""
        now_s, orders = effect.at_s, effect.puts.keys() & effect.before.keys()
        beside = {keys.parse(key)[-1] for key in orders if key.startswith("assignments/")}
        for program in self._world.training.alive(incident.job):
            task = program.attempt.task
            if not program.trains or (incident.member and task.member not in {incident.member, *beside}):
                continue
            default = self._picture.spec(incident.job).progress.act_after_ms is None
            spins = default and program.spins and now_s < program.rests_until_s
            if program.running and (spins or _is_lively(program, now_s)):
                self._seen.broken("who steps does not hang", f"{program.attempt}: {incident.detail}")

    # The store.

    def check_disk(self) -> None:
        """Rule 7: a directory that says what it holds, holds it."""
        stored = self._world.stored()
        told = {path for path, files in stored.items() if "manifest.json" in files and path[:1] != "."}
        fresh, self._described = told - self._described, told
        for directory in sorted(fresh):
            files = files_below(stored, directory)
            for file in json.loads(files["manifest.json"])["files"]:
                found = files.get(file["name"])
                if found is None or len(found) != file["size"]:
                    self._seen.broken("a manifest comes after its data", f"{directory} lacks {file['name']}")
