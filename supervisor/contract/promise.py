"""The promises of rule 11: messages between an agent without etcd and supervisors, and a supervisor's record
of them.

By a promise a supervisor undertakes that for a while it sends no lost mark for a life of a node, and no flip
that takes that life's tasks away. Ages cross hosts, never times: each side counts on its own CLOCK_BOOTTIME.
"""

from __future__ import annotations

from dataclasses import dataclass, field

OPEN = -1


@dataclass(frozen=True, slots=True)
class PromiseRequest:
    """An agent asks one supervisor to promise that it leaves `incarnation` alone.

    `serial` grows with every request of that life. An older request that arrives late has no effect, and a
    beat that gives a serial up gives up all before it.
    """

    protocol: int
    node: str
    incarnation: str
    serial: int


@dataclass(frozen=True, slots=True)
class PromiseAnswer:
    """A promise for `for_ms` from the receipt of the request with this serial; or 0, and `refused` is the
    reason.
    """

    supervisor: str
    serial: int
    for_ms: int = 0
    refused: str = ""


@dataclass(frozen=True, slots=True)
class Promise:
    """A promise in force: no loss of this life is declared before `until_ms`.

    It was given at `given_ms`. Both times are on the promising supervisor's clock.
    """

    node: str
    incarnation: str
    serial: int
    until_ms: int
    given_ms: int


@dataclass(frozen=True, slots=True)
class Taking:
    """A transaction that takes `attempts` away from `nodes` was sent, or is about to be.

    It compares the leader token `token` and that the job's switch is at `switch_revision`: once etcd shows
    another of either, it has happened or never will. `since_ms`: when that was seen; OPEN (-1) before.
    """

    job: str
    nodes: tuple[str, ...]
    attempts: tuple[str, ...]
    token: int
    switch_revision: int
    since_ms: int = OPEN


@dataclass(frozen=True, slots=True)
class Word:
    """A supervisor's promises and takings.

    It keeps them on disk, because its next process must keep to them too.

    Attributes:
        boot_id: the machine's boot id: times on CLOCK_BOOTTIME are of this boot alone.
        silent_until_ms: until then it may be bound by promises that it has lost, and declares no node lost.
        blind: it does not know either which takings it has sent to etcd, and gives no promise until they are
            past.
        promises: by `decide.facts.promises.life_of`.
        takings: transactions that may still take effect; their nodes get no promise meanwhile.
    """

    boot_id: str
    silent_until_ms: int = 0
    blind: bool = False
    promises: dict[str, Promise] = field(default_factory=dict)
    takings: tuple[Taking, ...] = ()
