"""Promises about checkpoints: which are committed and collected, and which one a generation begins from."""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import pairwise

import google_crc32c

from chaos.sim.cluster.etcd import Effect
from chaos.sim.cluster.saves import files_below
from chaos.sim.promises.evidence import Evidence, is_recorded_again
from supervisor.contract import codec, keys
from supervisor.contract.checkpoint import CheckpointRef, CommitRecord, CommitState
from supervisor.contract.desired import JobPhase, JobSwitch
from supervisor.control.decide.checkpoints.collecting import ADOPTED

CLOCKS_S = 0.1
"""The tolerance of ages, in seconds."""


class Bases:
    """Looks at every write that takes effect, before the picture has taken it in, and at the store."""

    def __init__(self, seen: Evidence) -> None:
        self._seen = seen
        self._world = seen.world
        self._picture = seen.picture
        self._committed_s: dict[str, float] = {}
        self._fallen: dict[str, CheckpointRef | None] = {}

    def on_effect(self, effect: Effect) -> None:
        """A write is about to take effect."""
        for key, raw in effect.puts.items():
            if key.startswith("commits/"):
                self._check_commit(effect, key, codec.decode(CommitRecord, raw))
            elif key.startswith("switches/"):
                self._check_switch(codec.decode(JobSwitch, raw))
            elif key.startswith("heads/") and key not in effect.before and not self._world.rolled_back:
                self._check_head(effect, keys.parse(key)[0])

    def check_disk(self) -> None:
        """Rule 9: what is committed can be restored, until it is collected."""
        if self._world.rolled_back:
            # What a snapshot names may have been collected since.
            return
        stored = self._world.stored()
        for record in self._picture.commits():
            if record.state is CommitState.COMMITTED and not is_whole(stored, record):
                self._seen.broken("what is committed stays restorable", f"{record.ref} at {record.path}")

    def _check_commit(self, effect: Effect, key: str, record: CommitRecord) -> None:
        """Rule 7: only the generation in force commits, and not while the switch is closing."""
        job = keys.parse(key)[0]
        if key not in effect.before:
            self._committed_s.setdefault(record.path, effect.at_s)
            switch = self._picture.switch(job)
            if switch is None:
                self._seen.broken("no late commit", f"{record.ref} of {job}, which etcd does not know")
                return
            if is_recorded_again(effect, key, record):
                self._check_recorded_again(switch, record)
                return
            if record.incarnation == ADOPTED:
                self._check_import(effect, switch, record)
                return
            self._seen.count("commits")
            late = switch.closing is not None or switch.generation != record.ref.generation
            if late or switch.job_uuid != record.job_uuid:
                self._seen.broken(
                    "no late commit", f"{record.ref} at generation {switch.generation}, {switch}"
                )
            return
        before = codec.decode(CommitRecord, effect.before[key].value)
        if before.state is CommitState.COLLECTING and record.state is not CommitState.COLLECTING:
            self._seen.broken("collecting is for good", str(record.ref))
        if record.state is CommitState.COLLECTING and before.state is CommitState.COMMITTED:
            self._seen.count("collected")
            self._check_collected(effect, job, record)

    def _check_recorded_again(self, switch: JobSwitch, record: CommitRecord) -> None:
        """Rule 8: what is made good from the store is the job's own, and good only if it was read back."""
        self._seen.count("recorded again")
        good = is_whole(self._world.stored(), record) and record.path not in self._world.rotten
        if good != (record.state is CommitState.COMMITTED) or record.job_uuid != switch.job_uuid:
            text = f"{record.ref} is {record.state.value} at {record.path}: {record.reason}"
            self._seen.broken("what is recorded again is read back", text)

    def _check_head(self, effect: Effect, job: str) -> None:
        """From now on the job counts as whole: nothing that etcd has lost of it may be missing."""
        raw = effect.puts.get(keys.switch(job))
        switch = codec.decode(JobSwitch, raw) if raw is not None else self._picture.switch(job)
        stored = self._world.stored()
        for record in self._seen.forgotten.get(switch.job_uuid, {}).values() if switch is not None else ():
            key = keys.commit(job, record.ref)
            there = key in effect.puts or self._picture.has(key)
            if not there and is_whole(stored, record):
                self._seen.broken(
                    "what etcd has forgotten is recorded again", f"{record.ref} of {job} is not"
                )

    def _check_import(self, effect: Effect, before: JobSwitch, record: CommitRecord) -> None:
        """Rule 12: what comes from elsewhere takes a generation above all, and descends from nothing."""
        self._seen.count("imports")
        job = before.job
        self._seen.flips[job, record.ref.generation] = effect.at_s
        raw = effect.puts.get(keys.switch(job))
        switch = codec.decode(JobSwitch, raw) if raw is not None else before
        ours = [each for each in self._world.training.programs if each.attempt.task.job == job]
        seen = {each.attempt.generation for each in ours} | {before.generation}
        seen |= {each.ref.generation for each in self._picture.commits() if each.job_uuid == record.job_uuid}
        origin = record.parent or switch.base
        if switch.generation != record.ref.generation or record.ref.generation <= max(seen) or origin:
            self._seen.broken(
                "an import takes a generation", f"{record.ref} from {origin}: {before}, {switch}"
            )
        if not is_whole(self._world.stored(), record) or record.path in self._world.rotten:
            self._seen.broken("an import is read back", f"{record.ref} at {record.path}")
        if not before.phase.ended or before.held or switch.phase is not before.phase:
            self._seen.broken("only a job that has ended takes an import", f"{before}, {switch}")

    def _check_collected(self, effect: Effect, job: str, record: CommitRecord) -> None:
        """Rule 9, and what the job's policy keeps of its lineage."""
        switch, lineage = self._picture.must_switch(job), self._picture.committed(job)
        closing = switch.closing.base if switch.closing is not None else None
        if record.ref in lineage[:2] or record.ref in (switch.base, closing):
            self._seen.broken("the newest two and the base stay", f"{record.ref} is collected: {lineage}")
        elif record.ref in lineage:
            self._check_policy(effect, job, record, lineage)

    def _check_policy(
        self, effect: Effect, job: str, record: CommitRecord, lineage: list[CheckpointRef]
    ) -> None:
        policy = self._picture.spec(job).checkpoint
        age_s = effect.at_s - self._committed_s[record.path]
        young = age_s < policy.keep_for_ms / 1000 - CLOCKS_S
        first = _is_first(record.ref, lineage, policy.keep_every)
        if record.ref in lineage[: policy.keep] or young or first:
            self._seen.broken("what the policy keeps stays", f"{record.ref} of {lineage}: {policy}")

    def _check_switch(self, switch: JobSwitch) -> None:
        before = self._picture.switch(switch.job)
        if before is None or before.job_uuid != switch.job_uuid:
            return
        self._check_fallback(before, switch)
        if switch.generation > before.generation and switch.phase is JobPhase.RUNNING:
            self._check_base(before, switch)

    def _check_fallback(self, before: JobSwitch, switch: JobSwitch) -> None:
        """Rule 8: one step back, where the job allows it and the store has not been read for so long."""
        was, now = before.closing, switch.closing
        if was is None or now is None or was.base == now.base or was.plan_id != now.plan_id:
            return
        self._seen.count("fallbacks")
        allowed_ms = self._picture.spec(switch.job).checkpoint.fallback_after_ms
        older = dict(pairwise(self._picture.committed(switch.job, before)))
        if allowed_ms is None or was.base is None or now.base != older.get(was.base):
            self._seen.broken("a fallback is one step back", f"{switch.job}: {was.base} -> {now.base}")
            return
        self._fallen[now.plan_id] = now.base
        well_s = self._world.loop.time() - self._world.network.troubled_s
        if well_s > (allowed_ms + self._world.timing.d_ms) / 1000:
            text = f"{was.base}, though the store has been well for {well_s:.1f} s"
            self._seen.broken("only what cannot be read is passed over", text)

    def _check_base(self, before: JobSwitch, switch: JobSwitch) -> None:
        """Rules 7 and 8: the newest committed one on the lineage, and it is whole in the store."""
        lineage = self._picture.committed(switch.job, before)
        newest = lineage[0] if lineage else None
        intent = self._picture.intent(switch.job)
        asked = intent.restart_from if intent is not None else None
        if asked is not None and switch.restart_serial > before.restart_serial:
            newest = asked
        newest = self._fallen.get(switch.plan_id, newest)
        if switch.base != newest:
            self._seen.broken("the base is the newest commit", f"{switch.base}, but {newest} is committed")
        if newest is not None:
            record = self._picture.commit(switch.job, newest)
            if record is None or not is_whole(self._world.stored(), record):
                self._seen.broken("the base can be restored", f"{newest} is not whole in the store")


def _is_first(ref: CheckpointRef, lineage: list[CheckpointRef], every: int) -> bool:
    """Whether it is the first on the lineage of its `every` steps; 0: of none."""
    return every > 0 and not any(each < ref and each.step // every == ref.step // every for each in lineage)


def is_whole(stored: Mapping[str, Mapping[str, bytes]], record: CommitRecord) -> bool:
    """Whether the store has what a commit record names, all of it."""
    files = files_below(stored, record.path)
    manifest = files.get("manifest.json")
    if manifest is None or f"{google_crc32c.value(manifest):08x}" != record.manifest_crc32c:
        return False
    named = [file["name"] for file in json.loads(manifest)["files"]]
    return sum(len(files.get(name, b"")) for name in named) == record.size
