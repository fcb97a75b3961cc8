"""A made-up history of one small job, in which every promise is kept: tests forge it, each in one place."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from chaos.history.formats import (
    BORN,
    DELETE,
    FROZEN,
    GONE,
    KILLED,
    PUT,
    RUNS,
    STATE,
    Compared,
    EtcdLine,
    Expects,
    FaultRecord,
    ProcessLine,
    RunRecord,
    StepLine,
    StoreLine,
    Transaction,
    Watched,
)
from chaos.history.history import History
from chaos.history.lives import lives, name_attempts
from chaos.history.past import moments
from chaos.promises.generations import generation_of

JOB, UUID, D_MS = "job", "u1", 4_000
CRC = "0badcafe"
Body = Mapping[str, object]


def ref(generation: int, step: int) -> dict[str, int]:
    return {"generation": generation, "step": step}


@dataclass
class Story:
    """Etcd, processes and step logs, on one clock. Each write takes 2 ms from its commit until it is seen."""

    now_ms: float = 1_000.0
    revision: int = 1
    lines: list[EtcdLine] = field(default_factory=list)
    log: list[Transaction] = field(default_factory=list)
    processes: list[ProcessLine] = field(default_factory=list)
    steps: list[StepLine] = field(default_factory=list)
    store: list[StoreLine] = field(default_factory=list)
    watched: list[Watched] = field(default_factory=list)
    run: RunRecord = field(default_factory=lambda: RunRecord(job=JOB, job_uuid=UUID))
    keys: dict[str, tuple[int, int]] = field(default_factory=dict)
    pids: dict[str, int] = field(default_factory=dict)
    switch: dict[str, object] = field(default_factory=dict)
    events: int = 0

    def after(self, ms: float) -> Story:
        self.now_ms += ms
        return self

    # etcd.

    def write(
        self,
        puts: Mapping[str, Body] | None = None,
        *,
        deletes: tuple[str, ...] = (),
        by: str = "leader",
        compares: tuple[Compared, ...] | None = None,
        by_lease: bool = False,
    ) -> int:
        """One transaction, fenced as its author's should be; `by` is `leader` or a node."""
        self.after(3)
        fence = by if by == "leader" else f"nodes/{by}"
        if compares is None:
            held = self.keys.get(fence)
            compares = (Compared(fence, "create", "=", held[0] if held is not None else 0),)
        self.revision += 1
        for key, body in (puts or {}).items():
            created, version = self.keys.get(key, (self.revision, 0))
            self.keys[key] = (created, version + 1)
            self.lines.append(
                EtcdLine(
                    PUT,
                    self.revision,
                    key,
                    json.dumps(body),
                    created,
                    version + 1,
                    after_ms=self.now_ms - 2,
                    at_ms=self.now_ms,
                )
            )
        for key in deletes:
            del self.keys[key]
            line = EtcdLine(DELETE, self.revision, key, after_ms=self.now_ms - 2, at_ms=self.now_ms)
            self.lines.append(line)
        self.log.append(
            Transaction(self.revision, () if by_lease else compares, tuple(puts or {}), deletes, by_lease)
        )
        return self.revision

    def tell(self, text: str) -> dict[str, Body]:
        """An event, and that a client is sent it."""
        self.events += 1
        self.watched.append(Watched(self.now_ms + 5, self.events, text))
        return {f"events/{self.events:016d}": {"kind": "note", "job": JOB, "text": text}}

    def node(self, name: str, incarnation: str, **more: object) -> None:
        body = {"node": name, "incarnation": incarnation, "d_ms": D_MS, "succeeds": [], **more}
        self.write({f"nodes/{name}": body}, by=name)

    def set_switch(self, more: Mapping[str, Body] | None = None, **fields: object) -> None:
        self.switch |= fields
        self.write({f"switches/{JOB}": self.switch, **(more or {})})

    def incident(self, ident: str, **fields: object) -> dict[str, Body]:
        body: dict[str, object] = {
            "id": ident,
            "job": JOB,
            "cause": "killed",
            "task": f"{JOB}/worker:0",
            "node": "n1",
            "rule": "async.worker.task",
            "scope": "task",
            "detail": "it was killed",
            "generation": 1,
            "member": "worker.0",
            "attempt": 2,
            "from_generation": 1,
            "phases_ms": {},
            "outcome": "open",
        }
        return {f"incidents/{JOB}/{ident}": body | fields}

    def assign(
        self, generation: int, places: Mapping[str, tuple[str, str]], **attempts: int
    ) -> dict[str, Body]:
        """A plan: member -> (node, incarnation)."""
        plan = f"p{generation}"
        placements = []
        found: dict[str, Body] = {}
        for member, (node, incarnation) in places.items():
            role, _, index = member.rpartition(".")
            place = {"role": role, "index": int(index), "node": node, "incarnation": incarnation, "gpus": []}
            placements.append(place)
            found[f"assignments/{node}/{JOB}/{plan}/{member}"] = {
                **place,
                "job": JOB,
                "generation": generation,
                "plan_id": plan,
                "attempt": attempts.get(role, 1),
                "gpus_shared": False,
            }
        body = {"job": JOB, "plan_id": plan, "generation": generation, "placements": placements}
        return {f"plans/{JOB}/{plan}": body, **found}

    # Processes.

    def launcher(self, node: str, name: str) -> None:
        self.born(node, name, parent=1, marker=f"{node}-{name}#0")

    def born(self, node: str, name: str, *, parent: int, marker: str) -> int:
        pid = 100 + len(self.pids)
        self.pids[name] = pid
        self.processes.append(
            ProcessLine(
                BORN,
                self.now_ms,
                self.now_ms - 25,
                pid,
                pid,
                RUNS,
                node,
                marker,
                parent,
                (pid, pid % 50),
                "python",
            )
        )
        return pid

    def process(self, name: str, kind: str, state: str = "") -> None:
        pid = self.pids[name]
        self.processes.append(ProcessLine(kind, self.now_ms, self.now_ms - 25, pid, pid, state))

    def start(
        self, node: str, incarnation: str, attempt: str, launcher: str, gpus: tuple[str, ...] = ()
    ) -> None:
        """An attempt's process, what it says of itself, and what its agent reports."""
        pid = self.born(node, attempt, parent=self.pids[launcher], marker=f"{node}-{launcher}#0")
        self.say("start", attempt, 0)
        self.after(5)
        self.report(node, incarnation, attempt, pid % 50, gpus=list(gpus))

    def report(self, node: str, incarnation: str, attempt: str, pid: int, **more: object) -> None:
        task, _, number = attempt.partition("@")
        role, _, index = task.partition("/")[2].partition(":")
        generation, _, count = number.partition(".")
        body = {
            "job": JOB,
            "role": role,
            "index": int(index),
            "generation": int(generation),
            "number": int(count),
            "node": node,
            "incarnation": incarnation,
            "state": "running",
            "pid": pid,
            "exit": None,
            "gpus": [],
        }
        key = f"attempts/{JOB}/{role}.{index}/{int(generation):08d}.{int(count):06d}"
        self.write({key: body | more}, by=node)

    def die(self, name: str) -> None:
        self.process(name, GONE)

    def say(self, kind: str, attempt: str, step: int, chain: tuple[int, ...] = (), caller: str = "") -> None:
        generation, of_caller = (generation_of(each) for each in (attempt, caller))
        line = StepLine(self.now_ms, kind, attempt, generation, step=step, caller=caller, chain=chain)
        self.steps.append(replace(line, caller_generation=of_caller))

    def step(self, *attempts: str, first: int, count: int = 1, every_ms: float = 50) -> None:
        step = first
        for _ in range(count):
            for attempt in attempts:
                self.after(every_ms / len(attempts)).say("step", attempt, step)
                step += 1

    # Checkpoints.

    def commit(
        self, generation: int, step: int, parent: dict[str, int] | None, *, at: str = "n0", life: str = "a0"
    ) -> None:
        path = f"{JOB}/g{generation:05d}-s{step:010d}.0123456789abcdef"
        self.store.append(
            StoreLine(self.now_ms - 2, self.now_ms - 1, path.partition("/")[2], "whole", "", CRC, 10)
        )
        body = {
            "job_uuid": UUID,
            "ref": ref(generation, step),
            "parent": parent,
            "path": path,
            "size": 10,
            "manifest_crc32c": CRC,
            "node": at,
            "incarnation": life,
            "state": "committed",
            "pinned": False,
        }
        key = f"commits/{JOB}/{generation:08d}.{step:012d}"
        self.write({key: body, f"heads/{JOB}": {"serial": step, "newest": ref(generation, step)}}, by=at)
        self.after(50)
        self.store.append(
            StoreLine(self.now_ms - 1, self.now_ms, path.partition("/")[2], "whole", "", CRC, 10)
        )

    def history(self) -> History:
        """As `load` would give it."""
        ended_ms = self.now_ms + 1_000
        found_moments = moments(self.lines)
        found = lives(self.processes, ended_ms)
        name_attempts(found, found_moments)
        return History(
            run=replace(self.run, ended_ms=ended_ms),
            moments=found_moments,
            transactions=list(self.log),
            lives=found,
            steps=sorted(self.steps, key=lambda line: line.at_ms),
            store=list(self.store),
            watches={"watch-events.jsonl": tuple(self.watched)},
            ended_ms=ended_ms,
        )


