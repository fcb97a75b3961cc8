"""The events that targets are told of, and the message for each. Pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable

from recovery.policy.history import ASKED
from supervisor.contract import codec, keys
from supervisor.contract.desired import ClusterRecord
from supervisor.contract.incident import Cause, Event, Topic
from supervisor.control.decide.jobs import failing, incidents
from supervisor.control.decide.jobs.prepare import PREPARE
from supervisor.control.decide.nodes import brake, node_loss
from supervisor.control.decide.parking import JOB_PARKED
from supervisor.control.decide.snapshot import Snapshot, Versioned

FAILED = "notify_failed"
"""Kind of the event that tells of a message that could not be delivered. No target is told of it."""

_TOPICS = {
    "job_failed": Topic.FAILED,
    JOB_PARKED: Topic.FAILED,
    "succeeded": Topic.SUCCEEDED,
    PREPARE: Topic.INCIDENT,
    "restart_in_place": Topic.INCIDENT,
    "moved": Topic.INCIDENT,
    "recovered": Topic.INCIDENT,
    incidents.HELD: Topic.INCIDENT,
    failing.LAST_RESTART: Topic.BUDGET,
    node_loss.LOST: Topic.NODE_LOST,
    "gpu_quarantined": Topic.GPU_QUARANTINED,
    "paused": Topic.AUTOMATION,
    "resumed": Topic.AUTOMATION,
    brake.HELD: Topic.AUTOMATION,
    brake.RELEASED: Topic.AUTOMATION,
}
"""Kind of event -> what it is about."""
_NO_FAILURE = frozenset(cause.value for cause in (*ASKED, Cause.RESIZED, Cause.DRAINED))
"""Causes of restarts that are no incident to be told of."""


def topic_of(event: Event) -> Topic | None:
    """What an event is about; None for an event that nobody is told of."""
    topic = _TOPICS.get(event.kind)
    if topic is Topic.INCIDENT and event.fields.get("cause") in _NO_FAILURE:
        return None
    return topic


def after(snap: Snapshot, revision: int) -> list[Versioned[Event]]:
    """The events since a revision of etcd, in the order in which they were written."""
    found = [held for held in snap.events if held.mod_revision > revision]
    return sorted(found, key=lambda held: held.mod_revision)


def identity(cluster: str, held: Versioned[Event]) -> str:
    """The identity of an event, the same whoever tells of it. `cluster`: its UUID."""
    (serial,) = keys.parse(held.key)
    content = f"{cluster} {held.key} ".encode() + codec.encode(held.value)
    return f"{int(serial)}-{hashlib.sha256(content).hexdigest()[:16]}"


def message(cluster: ClusterRecord, held: Versioned[Event]) -> bytes:
    """The message of an event, as JSON."""
    event, topic = held.value, topic_of(held.value)
    told = {
        "id": identity(cluster.uuid, held),
        "cluster": cluster.cluster,
        "topic": topic.value if topic is not None else "",
        "kind": event.kind,
        "job": event.job,
        "text": event.text,
        "fields": event.fields,
        "wall_ms": event.wall_ms,
    }
    return json.dumps(told, sort_keys=True).encode()


def named(snap: Snapshot, job: str) -> Iterable[str]:
    """The targets that a job's file names."""
    state = snap.jobs.get(job)
    return state.record.value.spec.notify if state is not None else ()
