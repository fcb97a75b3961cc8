"""The user's program: a model of TF1 between-graph training, whose global step lives in the parameter server.

The chief, or worker 0 of a job that has none, restores or initialises it whenever it comes to a server, and
saves; chief and workers raise it; all of them end at the last step.
A server that dies takes the others with it, sooner or later. Under a coordinator the chief alone trains, and
its workers serve; workers that are a ring of their own need each other as others need a server.
Its checkpoints are real files (`saves`).
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from signal import SIGKILL

from agent.inside import protocol
from agent.inside.child.waiting import NEVER_READY
from chaos.sim.cluster.launcher import RunningChild, SimLauncher
from chaos.sim.cluster.machine import Machine, MachineProcess
from chaos.sim.cluster.saves import (
    NUMBERED,
    Weights,
    files_of,
    newest_bundle,
    newest_plain,
    write_bundle,
    write_plain,
)
from supervisor.contract.ids import AttemptId, TaskId

TRAINING = ("chief", "worker")
KEEPS_ALL = 1_000_000
ENDED_WELL = (0, 143)
"""The exit codes of a program that has come to its end, and of one that has saved after SIGTERM."""
POLL_S = 0.1
EVALUATES_S = 0.5
CONNECT_S = (0.05, 0.3)

_RAISED = 'Traceback (most recent call last):\n  File "train.py", line 7, in <module>\n'
_ERRORS = "tensorflow.python.framework.errors_impl"
LOST_PEER = f"{_RAISED}{_ERRORS}.UnavailableError: From /job:ps/replica:0/task:0:\nSocket closed\n"
CRASHES = (
    f"{_RAISED}ValueError: wrong\n",
    f"{_RAISED}{_ERRORS}.OutOfRangeError: End of sequence\n",
    "",
)
"""The last output of a program that fails by itself."""
ENDINGS = {
    "peer_lost": LOST_PEER,
    "port_clash": f"{_RAISED}OSError: [Errno 98] Address already in use\n",
    "data_loss": f"{_RAISED}{_ERRORS}.DataLossError: Checksum does not match\n",
    "resource_exhausted": f"{_RAISED}MemoryError\n",
    "user_error": f"{_RAISED}ModuleNotFoundError: No module named 'models'\n",
    "missing_program": "/bin/sh: 1: train: not found\n",
    "nan_loss": f"{_RAISED}tensorflow.python.training.hooks.NanLossDuringTrainingError: NaN loss.\n",
}
"""Cause -> the last output of a program that seems to end for it."""
HOPELESS = ("user_error", "missing_program", "nan_loss")
"""Causes that no restart mends; of the first two only before a job's first step."""
UNRESTORABLE = (ENDINGS["data_loss"], CRASHES[0])
"""The last output of a program that cannot restore a checkpoint."""


def parse_attempt(text: str) -> AttemptId:
    """The inverse of `str(AttemptId)`."""
    task, _, rest = text.rpartition("@")
    generation, _, number = rest.partition(".")
    return AttemptId(TaskId.parse(task), int(generation), int(number))


@dataclass(frozen=True, slots=True)
class Temper:
    """The behaviour of one job's program. `saves_every` steps; it ends with step `last_step`.

    `trainers`: roles that make steps. `ring`: they need all of them, and worker 0 holds the weights.
    `mute`: nothing that they print is read as a step. `epochs`: they print an epoch and a step that begins
    anew with each, so that no step is known. `keeps`: so many saves stay on the disk, as with
    TensorFlow's `max_to_keep`. `plain`: they save files of their own. `named`: what they call their saves.
    `another_saves`: the last worker saves, and not the one that TensorFlow takes for the chief.
    `restores`: it goes on from its newest checkpoint; else it begins anew at each start.
    `parting`: the last worker beside the saver saves at its end, so many steps later, unnoted.
    `tensorflow`: the version that it imports. `deaf`: how often a chief that is told where a worker has moved
    cannot take it. `recovers`: its sessions survive the loss of a server, as its launcher can tell;
    `stuck`: how often one does not in the end.
    """

    step_s: float = 0.1
    saves_every: int = 20
    save_s: float = 0.05
    last_step: int = 1_000_000
    dies_with_server: float = 0.7
    trainers: tuple[str, ...] = TRAINING
    ring: bool = False
    mute: bool = False
    epochs: bool = False
    keeps: int = 5
    plain: bool = False
    named: str = NUMBERED
    another_saves: bool = False
    restores: bool = True
    parting: int = 0
    tensorflow: str = "2.21.0"
    deaf: float = 0.0
    recovers: bool = False
    stuck: float = 0.0


