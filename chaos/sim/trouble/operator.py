"""The operator of a run: what is asked of the leader at the worst moment, and repaired afterwards."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import random
from collections.abc import Callable, Coroutine

from chaos.sim.cluster.world import World
from chaos.sim.promises.checkers import Promises
from chaos.sim.trouble.fault import Fault
from chaos.sim.trouble.flaws import Flawed
from chaos.sim.trouble.imports import STEPS, ended, put_into_store
from supervisor.contract.code import CodePart
from supervisor.contract.errors import Conflict, NotFound, TfSupervisorError
from supervisor.contract.job.spec import CodeRef, JobSpec, resized
from supervisor.contract.views.checkpoints import (
    AdoptRequest,
    CollectRequest,
    ImportPlace,
    ImportRequest,
    VerifyRequest,
)
from supervisor.contract.views.jobs import Accepted, JobRequest, SubmitMode, SubmitRequest
from supervisor.contract.views.nodes import CordonRequest, UncordonRequest
from supervisor.control.decide.facts.history import records_are_lost
from supervisor.control.decide.snapshot import Snapshot
from supervisor.control.services.jobs import JobService

Request = Callable[[JobService], Coroutine[object, object, object]]

MOST_WORKERS = 3
ANSWER_S = 3.0
PATIENCE_S = 12.0
"""With what waits for D, in a fast cluster."""
GIVES_UP_S = 40.0


class Operator:
    """Talks to whoever leads. A request may well fail, and then the operator is told.

    `jobs`: all that are to run. `late`: one that is submitted amid trouble, if the schedule says so.
    `importing`: so many imports are under way. `recalling`: jobs that etcd has lost are being taken up again.
    """

    def __init__(self, world: World, promises: Promises, rng: random.Random) -> None:
        self._world = world
        self._promises = promises
        self._rng = rng
        self.jobs: dict[str, JobSpec] = {}
        self.late: JobSpec | None = None
        self.importing = 0
        self.recalling = False
        self._shipped: dict[str, CodePart] = {}
        world.etcd_lost.append(self._notice_loss)

    def snapshot(self) -> Snapshot | None:
        """The leader's snapshot, if there is a leader."""
        seat = self._world.leader()
        return seat.control.job_service.snapshot() if seat is not None and seat.control is not None else None

    async def ask(self, what: str, request: Request, timeout_s: float = ANSWER_S) -> object:
        """One request to the leader, if there is one; returns the answer, or why it failed; None for none."""
        world = self._world
        seat = world.leader()
        if seat is None or seat.control is None:
            return None
        try:
            answer = await world.call(seat, request(seat.control.job_service), timeout_s)
        except (TfSupervisorError, TimeoutError, Flawed) as error:
            world.say(f"operator: {what} failed: {error!r}")
            return error
        world.say(f"operator: {what}: {answer}")
        return answer

    async def ship(self, whose: str) -> CodeRef:
        """Upload a program, so that a job can need it on every node."""
        seat = self._world.leader()
        assert seat is not None
        assert seat.control is not None
        data = f"the program of {whose}, seed {self._world.seed}".encode()
        ref = CodeRef(hashlib.sha256(data).hexdigest(), len(data))
        part = CodePart(ref.digest, ref.size, 0, base64.b64encode(data).decode())
        self._shipped[ref.digest] = part
        answer = await self._world.call(seat, seat.control.job_service.uploads.put(part))
        assert answer.complete
        return ref

    async def submit(self, spec: JobSpec) -> None:
        """A new job."""
        self.jobs[spec.name] = spec
        await self.ask(f"submit {spec.name}", lambda service: service.submissions.submit(SubmitRequest(spec)))

    async def stop(self, job: str) -> None:
        """`supervisorctl stop`."""
        await self.ask("operator_stop", lambda service: service.stop(job))

    async def act(self, fault: Fault) -> None:
        """Carry out an operator's command of the schedule."""
        if fault.kind == "operator_submit" and self.late is not None:
            await self.submit(self.late)
            return
        names = [job for job in self.jobs if self._promises.is_known(job)]
        if not names:
            return
        job = names[fault.pick // 7 % len(names)]
        nodes = list(self._world.nodes)
        node = nodes[fault.pick % len(nodes)]
        if fault.kind == "operator_import":
            await self._import(job, fault.pick)
            return
        await self.ask(fault.kind, self._request(fault, job, node))

    def _request(self, fault: Fault, job: str, node: str) -> Request:
        kind, spec = fault.kind, self.jobs[job]
        # Workers first: they are the ones that can come back alone.
        members = sorted((task.member for task in spec.tasks()), key=_is_no_worker)
        workers = 1 + fault.pick % MOST_WORKERS
        fixed: dict[str, Request] = {
            "operator_restart": lambda service: service.restart(job),
            "operator_restart_task": lambda service: service.restart(job, members[fault.pick % len(members)]),
            "operator_save": lambda service: service.stop(job, save=True),
            "operator_stop": lambda service: service.stop(job),
            "operator_delete": lambda service: service.delete(job),
            "operator_start": lambda service: service.start(job),
            "operator_resume": lambda service: service.submissions.submit(
                SubmitRequest(spec, SubmitMode.RESUME)
            ),
            "operator_fresh": lambda service: service.submissions.submit(
                SubmitRequest(spec, SubmitMode.FRESH)
            ),
            "operator_drain": lambda service: service.nodes.cordon(CordonRequest(node, drain=True)),
            "operator_cordon": lambda service: service.nodes.cordon(CordonRequest(node)),
            "operator_uncordon": lambda service: service.nodes.uncordon(UncordonRequest(node)),
            "operator_pause": lambda service: _pause(service, job if fault.pick % 2 else ""),
            "operator_go_on": lambda service: _go_on(service, job if fault.pick % 2 else ""),
            "operator_verify": lambda service: _verify(service, job),
            "operator_collect": lambda service: service.checkpoints.collect(CollectRequest(job)),
            "operator_reshape": lambda service: _reshape(service, spec, workers),
        }
        if kind in fixed:
            return fixed[kind]
        known = self._promises.restorable(job)
        ref = self._rng.choice(known) if known else None
        if kind == "operator_pin" and ref is not None:
            pinned = self._rng.random() < 0.7
            return lambda service: service.checkpoints.pin(job, ref, pinned=pinned)
        return lambda service: service.restart(job, from_ref=ref)

    async def _import(self, job: str, pick: int) -> None:
        """Stop it, bring a checkpoint in, start it: where one fails the next is tried all the same."""
        world, rng = self._world, random.Random(f"import {self._world.seed} {pick}")
        self.importing += 1
        try:
            await self.stop(job)
            if not await ended(world, self._promises, job):
                return
            place = await self.ask(
                "place", lambda service: service.checkpoints.place(ImportRequest(job, rng.choice(STEPS)))
            )
            if isinstance(place, ImportPlace):
                try:
                    path = await put_into_store(world, place, rng)
                except TfSupervisorError as error:
                    world.say(f"operator: import failed: {error!r}")
                else:
                    await self.ask("adopt", lambda service: _adopt(service, AdoptRequest(job, path)))
            await self.ask("start", lambda service: service.start(job))
        finally:
            self.importing -= 1

    async def repair(self) -> None:
        """Give back, one at a time, what was taken out of service; submit again what was not taken."""
        snap = self.snapshot()
        if snap is None or self.recalling:
            return
        for job in self.jobs:
            if self._promises.is_forgotten(job):
                await self._recall(snap, job)
                return
        missing = [spec for job, spec in self.jobs.items() if job not in snap.jobs]
        if missing:
            # What an unfinished submit has left is its own, and so is what a deleted job has.
            again = SubmitRequest(missing[0], SubmitMode.FRESH)
            if again.spec.code is not None:
                await self._ship_again(again.spec.code)
            await self.ask(f"submit {again.spec.name}", lambda service: service.submissions.submit(again))
            return
        if await self._let_go_on(snap):
            return
        for held in snap.quarantines.values():
            if not held.value.lifted:
                await self._give_back(UncordonRequest(held.value.node, held.value.uuid))
                return
        for node in snap.nodes.values():
            if node.cordon is not None and not node.cordon.value.incarnation:
                await self._give_back(UncordonRequest(node.node))
                return

    async def _let_go_on(self, snap: Snapshot) -> bool:
        """Release a job that is parked, or end a pause, if there is one."""
        for job in self.jobs:
            if self._promises.is_parked(job):
                await self.ask("release", _released(job))
                return True
        for job in ("", *self.jobs):
            if _is_paused(snap, job):
                await self.ask("go on", _resumed(job))
                return True
        return False

    def _notice_loss(self) -> None:
        if not self.recalling:
            self.recalling = True
            self._world.loop.begin(None, self._recall_all())

    async def _recall_all(self) -> None:
        """Soon after etcd has lost everything, do what docs/checkpoints.md tells, in whatever trouble."""
        world, rng = self._world, random.Random(f"recall {self._world.seed} {self._world.loop.time()}")
        until_s = world.loop.time() + GIVES_UP_S * world.pace
        try:
            while world.loop.time() < until_s:
                await asyncio.sleep(world.pace * rng.uniform(0.1, 1.0))
                snap = self.snapshot()
                left = [job for job in self.jobs if self._promises.is_forgotten(job)]
                if not left:
                    return
                if snap is not None:
                    await self._recall(snap, rng.choice(left))
        finally:
            self.recalling = False

    async def _recall(self, snap: Snapshot, job: str) -> None:
        """The next step of taking up a job that etcd has lost."""
        spec, picture = self.jobs[job], snap.jobs.get(job)
        if picture is not None and records_are_lost(picture):
            patience_s = PATIENCE_S * self._world.pace + self._world.vows.promise_s
            await self.ask("rebuild", lambda service: _rebuild(service, job), patience_s)
        elif picture is not None:
            await self.ask("start", lambda service: service.start(job))
        elif spec.code is not None and not _is_complete(snap, spec.code):
            await self._ship_again(spec.code)
        else:
            again = SubmitRequest(spec, SubmitMode.RESUME)
            if isinstance(
                await self.ask(f"submit {job}", lambda service: service.submissions.submit(again)), NotFound
            ):
                # Nothing was committed by then.
                afresh = SubmitRequest(spec, SubmitMode.FRESH)
                await self.ask(f"submit {job}", lambda service: service.submissions.submit(afresh))

    async def _ship_again(self, ref: CodeRef) -> None:
        part = self._shipped[ref.digest]
        await self.ask("ship", lambda service: service.uploads.put(part))

    async def _give_back(self, where: UncordonRequest) -> None:
        await self.ask("uncordon", lambda service: service.nodes.uncordon(where))


def _is_no_worker(member: str) -> bool:
    return not member.startswith("worker")


async def _pause(service: JobService, job: str) -> Accepted:
    """Hold restarts of a job, or of all."""
    return await (service.pauses.pause_job(job, "sim") if job else service.pauses.pause("sim"))


async def _go_on(service: JobService, job: str) -> Accepted:
    return await (service.pauses.resume_job(job) if job else service.pauses.resume())


def _released(job: str) -> Request:
    return lambda service: service.release(job)


def _resumed(job: str) -> Request:
    return lambda service: _go_on(service, job)


def _is_paused(snap: Snapshot, job: str) -> bool:
    """Whether an operator has paused a job, or all: the brake must end by itself."""
    if job:
        return job in snap.jobs and snap.jobs[job].intent.value.paused is not None
    return snap.pause is not None and snap.pause.value.in_force and not snap.pause.value.brake


async def _verify(service: JobService, job: str) -> str:
    """Read all of a job's checkpoints back."""
    end = ""
    async for sign in service.checkpoints.verify(VerifyRequest(job)):
        end = sign.end
    return end


async def _adopt(service: JobService, request: AdoptRequest) -> str:
    end = ""
    async for sign in service.checkpoints.adopt(request):
        end = sign.end
    return end


def _is_complete(snap: Snapshot, code: CodeRef) -> bool:
    held = snap.codes.get(code.digest)
    return held is not None and held.value.complete


async def _rebuild(service: JobService, job: str) -> str:
    end = ""
    async for sign in service.checkpoints.rebuild(JobRequest(job)):
        end = sign.end
    return end


async def _reshape(service: JobService, spec: JobSpec, workers: int) -> Accepted:
    """Give a job another count of workers: one that has ended by another submission."""
    sizes = {role.name: workers for role in spec.roles if role.name == "worker"}
    try:
        return await service.submissions.submit(SubmitRequest(resized(spec, sizes), SubmitMode.RESUME))
    except Conflict:
        return await service.scale(spec.name, sizes)
