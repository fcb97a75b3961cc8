"""The messages between a launcher and an agent: JSON lines over the node's Unix stream socket.

Each message is one line of at most `MAX_LINE_BYTES`, an object whose "type" names the class below in
snake_case (`AckExit` is "ack_exit"). Readers skip types and fields that they do not know and take the default
for fields that are missing, so that a launcher outlives releases of its agent; another `PROTOCOL` number is
refused by the agent, and the launcher then goes on until its deadline. Every `_ms` stamp is CLOCK_BOOTTIME.
"""

from __future__ import annotations

import json
import re
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from typing import TypeVar

PROTOCOL = 1
MAX_LINE_BYTES = 1 << 20
MAX_NUMBER = 1 << 53
"""The largest time or count in a launcher's message, so that values derived from it fit into 64 bits."""

T = TypeVar("T")


class ProtocolError(Exception):
    """The peer sent a line that is not a message of this protocol."""


# What the launcher sends.


@dataclass(frozen=True)
class HeldPort:
    """A port that a launcher holds for a reservation."""

    reservation: str
    port: int


@dataclass(frozen=True)
class RunningAttempt:
    """An attempt that is alive, or not yet confirmed dead. `start_ticks`: field 22 of /proc/PID/stat.

    `tensorflow`: the version that its launcher has imported; empty if none. `secrets`: as in `Start`.
    `takes_addresses`: its program was forked by the launcher itself, and hears of `Peers`.
    """

    attempt: str
    pid: int
    start_ticks: int
    port: int | None
    incarnation: str
    tensorflow: str = ""
    secrets: dict[str, str] = field(default_factory=dict, repr=False)
    takes_addresses: bool = False


@dataclass(frozen=True)
class Exited:
    """An attempt's main process has ended. Sent again in each hello until `AckExit`.

    `reason` is "exit" (by itself), "killed" (by `Kill` or `Shutdown`), "deadline" (rule 4), "lost" (by a
    signal to the launcher) or "devices_lost" (of `Start.devices`). After the last two the launcher leaves.
    Exactly one of `code` and `signal` is set. `confirmed_dead` is False while `survivors` processes of the
    attempt are still seen; the launcher goes on killing them and sends the message again when none is left.
    `port` is the attempt's, still held by the launcher for an in-place restart.
    """

    attempt: str
    code: int | None
    signal: int | None
    at_ms: int
    reason: str
    confirmed_dead: bool
    survivors: int = 0
    detail: str = ""
    port: int | None = None
    total_bytes: int = 0


@dataclass(frozen=True)
class Hello:
    """First message on every connection: the launcher's identity, its ports, its attempt and its exit
    records.

    `adopts`, `keeps_secrets`, `joins`: it supports `Start.adopt`, `Start.secrets` and `Start.joins`, which
    launchers of earlier releases ignore. `adds_workers`, `drops_workers`: a coordinator takes more workers,
    or fewer, by `Peers`.
    """

    protocol: int
    launcher_id: str
    job: str
    pid: int
    start_ticks: int
    boot_id: str
    warm: bool
    reservations: tuple[HeldPort, ...] = ()
    attempt: RunningAttempt | None = None
    exits: tuple[Exited, ...] = ()
    marker: str = ""
    adopts: bool = False
    keeps_secrets: bool = False
    joins: bool = False
    adds_workers: bool = False
    drops_workers: bool = False


@dataclass(frozen=True)
class Warm:
    """Preloading ended after `preload_ms`; `error` names a module that failed (attempts then start cold)."""

    preload_ms: int
    error: str | None = None


@dataclass(frozen=True)
class Reserved:
    """The launcher holds `port` for `reservation`."""

    reservation: str
    port: int


@dataclass(frozen=True)
class ReserveFailed:
    """No port could be claimed."""

    reservation: str
    reason: str


