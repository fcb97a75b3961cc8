"""Faults of the checkpoint store: stored files spoilt, committers killed between effects, late committers."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from chaos.cluster import Cluster
from chaos.cluster.cluster import PREFIX
from chaos.faults import points
from chaos.faults.families.task import ordered
from chaos.faults.fault import Family, Fault, Incidents, expects
from chaos.faults.scene import DidNotBite, Scene, send

AGENT = "agent"
STRUCK_S = 30.0
FOLLOWED_S = 60.0
SUSPECTED_S = 60.0
SAVER = "chief.0"
COMMITTED, QUARANTINED = "committed", "quarantined"
BETWEEN = (
    *("commit.upload.before", "commit.upload.after"),
    *("commit.write_manifest.before", "commit.write_manifest.after", "commit.write_checkpoint.after"),
    *("commit.rename.before", "commit.rename.after", "commit.record.before", "commit.record.after"),
)
"""The points at which a committer is killed: between any two of its effects."""

Damage = Callable[[Path], str]


def files(cluster: Cluster) -> str | None:
    """Why stored files cannot be reached from here."""
    return "its checkpoints are in HDFS" if cluster.hadoop is not None else None


@dataclass(frozen=True, slots=True)
class Stored:
    """A committed checkpoint: its path below the job's directory in the store."""

    generation: int
    step: int
    path: str


def commits(scene: Scene) -> list[Stored]:
    """The job's committed checkpoints by etcd's word, the newest last."""
    return [
        Stored(each["ref"]["generation"], each["ref"]["step"], each["path"])
        for each in _records(scene)
        if each["state"] == COMMITTED
    ]


def _records(scene: Scene) -> list[dict[str, Any]]:
    found = scene.cluster.etcd().read(f"{PREFIX}commits/{scene.job.name}/")
    return [json.loads(raw) for _, raw in sorted(found.items())]


def saver(scene: Scene) -> Sequence[str]:
    """The node whose agent commits."""
    return [scene.task(SAVER).node]


# Files.


@contextmanager
def spoilt(scene: Scene, victim: str, *, damage: Damage, blame: bool) -> Iterator[str]:
    """Spoil the newest committed checkpoint, and kill a ps at once: the restart reads it.

    `blame`: the damage is in what a restore needs, so that the checkpoint is never whole again.
    """
    life = scene.process(scene.task(victim))
    newest = scene.wait("a second commit", lambda: found if len(found := commits(scene)) > 1 else None)[-1]
    directory = scene.cluster.store / scene.job.name / newest.path
    if blame:
        scene.damages.append(newest.path)
    try:
        said = damage(directory)
    except OSError as error:
        raise DidNotBite(f"{newest.path}: {error}") from error
    send(life, signal.SIGKILL)
    yield f"{newest.path}: {said}; {scene.gone(life)}"


@contextmanager
def unrestorable(scene: Scene, victim: str) -> Iterator[str]:
    """A ps is killed, and no program can restore the base of its successor, though all of it is whole."""
    life = scene.process(scene.task(victim))
    scene.wait("a second commit", lambda: True if len(commits(scene)) > 1 else None)
    with ordered(scene, "restore", do="refuse"):
        send(life, signal.SIGKILL)
        gone = scene.gone(life)
        aside = scene.wait("a suspected checkpoint", lambda: next(iter(_suspected(scene)), None), SUSPECTED_S)
        yield f"{gone}; {aside} is set aside"


def _suspected(scene: Scene) -> list[str]:
    mine = _records(scene)
    return [each["path"] for each in mine if each["state"] == QUARANTINED and each["suspected"]]


def _largest(directory: Path) -> Path:
    return max(directory.glob("*.data-*"), key=lambda path: path.stat().st_size)


def _index(directory: Path) -> Path:
    return next(iter(directory.glob("*.index")))


def flip(directory: Path) -> str:
    """One bit of the data."""
    path = _largest(directory)
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 1
    path.write_bytes(raw)
    return f"a bit of {path.name} is flipped"