PLACES = {"chief.0": ("n0", "a0"), "ps.0": ("n1", "a1"), "worker.0": ("n1", "a1")}
CHIEF, PS, WORKER = f"{JOB}/chief:0@1.1", f"{JOB}/ps:0@1.1", f"{JOB}/worker:0@1.1"


def begun() -> Story:
    """Two nodes and a spare one; generation 1 trains, and two checkpoints are committed."""
    story = Story()
    story.write({"leader": {"supervisor": "s0", "address": "", "pid": 1}})
    story.write({"cluster": {"cluster": "c", "profile": "fast", "d_ms": D_MS}, **story.tell("a leader")})
    for index in range(3):
        story.node(f"n{index}", f"a{index}")
    story.switch = {
        "job": JOB,
        "job_uuid": UUID,
        "phase": "waiting",
        "generation": 0,
        "plan_id": "",
        "base": None,
        "closing": None,
        "incident": "",
        "ledger": {"program": 0, "infrastructure": 0, "streak": 0},
        "restart_serial": 0,
        "reason": "",
        "held": [],
    }
    story.run = replace(story.run, began_ms=story.now_ms)
    story.set_switch(
        {
            f"jobs/{JOB}": {"uuid": UUID},
            f"intents/{JOB}": {"wanted": "run", "restart_serial": 0, "restart_from": None},
            **story.tell("submitted"),
        }
    )
    story.write(story.assign(1, PLACES))
    story.launcher("n0", "L0")
    story.launcher("n1", "L1")
    story.launcher("n1", "L2")
    story.set_switch(closing={"plan_id": "p1", "base": None})
    story.set_switch(phase="running", generation=1, plan_id="p1", closing=None)
    story.start("n0", "a0", CHIEF, "L0")
    story.start("n1", "a1", PS, "L1")
    story.start("n1", "a1", WORKER, "L2")
    story.say("restored", CHIEF, -1)
    story.step(CHIEF, WORKER, first=1, count=10)
    story.commit(1, 10, None)
    story.step(CHIEF, WORKER, first=21, count=10)
    story.commit(1, 30, None)
    story.run = replace(story.run, healthy_ms=story.now_ms)
    return story