@dataclass(frozen=True)
class Started:
    """The attempt's main process runs. `warm`: forked from the pre-imported interpreter, or the parent of a
    wrapper whose Python may be.

    `tensorflow`, `takes_addresses`: as in `RunningAttempt`.
    """

    attempt: str
    pid: int
    start_ticks: int
    at_ms: int
    warm: bool = False
    tensorflow: str = ""
    takes_addresses: bool = False


@dataclass(frozen=True)
class StartFailed:
    """The attempt was not started."""

    attempt: str
    reason: str


@dataclass(frozen=True)
class Output:
    """The attempt has written `total_bytes` so far; at most one each 20 ms."""

    attempt: str
    total_bytes: int
    at_ms: int


@dataclass(frozen=True)
class PeersFailed:
    """The program could not take the addresses of a `Peers`; it goes on with those that it had."""

    attempt: str
    reason: str


@dataclass(frozen=True)
class Pull:
    """A launcher's question whether it may go on.

    One is in flight; the next follows the answer or a reconnect.
    """

    stamp_ms: int
    incarnation: str | None = None
    attempt: str | None = None


# What the agent sends.


@dataclass(frozen=True)
class Welcome:
    """Answer to hello."""

    protocol: int
    incarnation: str


@dataclass(frozen=True)
class Refuse:
    """Answer to hello: the agent will not serve this launcher, which goes on until its deadline."""

    reason: str


@dataclass(frozen=True)
class Grant:
    """Answer to the pull of `stamp_ms`: the deadline is exactly `stamp_ms + remaining_ms`.

    `remaining_ms` is the agent's rule-3 deadline minus its own now, kill_time and drift. 0 or less kills at
    once. An agent that does not know the attempt yet does not answer.
    """

    stamp_ms: int
    remaining_ms: int
    incarnation: str


@dataclass(frozen=True)
class Reserve:
    """Claim a port of low..high (inclusive), or exactly `reuse`, under the locks in `lock_dir`.

    If that is empty, only the launcher and its children are in its network, and it has locks of its own.
    """

    reservation: str
    low: int
    high: int
    lock_dir: str
    avoid: tuple[int, ...] = ()
    reuse: int | None = None


@dataclass(frozen=True)
class Release:
    """Release a reservation's port; not an error if it is unknown."""

    reservation: str


@dataclass(frozen=True)
class Start:
    """Start an attempt, once a grant is in force.

    `env` is added to the job's environment. Output goes to `output.log` in `attempt_dir`, rotated to
    `output.log.1`, ... so that at most `log_files` files of `log_max_bytes` each exist. First it waits until
    the file `must_see` exists; if that takes longer than `see_ms`, it ends with code `waiting.NO_DIRECTORY`.
    Then the path `adopt` is made to lead to `$CHECKPOINT_DIR` of `env`; if that fails, the code is
    `adopt.NOT_ADOPTED`. The program starts when all of `wait_for` (each `ROLE:INDEX=HOST:PORT`) accept
    connections; if that takes longer than `wait_ms`, the code is `waiting.NEVER_READY`, and `Exited.detail`
    names the missing ones. `alone`: it binds its port without SO_REUSEPORT, so no other socket may hold the
    port meanwhile. `yields`: it starts at half the nice value of training tasks, as it can only wait for
    others that start. `devices` are the UUIDs of its GPUs: every `devices_ms` they are checked in its
    container by the library `nvml`. `secrets`: variables for the program alone. They are in no file, and are
    masked in the output. `joins`: it is of a task that moved inside its generation. Its program joins a
    cluster whose other tasks run, and know it at an earlier address. `hosts`: those of the cluster, which no
    proxy stands between.
    """

    attempt: str
    incarnation: str
    argv: tuple[str, ...]
    cwd: str
    attempt_dir: str
    env: dict[str, str] = field(default_factory=dict)
    reservation: str | None = None
    log_max_bytes: int = 64 << 20
    log_files: int = 4
    warm: bool = True
    wait_for: tuple[str, ...] = ()
    wait_ms: int | None = None
    alone: bool = False
    yields: bool = False
    must_see: str = ""
    see_ms: int = 600_000
    devices: tuple[str, ...] = ()
    devices_ms: int = 500
    adopt: str = ""
    nvml: str = "libnvidia-ml.so.1"
    secrets: dict[str, str] = field(default_factory=dict, repr=False)
    joins: bool = False
    hosts: tuple[str, ...] = ()