def truncate(directory: Path) -> str:
    """The end of a shard is missing."""
    path = _largest(directory)
    size = path.stat().st_size
    os.truncate(path, size - 4096)
    return f"{path.name} has {path.stat().st_size} of {size} bytes"


def lose_index(directory: Path) -> str:
    """The index is missing."""
    path = _index(directory)
    path.unlink()
    return f"{path.name} is gone"


def stale_state(directory: Path) -> str:
    """TensorFlow's `checkpoint` file names another one; our manifest does not cover it."""
    path = directory / "checkpoint"
    path.write_text('model_checkpoint_path: "model.ckpt-0"\nall_model_checkpoint_paths: "model.ckpt-0"\n')
    return f"checkpoint names {path.read_text().split()[1]}"


# Committers.


@contextmanager
def committer_dead(scene: Scene, point: str) -> Iterator[str]:
    """The agent that commits kills itself right there; it is started again, as systemd would."""
    node = scene.cluster.nodes[scene.task(SAVER).node]
    life = scene.daemon(node.name, AGENT)
    with points.armed([node], point, "kill"):
        yield f"{scene.gone(life, STRUCK_S)}, at {point}"


@contextmanager
def committer_frozen(scene: Scene, point: str) -> Iterator[str]:
    """The agent that commits stands still right there until a later generation runs, and then goes on."""
    node = scene.cluster.nodes[scene.task(SAVER).node]
    old = _generation(scene)

    def later() -> bool | None:
        return True if _generation(scene) > old else None

    with points.armed([node], point, "freeze") as trap:
        _, agent = scene.wait(f"an agent at {point}", trap.struck, STRUCK_S)
        try:
            yield f"{scene.frozen(agent)} on {node.name}, at {point}"
            # Where a node without a warm launcher takes over, this is long after D.
            scene.wait("a later generation", later, FOLLOWED_S)
        finally:
            send(agent, signal.SIGCONT)


def _generation(scene: Scene) -> int:
    view = scene.job.view()
    return view.generation if view is not None else -1


def _spoil(name: str, text: str, damage: Damage, *, blame: bool = True) -> Fault:
    return Fault(
        name,
        Family.STORE,
        f"{text}, and a ps is killed",
        lambda scene: scene.members("ps"),
        partial(spoilt, damage=damage, blame=blame),
        expects(Incidents.ONE, "killed", scopes=["all"]),
        needs=files,
    )


FAULTS: tuple[Fault, ...] = (
    _spoil("flipped-bit", "a bit of the newest checkpoint flips", flip),
    _spoil("truncated-shard", "the newest checkpoint loses the end of a shard", truncate),
    _spoil("missing-index", "the newest checkpoint loses its index", lose_index),
    _spoil(
        "stale-checkpoint-file", "the newest checkpoint's state file names another", stale_state, blame=False
    ),
    Fault(
        "unrestorable",
        Family.STORE,
        "no program can restore the newest checkpoint, though it is whole, and a ps is killed",
        lambda scene: scene.members("ps"),
        unrestorable,
        expects(Incidents.ANY, "killed", "data_loss", scopes=["all"], program_faults=2),
        bound_s=40.0,
    ),
    Fault(
        "committer-killed",
        Family.STORE,
        "the agent that commits dies between two effects of a commit, and comes back",
        lambda _: BETWEEN,
        committer_dead,
        # On a busy machine its successor may be up only after D, or after its tasks' deadlines.
        expects(Incidents.ANY, "node_lost", "deadline", "launcher_lost"),
        hold_s=(1.0, 2.0),
    ),
    Fault(
        "zombie-commit",
        Family.STORE,
        "the agent that commits stands still in a commit until a later generation runs, and goes on",
        lambda _: ["commit.record.before", "commit.rename.before", "commit.upload.before"],
        committer_frozen,
        expects(Incidents.ONE, "node_lost", scopes=["all"]),
        hold_s=(9.0, 12.0),
        bound_s=40.0,
    ),
)