def fault(story: Story, name: str, family: str, target: str, cause: str, scope: str) -> FaultRecord:
    expects = Expects("one", (cause,), (scope,))
    return FaultRecord(name, family, target, story.now_ms, story.now_ms + 1, story.now_ms + 1, expects)


def worker_killed(*, marked: bool = False) -> Story:
    """The worker is killed, and comes back in place. `marked`: its node was lost meanwhile, and appealed."""
    story = begun()
    done = fault(story, "kill-worker", "task", "worker.0", "killed", "task")
    story.die(WORKER)
    died_ms = story.now_ms
    story.after(10)
    if marked:
        story.write({"lost/n1/a1": {"node": "n1", "incarnation": "a1", "final": False}, **story.tell("lost")})
        story.write(deletes=("lost/n1/a1",))
    report = {
        "state": "exited",
        "exit": {"reason": "exit", "code": None, "signal": 9, "confirmed_dead": True},
    }
    story.report("n1", "a1", WORKER, story.pids[WORKER] % 50, **report)
    again = f"{JOB}/worker:0@1.2"
    phases = {"detected": 10, "decided": 3}
    restarted = {
        key: body for key, body in story.assign(1, PLACES, worker=2).items() if key.endswith("worker.0")
    }
    story.set_switch(
        {**restarted, **story.incident("g1-worker.0-a1", phases_ms=phases), **story.tell("restarted")},
        ledger={"program": 0, "infrastructure": 1, "streak": 0},
        incident="g1-worker.0-a1",
    )
    story.start("n1", "a1", again, "L2")
    story.step(again, CHIEF, first=42, count=4)
    first_ms = next(line.at_ms for line in story.steps if line.attempt == again and line.kind == "step")
    phases |= {"restored": 10, "first_step": int(first_ms - died_ms) - 23}
    ended = story.incident("g1-worker.0-a1", phases_ms=phases, outcome="recovered", to_step=42)
    story.write({**ended, **story.tell("it goes on")})
    return over(story, done, (CHIEF, again))