@dataclass(eq=False, slots=True)
class Program:
    """One attempt's process, as it really is.

    Attributes:
        addresses: all of its ClusterSpec, which it may connect to.
        gpus: those that CUDA lets it see; `shares`: it takes their memory as it needs it.
        servers: whom it needs, by address; the first has the weights.
        trains: it makes steps.
        leads: TensorFlow takes it for the chief. `saver`: it saves.
        mute: its steps are not read; `epochs`: they are, but tell no global step.
        steps: (virtual seconds, global step) of each line of its log; the last is the newest.
        rests_until_s: until then it makes no step, though it is healthy; `spins`: it uses its processor all
            the same.
        terminated: it got SIGTERM.
        saved: (virtual seconds, step) of each finished save; the last is the newest.
        saves: the steps of all whose files it has not removed.
        parts: it saves at its end, and nothing notes that; `parted`: when, and the step.
        joined: it has found all whom it needs.
        joins: it can be with others that were not told of its address. `workers`: the addresses of those that
            it can send work to.
        weights: of a server, the global step and the generations that it descends from; None before the init.
        filled: of a server, the number of the restore that gave it all of its variables.
        recovers: its sessions survive the loss of a server, as its launcher tells.
    """

    attempt: AttemptId
    machine: Machine
    launcher: SimLauncher
    row: MachineProcess
    port: int | None
    address: str
    addresses: frozenset[str]
    servers: tuple[str, ...]
    directory: Path
    started_s: float
    trains: bool
    leads: bool
    saver: bool = False
    mute: bool = False
    epochs: bool = False
    gpus: tuple[str, ...] = ()
    shares: bool = False
    weights: Weights | None = None
    filled: int = 0
    recovers: bool = False
    steps: list[tuple[float, int]] = field(default_factory=list)
    restored: Weights | None = None
    crash_code: int | None = None
    last_words: str = ""
    hung: bool = False
    rests_until_s: float = 0.0
    spins: bool = False
    terminated: bool = False
    joined: bool = False
    joins: bool = False
    workers: frozenset[str] = frozenset()
    saved: list[tuple[float, int]] = field(default_factory=list)
    saves: list[int] = field(default_factory=list)
    parts: bool = False
    parted: tuple[float, int] | None = None
    slow: float = 1.0
    told: asyncio.Event = field(default_factory=asyncio.Event)

    def crash(self, code: int, last_words: str) -> None:
        """A bug of its own: it ends as soon as its code runs. A negative code is a signal's number."""
        self.crash_code, self.last_words = code, last_words
        self.told.set()

    @property
    def job_uuid(self) -> str:
        """The UUID of the life of its job."""
        return self.directory.parent.name

    @property
    def ended_itself(self) -> bool:
        """It is gone, and neither by SIGKILL nor because of a peer."""
        return self.row.gone and self.row.signal != SIGKILL and self.last_words != LOST_PEER

    @property
    def alive(self) -> bool:
        """Not gone; it may be frozen."""
        return not self.row.gone

    @property
    def running(self) -> bool:
        """Its code is being executed: neither killed nor frozen."""
        return not self.row.doomed and not self.row.frozen

    @property
    def last_step(self) -> int:
        """The newest step that it has made, -1 before the first."""
        return self.steps[-1][1] if self.steps else -1

    @property
    def last_saved(self) -> tuple[float, int]:
        """When it has saved last, and the step; -1 without a save."""
        return self.parted or (self.saved[-1] if self.saved else (0.0, -1))

    @property
    def told_steps(self) -> list[tuple[float, int]]:
        """The steps that can be read."""
        return [] if self.mute else self.steps


Observer = Callable[[str, Program], None]


def _chief_of(cluster: Mapping[str, Sequence[str]]) -> tuple[str, int]:
    """Role and index of the task that TensorFlow takes for the chief."""
    return ("chief" if "chief" in cluster else "worker"), 0


def _saver_in(cluster: Mapping[str, Sequence[str]], temper: Temper) -> tuple[str, int]:
    workers = len(cluster.get("worker", ()))
    return ("worker", workers - 1) if temper.another_saves and workers else _chief_of(cluster)


def _parting_in(cluster: Mapping[str, Sequence[str]], temper: Temper) -> tuple[str, int] | None:
    """The last worker that is not the saver."""
    found = (("worker", index) for index in reversed(range(len(cluster.get("worker", ())))))
    return next((each for each in found if each != _saver_in(cluster, temper)), None)