@dataclass(frozen=True)
class Kill:
    """Kill all processes of the attempt. If it has ended already, its exit is sent again."""

    attempt: str
    reason: str = ""


@dataclass(frozen=True)
class Terminate:
    """Send SIGTERM to the attempt's main process, so that it can save. A second message does nothing."""

    attempt: str


@dataclass(frozen=True)
class Suspend:
    """Stop all processes of the attempt by SIGSTOP, for inspection. A kill ends them as usual."""

    attempt: str


@dataclass(frozen=True)
class Peers:
    """All addresses of the cluster by role, for the running chief of style `coordinator`: a worker has moved.

    It is sent once the former address of that worker is fenced, and again after each reconnect. Addresses
    that the program has already change nothing. Launchers of earlier releases ignore it.
    """

    attempt: str
    cluster: dict[str, list[str]]


@dataclass(frozen=True)
class AckExit:
    """The agent has recorded the exit; the launcher forgets it."""

    attempt: str


@dataclass(frozen=True)
class Weight:
    """Sent with a descriptor of the file that weighs the launcher's control group.

    The launcher writes `first` to it before it kills, and `usual` when all processes are dead. Launchers of
    earlier releases ignore both.
    """

    first: int
    usual: int


@dataclass(frozen=True)
class Shutdown:
    """Leave now, after killing a running attempt."""


@dataclass(frozen=True)
class LauncherConfig:
    """The JSON file that a launcher reads at its start (path in argv[1], mode 0600).

    `env` is the job's environment, whole: it is set before the `preload` modules are imported. `state_dir`
    keeps exit records while the agent is away. Attempts' oom_score_adj is raised by `oom_score_adj`. An
    attempt starts at the launcher's priority and is set to `task_nice` after `settle_ms`. In a container:
    with `inherits` the variables of its image and its runtime belong to that environment; `log` takes the
    launcher's own output, which docker would otherwise keep or block on. `clears`: directories in memory
    where attempts leave nothing, nor any System V object; only for a user that no other job has.
    `preload_ms`: for how long it may import; 0: without end.
    """

    protocol: int
    launcher_id: str
    job: str
    socket: str
    state_dir: str
    preload: tuple[str, ...] = ()
    env: dict[str, str] = field(default_factory=dict)
    pull_ms: int = 250
    idle_pull_ms: int = 1_000
    linger_ms: int = 30_000
    oom_score_adj: int = 500
    task_nice: int = 0
    settle_ms: int = 3_000
    inherits: bool = False
    log: str = ""
    clears: tuple[str, ...] = ()
    preload_ms: int = 0


_FROM_LAUNCHER = (
    *(Hello, Warm, Reserved, ReserveFailed, Started, StartFailed, Exited, Output, PeersFailed, Pull),
)
_FROM_AGENT = (
    *(Welcome, Refuse, Grant, Reserve, Release, Start, Kill, Terminate, Suspend, Peers, AckExit, Weight),
    Shutdown,
)


