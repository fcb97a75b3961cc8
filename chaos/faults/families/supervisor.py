"""Faults of supervisors: killed, frozen, restarted, at any moment and at the worst ones."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial

from chaos.faults import points
from chaos.faults.daemons import all_dead, dead, frozen
from chaos.faults.fault import Family, Fault, Incidents, expects
from chaos.faults.scene import DidNotBite, Scene, send

DAEMON = "supervisor"
LED_S = 20.0
STRUCK_S = 30.0
STOPPED_S = 2.0
NOBODY = "nobody"


def leader(scene: Scene) -> Sequence[str]:
    """The node of the one that leads."""
    return [scene.wait("a leader", lambda: led_by(scene), LED_S)]


def followers(scene: Scene) -> Sequence[str]:
    """The nodes of the others."""
    leads = leader(scene)
    return [node.name for node in scene.nodes("sup-") if node.name not in leads]


def everybody(_: Scene) -> Sequence[str]:
    """One target: all of them."""
    return ["all supervisors"]


def led_by(scene: Scene) -> str | None:
    """The node of the leader, as etcd has it; None while nobody leads."""
    try:
        return scene.cluster.leader() or None
    except OSError:
        return None


@contextmanager
def several_dead(scene: Scene, _: str, *, count: int | None = None) -> Iterator[str]:
    """SIGKILL of so many at once, the leader among them; all by default."""
    names = [*leader(scene), *scene.random.sample(found := [*followers(scene)], len(found))][:count]
    with all_dead(scene, names, daemon=DAEMON) as evidence:
        yield evidence


@contextmanager
def frozen_at(scene: Scene, victim: str, *, point: str) -> Iterator[str]:
    """The leader stops itself right there, whoever leads by then; a task is killed first, if one is named."""
    with points.armed(scene.nodes("sup-"), point, "freeze") as trap:
        said = ""
        try:
            if victim != NOBODY:
                life = scene.process(scene.task(victim))
                send(life, signal.SIGKILL)
                said = f"; {scene.gone(life)}"
            node, leader = scene.wait(f"a leader at {point}", trap.struck, STRUCK_S)
            # Whoever leads next gets past it.
            trap.disarm()
            yield f"{scene.frozen(leader)} on {node.name}, at {point}{said}"
        finally:
            trap.disarm()
            for _, each in trap.all_struck():
                # Another fault may have ended it, or let it go on.
                with suppress(DidNotBite):
                    scene.frozen(each, STOPPED_S)
                with suppress(DidNotBite):
                    send(each, signal.SIGCONT)


@contextmanager
def rolling(scene: Scene, _: str, *, daemon: str = DAEMON, prefix: str = "sup-") -> Iterator[str]:
    """One after the other is stopped by SIGTERM and started again."""
    said: list[str] = []
    with ExitStack() as started:
        for node in scene.nodes(prefix):
            life = scene.daemon(node.name, daemon)
            node.daemons[daemon].stop()
            started.callback(node.daemons[daemon].start)
            said.append(scene.gone(life))
            node.daemons[daemon].start()
            scene.wait("a leader", lambda: led_by(scene), LED_S)
    yield "; ".join(said)


def _moment(name: str, victim: str, point: str, text: str) -> Fault:
    """The leader frozen at one of its own transactions."""
    return Fault(
        f"freeze-{name}",
        Family.SUPERVISOR,
        f"the leader stands still {text}",
        lambda _: [victim],
        partial(frozen_at, point=f"leader.{point}"),
        expects(Incidents.NONE) if victim == NOBODY else expects(Incidents.ONE, "killed", scopes=["all"]),
        hold_s=(1.5, 5.0),
    )


FAULTS: tuple[Fault, ...] = (
    Fault(
        "kill-leader",
        Family.SUPERVISOR,
        "SIGKILL of the leader",
        leader,
        partial(dead, daemon=DAEMON),
        hold_s=(0.0, 6.0),
    ),
    Fault(
        "kill-follower",
        Family.SUPERVISOR,
        "SIGKILL of a follower",
        followers,
        partial(dead, daemon=DAEMON),
        hold_s=(0.0, 4.0),
    ),
    Fault(
        "freeze-leader",
        Family.SUPERVISOR,
        "the leader stands still for longer than its lease, and goes on",
        leader,
        partial(frozen, daemon=DAEMON),
        hold_s=(1.5, 6.0),
    ),
    Fault(
        "freeze-follower",
        Family.SUPERVISOR,
        "a follower stands still for longer than a lease, and goes on",
        followers,
        partial(frozen, daemon=DAEMON),
        hold_s=(1.5, 6.0),
    ),
    _moment("prepared", "ps.0", "prepare.after", "between prepare and close"),
    _moment("closed", "ps.0", "close.after", "between close and flip"),
    _moment("flipping", "ps.0", "flip.before", "with the flip in hand, which it sends when it goes on"),
    _moment("collecting", NOBODY, "checkpoint_collecting.after", "in the middle of a collection"),
    Fault(
        "kill-two-supervisors",
        Family.SUPERVISOR,
        "SIGKILL of the leader and a follower at once",
        everybody,
        partial(several_dead, count=2),
        hold_s=(0.5, 5.0),
    ),
    Fault(
        "kill-all-supervisors",
        Family.SUPERVISOR,
        "SIGKILL of all supervisors at once",
        everybody,
        several_dead,
        hold_s=(0.5, 6.0),
    ),
    Fault(
        "rolling-supervisors",
        Family.SUPERVISOR,
        "supervisors are restarted one after the other",
        everybody,
        rolling,
    ),
)