class Training:
    """Every program of the world, dead ones too, and who serves at which address.

    `unrestorable`: checkpoints whose files are as they were written, but that no program can restore, by job,
    generation and step, with its last words. `spoilt`: jobs whose every save is such a one for now.
    `late_s`: until when the programs of a task do nothing.
    """

    def __init__(self, rng: random.Random, tempers: dict[str, Temper], observer: Observer) -> None:
        self.programs: list[Program] = []
        self.unrestorable: dict[tuple[str, int, int], str] = {}
        self.spoilt: dict[str, str] = {}
        self.late_s: dict[TaskId, float] = {}
        self.tempers = tempers
        self._rng = rng
        self._observer = observer
        self._restores = 0
        self._serving: dict[str, Program] = {}
        self._listening: dict[str, Program] = {}

    def alive(self, job: str = "") -> list[Program]:
        """The programs that are alive, of one job or of all."""
        return [each for each in self.programs if each.alive and (not job or each.attempt.task.job == job)]

    def jobs(self) -> list[str]:
        """The names of jobs with a program that has begun."""
        return sorted({each.attempt.task.job for each in self.programs})

    def finished(self, job: str) -> list[Program]:
        """The chiefs of a job that came to the end of training, in the order of their starts."""
        ours = [each for each in self.programs if each.attempt.task.job == job]
        return [each for each in ours if each.leads and each.row.code == 0]

    def last_saver(self, job: str) -> Program | None:
        """The program with the last save of the training that ended last, by itself or when asked to.

        In one directory the last one counts, whatever its step.
        """
        done = self.finished(job)
        generation = done[-1].attempt.generation if done else -1
        ours = [each for each in self.programs if each.attempt.task.job == job and each.last_saved[1] >= 0]
        ended = [each for each in ours if each.row.code in ENDED_WELL and each.machine.up]
        last = [each for each in ended if each.attempt.generation == generation]
        newest = {each.directory: each for each in sorted(last, key=lambda each: each.last_saved[0])}
        return max(newest.values(), key=lambda each: each.last_saved[1], default=None)

    def last_save(self, job: str) -> int:
        """The step of that save; -1 without one."""
        program = self.last_saver(job)
        return program.last_saved[1] if program is not None else -1

    def serving(self, address: str) -> Program | None:
        """The server that answers there."""
        return self._serving.get(address)

    def start(self, launcher: SimLauncher, start: protocol.Start, port: int | None) -> MachineProcess:
        """Fork a program; see `launcher.Programs`."""
        attempt = parse_attempt(start.attempt)
        machine = launcher.machine
        row = machine.fork(start.attempt)
        config = json.loads(start.env["TF_CONFIG"])
        cluster: dict[str, list[str]] = config["cluster"]
        own = cluster.get(attempt.task.role, [])
        index = attempt.task.index
        temper = self.tempers[attempt.task.job]
        program = Program(
            attempt=attempt,
            machine=machine,
            launcher=launcher,
            row=row,
            port=port,
            address=own[index] if index < len(own) else "",
            addresses=frozenset(address for role in cluster.values() for address in role),
            servers=tuple(cluster.get("worker" if temper.ring else "ps", ())),
            directory=Path(start.env["CHECKPOINT_DIR"]),
            started_s=machine.loop.time(),
            trains=attempt.task.role in temper.trainers,
            leads=(attempt.task.role, index) == _chief_of(cluster),
            saver=(attempt.task.role, index) == _saver_in(cluster, temper),
            parts=bool(temper.parting) and (attempt.task.role, index) == _parting_in(cluster, temper),
            mute=temper.mute,
            epochs=temper.epochs,
            gpus=tuple(each for each in start.env["CUDA_VISIBLE_DEVICES"].split(",") if each != "-1"),
            shares=start.env.get("TF_FORCE_GPU_ALLOW_GROWTH") == "true",
            joins=start.joins,
            recovers=temper.recovers,
            workers=frozenset(cluster.get("worker", ())),
        )
        self.programs.append(program)
        row.at_end.append(lambda: self._ended(program))
        self._observer("started", program)
        machine.loop.begin(row.process, self._main(program, start))
        return row

    def heal(self, job: str) -> None:
        """Make the job's saves restorable from now on."""
        self.spoilt.pop(job, None)

    def terminate(self, row: MachineProcess) -> None:
        """SIGTERM: its handler makes the program save, where it has something to save, and end."""
        for program in self.programs:
            if program.row is row:
                program.terminated = True
                program.told.set()

    def tensorflow(self, job: str) -> str:
        """The version that launchers of a job import."""
        return self.tempers[job].tensorflow

    def tell_peers(self, row: MachineProcess, cluster: dict[str, list[str]]) -> str:
        """A coordinator connects to its workers where they are now; see `launcher.Programs`."""
        for program in self.programs:
            if program.row is row and program.running:
                if self._rng.random() < self.tempers[program.attempt.task.job].deaf:
                    return "its context cannot be changed"
                program.workers = frozenset(cluster.get("worker", ()))
                program.addresses |= {address for role in cluster.values() for address in role}
        return ""

    def _ended(self, program: Program) -> None:
        for there in (self._serving, self._listening):
            for address in [each for each, holder in there.items() if holder is program]:
                del there[address]
        self._observer("ended", program)

    async def _main(self, program: Program, start: protocol.Start) -> None:
        code = await self._wait(program, start)
        if code is None:
            code = await self._run(program)
        program.machine.exit(program.row, code)

    async def _wait(self, program: Program, start: protocol.Start) -> int | None:
        """Before the program: until all listen whom it needs. The code that it ends with instead, if any."""
        began_s = program.machine.loop.time()
        missing = {each.rpartition("=")[2] for each in start.wait_for} - self._listening.keys()
        while missing:
            await asyncio.sleep(POLL_S)
            if program.crash_code is not None or program.terminated:
                return program.crash_code if program.crash_code is not None else 143
            if start.wait_ms is not None and program.machine.loop.time() - began_s > start.wait_ms / 1000:
                return NEVER_READY
            missing -= self._listening.keys()
        return None

    async def _run(self, program: Program) -> int:
        late_s = self.late_s.get(program.attempt.task, 0.0) - program.machine.loop.time()
        await asyncio.sleep(max(late_s, self._rng.uniform(*CONNECT_S)))
        if program.port is not None:
            self._listening[f"{program.launcher.host}:{program.port}"] = program
        if program.trains:
            if program.address in program.servers:
                self._serving[program.address] = program
            try:
                return await self._train(program)
            except FileNotFoundError:
                # Its generation is over, and another agent of this machine has cleared its directory away.
                return 1
        return await self._serve(program)

    async def _serve(self, program: Program) -> int:
        """A server, or an evaluator: it never ends by itself."""
        evaluates = program.attempt.task.role == "evaluator"
        if program.address in program.servers:
            self._serving[program.address] = program
        elif evaluates and (found := self._newest(program)) is not None:
            self._log(program, found[0])
        while program.crash_code is None and not program.terminated:
            try:
                async with asyncio.timeout(EVALUATES_S if evaluates else None):
                    await program.told.wait()
            except TimeoutError:
                self._log(program, len(program.steps))
        return program.crash_code if program.crash_code is not None else 143

    async def _train(self, program: Program) -> int:
        """Find the server, wait for its weights, step until the end; returns the exit code."""
        peers: list[Program] = []
        base = self._newest(program) if program.saver and not program.leads else None
        saved = base[0] if base is not None else -1
        ready = False
        while True:
            temper = self.tempers[program.attempt.task.job]
            server = peers[0] if peers else None
            code = await self._told_to_end(program, server, temper)
            if code is not None:
                return code
            # In a ring whoever has come to the end goes; a server is never done.
            if any(not each.alive and (each.row.code != 0 or not temper.ring) for each in peers):
                if self._rng.random() < temper.dies_with_server:
                    await asyncio.sleep(self._rng.uniform(0.05, 1.0))
                    # Not all programs let TensorFlow's error through.
                    program.last_words = LOST_PEER if program.row.pid % 3 else ""
                    return 1
                peers = []
                program.hung |= self._rng.random() < temper.stuck
            if not peers:
                peers, ready = self._find_peers(program), False
                server = peers[0] if peers else None
            # Each server has some of the variables; of a ring one has all.
            filled = peers[:1] if temper.ring else peers
            if (
                server is None
                or not all(each.running for each in filled)
                or (temper.ring and not all(p.joined for p in peers))
            ):
                await asyncio.sleep(POLL_S)
            elif (
                server.weights is None
                or any(not each.filled for each in filled)
                or (program.leads and not ready)
            ):
                # A chief that comes back restores, whatever the others have made of the weights since.
                saved = max(saved, await self._initialise(program, filled))
                ready = True
            else:
                step, chain = server.weights
                due = step >= saved + temper.saves_every or (step >= temper.last_step and saved < step)
                if program.saver and due:
                    self._look_for_a_mix(program, filled)
                    await self._save(program, step, chain, temper)
                    saved = step
                if step >= temper.last_step:
                    if program.parts:
                        await self._save(program, step + temper.parting, chain, temper)
                    return 0
                await self._compute(program, temper)
                if all(each.alive for each in filled):
                    self._look_for_a_mix(program, filled)
                    self._step(program, server)

    def _look_for_a_mix(self, program: Program, servers: Sequence[Program]) -> None:
        """All servers that it reads have restored the same checkpoint."""
        if len({each.filled for each in servers}) > 1:
            self._observer("mixed", program)

    async def _told_to_end(self, program: Program, server: Program | None, temper: Temper) -> int | None:
        if program.crash_code is not None:
            return program.crash_code
        if program.terminated:
            if program.saver and server is not None and server.running and server.weights is not None:
                await self._save(program, *server.weights, temper)
            return 143
        # In a ring the last step is everybody's.
        return 0 if temper.ring and server is not None and server.row.code == 0 else None

    async def _compute(self, program: Program, temper: Temper) -> None:
        await asyncio.sleep(program.slow * temper.step_s * self._rng.uniform(0.7, 1.3))
        await asyncio.sleep(max(0.0, program.rests_until_s - program.machine.loop.time()))
        if program.hung:
            await asyncio.Event().wait()

    def _find_peers(self, program: Program) -> list[Program]:
        """All whom it needs, in the order of their addresses; nobody while one is not there."""
        found = [self._serving[each] for each in program.servers if each in self._serving]
        if len(found) < len(program.servers):
            return []
        # Servers know the addresses of their generation; TensorFlow takes no other without a word.
        if not program.joins and any(program.address not in each.addresses for each in found):
            return []
        program.joined = True
        self._observer("connected", program)
        return found

    async def _initialise(self, program: Program, servers: Sequence[Program]) -> int:
        """The chief restores into one server after the other, the one with the step last."""
        if not program.leads:
            await asyncio.sleep(POLL_S)
            return -1
        await asyncio.sleep(self._rng.uniform(0.02, 0.1))
        step, chain = self._restore(program)
        job = program.attempt.task.job
        if len(chain) > 1 and (job, chain[-2], step) in self.unrestorable:
            program.crash(1, self.unrestorable[job, chain[-2], step])
            return -1
        self._restores += 1
        number = self._restores
        program.restored = step, chain
        for server in reversed(servers):
            server.filled = number
            if server is servers[0]:
                server.weights = step, chain
            else:
                await asyncio.sleep(self._rng.uniform(0.0, 3 * POLL_S))
        self._observer("restored", program)
        return step

    def _step(self, program: Program, server: Program) -> None:
        if server.running and server.weights is not None:
            step, chain = server.weights
            server.weights = (step + 1, chain)
            self._log(program, step + 1)

    def _log(self, program: Program, step: int) -> None:
        program.steps.append((program.machine.loop.time(), step))
        child = program.launcher.child
        if isinstance(child, RunningChild) and child.row is program.row:
            program.launcher.wrote(child)
        self._observer("stepped", program)

    def _restore(self, program: Program) -> Weights:
        generation = program.attempt.generation
        restores = self.tempers[program.attempt.task.job].restores
        step, chain = (self._newest(program) if restores else None) or (0, ())
        return (step, (*chain, generation))

    def _newest(self, program: Program) -> Weights | None:
        temper = self.tempers[program.attempt.task.job]
        if temper.plain:
            return newest_plain(program.directory)
        return newest_bundle(program.directory, temper.named)

    async def _save(self, program: Program, step: int, chain: tuple[int, ...], temper: Temper) -> None:
        directory = program.directory
        if not directory.exists():
            return
        files = files_of(step, chain, own=temper.plain, named=temper.named)
        if temper.plain:
            await write_plain(directory, files, temper.save_s, program.row.at_end)
        else:
            await write_bundle(directory, files, temper.save_s, program.machine.clock.wall_ms)
        if program.parts:
            program.parted = program.machine.loop.time(), step
            return
        program.saved.append((program.machine.loop.time(), step))
        program.saves.append(step)
        while temper.keeps < len(program.saves):
            for old in directory.glob(f"*-{program.saves.pop(0)}.*"):
                old.unlink(missing_ok=True)
        job = program.attempt.task.job
        if job in self.spoilt:
            self.unrestorable[job, program.attempt.generation, step] = self.spoilt[job]
        self._observer("saved", program)