def type_name(kind: type) -> str:
    """`AckExit` -> "ack_exit"."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", kind.__name__).lower()


MESSAGES = {type_name(kind): kind for kind in _FROM_LAUNCHER + _FROM_AGENT}
_NESTED = {kind.__name__: kind for kind in (HeldPort, RunningAttempt, Exited)}


def encode(message: object) -> bytes:
    """A message as one line with its newline. Raises ProtocolError if it is longer than a peer accepts."""
    line = json.dumps({"type": type_name(type(message)), **to_plain(message)}, separators=(",", ":")).encode()
    if len(line) >= MAX_LINE_BYTES:
        raise ProtocolError(f"{type(message).__name__} of {len(line)} bytes is too long")
    return line + b"\n"


def decode(line: bytes) -> object | None:
    """The message in a line; None for a type that this release does not know. Raises ProtocolError."""
    body = _parsed(line)
    if not isinstance(body, dict) or not isinstance(body.get("type"), str):
        raise ProtocolError("not an object with a type")
    kind = MESSAGES.get(body["type"])
    return None if kind is None else from_plain(kind, _whole(line, body) if kind in _FROM_LAUNCHER else body)


def to_plain(value: object) -> dict[str, object]:
    """A dataclass of this module as the object that `json.dumps` accepts."""
    assert is_dataclass(value)
    assert not isinstance(value, type)
    return {each.name: _plain(getattr(value, each.name)) for each in fields(value)}


def from_plain(kind: type[T], body: object) -> T:
    """Build `kind` from parsed JSON. Raises ProtocolError that names the wrong field."""
    if not isinstance(body, dict):
        raise ProtocolError(f"{kind.__name__}: not an object")
    assert is_dataclass(kind)
    values = {}
    for each in fields(kind):
        if each.name in body:
            values[each.name] = _read(str(each.type), body[each.name], f"{kind.__name__}.{each.name}")
        elif each.default is MISSING and each.default_factory is MISSING:
            raise ProtocolError(f"{kind.__name__}.{each.name} is missing")
    return kind(**values)


class LineBuffer:
    """Cuts a byte stream into lines; raises ProtocolError for one over the limit."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """The lines that `data` completes, without their newlines."""
        self._rest += data
        *lines, rest = self._rest.split(b"\n")
        self._rest = rest
        if len(rest) > MAX_LINE_BYTES or any(len(line) > MAX_LINE_BYTES for line in lines):
            raise ProtocolError(f"a line of more than {MAX_LINE_BYTES} bytes")
        return [bytes(line) for line in lines if line]


def _parsed(line: bytes) -> object:
    try:
        return json.loads(line.decode("utf-8", "replace"))
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"not JSON: {str(error)[:200]}") from error


def _whole(line: bytes, body: object) -> object:
    """A parsed line without half characters, which neither a log nor a record can hold.

    They are rare, and are escaped.
    """
    if b"\\ud" not in line.lower():
        return body
    return _parsed(json.dumps(body, ensure_ascii=False).encode("utf-8", "replace"))


def _plain(value: object) -> object:
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return to_plain(value) if is_dataclass(value) else value


def _is_texts(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def _read(hint: str, value: object, where: str) -> object:
    # The annotations stay strings: evaluating `int | None` needs a newer Python than jobs may have.
    if hint.endswith(" | None"):
        return None if value is None else _read(hint[: -len(" | None")], value, where)
    if hint.startswith("tuple["):
        if not isinstance(value, list):
            raise ProtocolError(f"{where}: not a list")
        inner = hint[len("tuple[") : -len(", ...]")]
        return tuple(_read(inner, item, where) for item in value)
    if hint == "dict[str, str]":
        if not isinstance(value, dict) or not all(isinstance(item, str) for item in value.values()):
            raise ProtocolError(f"{where}: not an object of strings")
        return value
    if hint == "dict[str, list[str]]":
        if not isinstance(value, dict) or not all(map(_is_texts, value.values())):
            raise ProtocolError(f"{where}: not an object of lists of strings")
        return value
    if hint in _NESTED:
        return from_plain(_NESTED[hint], value)
    if type(value).__name__ != hint:
        raise ProtocolError(f"{where}: expected {hint}, found {type(value).__name__}")
    if isinstance(value, int) and abs(value) > MAX_NUMBER:
        raise ProtocolError(f"{where}: out of bounds")
    return value
