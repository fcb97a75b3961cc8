"""The contents of etcd, which the checkers keep from the effects that they saw."""

from __future__ import annotations

from collections.abc import Iterable

from chaos.sim.cluster.etcd import Effect
from supervisor.contract import codec, keys
from supervisor.contract.boundaries import Absent, Compare, CreatedAt, KeyValue, ModifiedAt
from supervisor.contract.checkpoint import CheckpointRef, CommitRecord, CommitState
from supervisor.contract.desired import Assignment, JobSwitch, Plan
from supervisor.contract.ids import TaskId
from supervisor.contract.job.spec import JobIntent, JobRecord, JobSpec


class Picture:
    """The keys as of the last effect."""

    def __init__(self) -> None:
        self._raw: dict[str, bytes] = {}
        self._created: dict[str, int] = {}
        self._modified: dict[str, int] = {}
        self._commits: dict[str, CommitRecord] = {}
        self._switches: dict[str, JobSwitch] = {}

    def apply(self, effect: Effect) -> None:
        """Take in a write."""
        self._raw.update(effect.puts)
        for key in effect.puts:
            self._created.setdefault(key, effect.revision)
            self._modified[key] = effect.revision
        for key, raw in effect.puts.items():
            self._note(key, raw)
        for key in effect.deleted:
            self._raw.pop(key, None)
            self._created.pop(key, None)
            self._commits.pop(key, None)
            self._switches.pop(key, None)

    def forget(self) -> None:
        """Forget all entries, as etcd lost them."""
        for held in (self._raw, self._created, self._modified, self._commits, self._switches):
            held.clear()

    def load(self, entries: Iterable[KeyValue]) -> None:
        """Take the entries of a snapshot."""
        for entry in entries:
            self._raw[entry.key] = entry.value
            self._created[entry.key], self._modified[entry.key] = entry.create_revision, entry.mod_revision
            self._note(entry.key, entry.value)

    def _note(self, key: str, raw: bytes) -> None:
        if key.startswith("commits/"):
            self._commits[key] = codec.decode(CommitRecord, raw)
        elif key.startswith("switches/"):
            self._switches[key] = codec.decode(JobSwitch, raw)

    def holds(self, compare: Compare) -> bool:
        """Whether a compare was true before the next effect."""
        match compare:
            case Absent(key):
                return key not in self._raw
            case CreatedAt(key, revision):
                return self._created.get(key) == revision
            case ModifiedAt(key, revision):
                return key in self._raw and self._modified[key] == revision

    def has(self, key: str) -> bool:
        """Whether the key exists."""
        return key in self._raw

    def raw(self, key: str) -> bytes | None:
        """The value, if the key exists."""
        return self._raw.get(key)

    def must(self, key: str) -> bytes:
        """The value of a key that exists."""
        return self._raw[key]

    def created(self, key: str) -> int:
        """The revision that created a key that exists."""
        return self._created[key]

    def under(self, prefix: str) -> list[str]:
        """Keys with a prefix, sorted."""
        return sorted(key for key in self._raw if key.startswith(prefix))

    def switch(self, job: str) -> JobSwitch | None:
        """A job's switch."""
        return self._switches.get(keys.switch(job))

    def switches(self) -> list[JobSwitch]:
        """The switches of all jobs."""
        return list(self._switches.values())

    def must_switch(self, job: str) -> JobSwitch:
        """The switch of a job that has one."""
        return self._switches[keys.switch(job)]

    def intent(self, job: str) -> JobIntent | None:
        """The operator's intent for a job; None without a record."""
        raw = self._raw.get(keys.intent(job))
        return codec.decode(JobIntent, raw) if raw is not None else None

    def spec(self, job: str) -> JobSpec:
        """The job as submitted."""
        return codec.decode(JobRecord, self._raw[keys.job_record(job)]).spec

    def plan(self, job: str, plan_id: str) -> Plan | None:
        """A plan."""
        raw = self._raw.get(keys.plan(job, plan_id))
        return codec.decode(Plan, raw) if raw is not None else None

    def plans(self, job: str) -> list[Plan]:
        """All plans of a job."""
        return [codec.decode(Plan, self._raw[key]) for key in self.under(f"plans/{job}/")]

    def assigned(self, node: str, task: TaskId, plan_id: str) -> Assignment | None:
        """A task's assignment in a plan."""
        raw = self._raw.get(keys.assignment(node, task, plan_id))
        return codec.decode(Assignment, raw) if raw is not None else None

    def commits(self) -> list[CommitRecord]:
        """Every commit record."""
        return list(self._commits.values())

    def commits_of(self, job: str) -> list[CommitRecord]:
        """The commits of a job that can be restored, on any lineage."""
        uuid = self.must_switch(job).job_uuid
        mine = (record for record in self._commits.values() if record.job_uuid == uuid)
        return [record for record in mine if record.state is CommitState.COMMITTED]

    def commit(self, job: str, ref: CheckpointRef) -> CommitRecord | None:
        """One commit record."""
        return self._commits.get(keys.commit(job, ref))

    def committed(self, job: str, switch: JobSwitch | None = None) -> list[CheckpointRef]:
        """Committed checkpoints on the lineage of the generation in force, newest first.

        Walked backwards: all of this generation, then its base and what is older in the base's generation,
        then that generation's own base, which its commits name as their parent.
        """
        now = switch or self.must_switch(job)
        mine = {record.ref: record for record in self._commits.values() if record.job_uuid == now.job_uuid}
        found: list[CheckpointRef] = []
        generation, upto, base = now.generation, None, now.base
        while True:
            family = sorted((ref for ref in mine if ref.generation == generation), reverse=True)
            found += [ref for ref in family if upto is None or ref <= upto]
            if upto is not None:
                older = [ref for ref in family if ref <= upto]
                base = mine[older[0]].parent if older else None
            if base is None:
                return [ref for ref in found if mine[ref].state is CommitState.COMMITTED]
            generation, upto = base.generation, base