def node_lost() -> Story:
    """The node of ps and worker is frozen; a new generation takes their place; it thaws."""
    story = begun()
    done = fault(story, "freeze-node", "node", "n1", "node_lost", "all")
    began_ms = story.now_ms
    for name in ("L1", "L2", PS, WORKER):
        story.process(name, STATE, FROZEN)
    story.after(800)
    story.write(
        {"lost/n1/a1": {"node": "n1", "incarnation": "a1", "final": False}, **story.tell("n1 is lost")}
    )
    places = {"chief.0": ("n0", "a0"), "ps.0": ("n2", "a2"), "worker.0": ("n2", "a2")}
    story.write(story.assign(2, places))
    story.launcher("n2", "L3")
    story.launcher("n2", "L4")
    story.after(D_MS)
    story.set_switch(closing={"plan_id": "p2", "base": ref(1, 30)})
    phases = {"detected": 800, "decided": 0, "ready": D_MS}
    node_lost_by = {
        "cause": "node_lost",
        "task": f"{JOB}/ps:0",
        "scope": "all",
        "rule": "async.ps.all",
        "generation": 2,
        "member": "ps.0",
        "attempt": 0,
    }
    story.set_switch(
        {
            "lost/n1/a1": {"node": "n1", "incarnation": "a1", "final": True},
            **story.incident("n1-a1", phases_ms=phases, **node_lost_by),
            **story.tell("generation 2"),
        },
        generation=2,
        plan_id="p2",
        base=ref(1, 30),
        closing=None,
        incident="n1-a1",
        ledger={"program": 0, "infrastructure": 1, "streak": 0},
    )
    story.after(20).die(CHIEF)
    chief, ps, worker = (f"{JOB}/{task}@2.1" for task in ("chief:0", "ps:0", "worker:0"))
    report = {
        "state": "exited",
        "exit": {"reason": "killed", "code": None, "signal": 9, "confirmed_dead": True},
    }
    story.report("n0", "a0", CHIEF, story.pids[CHIEF] % 50, **report)
    story.start("n0", "a0", chief, "L0")
    story.start("n2", "a2", ps, "L3")
    story.start("n2", "a2", worker, "L4")
    story.say("restored", chief, 30, chain=(1,))
    story.say("accepted", ps, 30, caller=worker)
    first_ms = story.now_ms + 25
    story.step(chief, worker, first=31, count=4)
    phases["first_step"] = int(first_ms - began_ms) - 800 - D_MS
    ended = story.incident("n1-a1", phases_ms=phases, outcome="recovered", to_step=31, **node_lost_by)
    story.write({**ended, **story.tell("it goes on")})
    for name in ("L1", "L2", PS, WORKER):
        story.process(name, STATE, RUNS)
    story.after(30)
    for name in (PS, WORKER):
        story.process(name, KILLED)
    story.after(20)
    for name in (PS, WORKER, "L1", "L2"):
        story.die(name)
    old = [f"attempts/{JOB}/{member}/00000001.000001" for member in ("ps.0", "worker.0")]
    story.write(deletes=(*(key for key in story.keys if "/p1" in key), *old))
    story.write({"nodes/n1": {"node": "n1", "incarnation": "b1", "d_ms": D_MS, "succeeds": []}}, by="n1")
    done = replace(done, heal_ms=story.now_ms)
    return over(story, done, (chief, worker))


def over(story: Story, done: FaultRecord, training: tuple[str, ...]) -> Story:
    """It trains on, is healthy again, and is stopped; nothing is left."""
    story.run = replace(story.run, faults=(done,), healed_ms=story.now_ms, bound_ms=10_000)
    story.step(*training, first=60, count=40)
    story.run = replace(story.run, converged_ms=story.now_ms)
    story.after(500)
    story.write({f"intents/{JOB}": {"wanted": "stop", "restart_serial": 0, "restart_from": None}})
    story.set_switch(phase="stopping")
    gone = {line.pid for line in story.processes if line.kind == GONE}
    for name, pid in list(story.pids.items()):
        if pid not in gone:
            story.after(5).die(name)
    left = [key for key in story.keys if key.startswith("attempts/")]
    story.write({}, deletes=tuple(left))
    story.set_switch(phase="stopped")
    story.write({**story.tell("it has ended")})
    return story
