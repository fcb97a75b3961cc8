"""GPUs that are lost inside a container alone, while NVML outside of it finds them well."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial

from chaos import nvidia_docker
from chaos.faults.families.docker import container_of
from chaos.faults.families.gpu import SETTLED, Held, health_of, held_by, holders
from chaos.faults.fault import Family, Fault, Incidents, expects
from chaos.faults.kernel import Life
from chaos.faults.scene import DidNotBite, Scene

NVIDIA_DOCKER = (("agents", 0), ("docker_agents", 3), ("gpus", 2))
NOTICED_S = 20.0
"""Looks are half a second apart; a container that nobody has ended by then keeps its promise broken."""

Deed = Callable[[Held, str, Life], str]
"""Does it to the container of a process that has the GPU; what the kernel says of it then. Raises OSError."""


@contextmanager
def lost(scene: Scene, member: str, *, deed: Deed) -> Iterator[str]:
    """It cannot be mended: over when the process has ended, whose successor gets another container."""
    held, life = held_by(scene, member), scene.process(scene.task(member))
    node, ident = container_of(scene, member)
    try:
        said = deed(held, ident, life)
    except OSError:
        said = f"{scene.gone(life)} already"
    if (outside := health_of(scene, held)) != SETTLED:
        raise DidNotBite(f"NVML of {node} has lost {held.uuid}, too: {outside}")
    yield f"container {ident[:12]} of {node}: {said}; outside {held.uuid} is {outside}"
    with suppress(DidNotBite):
        scene.gone(life, NOTICED_S)


def vanish(held: Held, ident: str, life: Life) -> str:
    """NVML inside does not find it any more."""
    nvidia_docker.see(held.nvml, ident)
    left = nvidia_docker.sees(life.pid)
    if held.uuid in left:
        raise DidNotBite(f"{held.uuid} is still seen")
    return f"sees {', '.join(left) or 'no GPU'}"


def deny(_: Held, ident: str, life: Life) -> str:
    """The kernel lets nobody inside open the devices any more, as after a reload of systemd's units."""
    if nvidia_docker.denied(life.pid):
        raise DidNotBite(f"container {ident[:12]} had no devices before")
    nvidia_docker.deny(life.pid)
    if not nvidia_docker.denied(life.pid):
        raise DidNotBite(f"container {ident[:12]} may still open its devices")
    return "may not open its devices"


FAULTS: tuple[Fault, ...] = tuple(
    Fault(
        name,
        Family.GPU,
        text,
        holders,
        partial(lost, deed=deed),
        expects(Incidents.ONE, "gpu", scopes=["task"]),
        bound_s=60.0,
        shape=NVIDIA_DOCKER,
    )
    for name, text, deed in (
        ("gpu-lost-inside", "a worker's GPU vanishes inside its container alone", vanish),
        ("gpu-denied-inside", "a worker's container may not open its GPUs any more", deny),
    )
)
