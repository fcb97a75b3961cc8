"""The chief of style `coordinator` learns of workers that move, come or leave, while its program runs.

TensorFlow 2 renews a coordinator's view of its cluster after the loss of a worker. It waits for the address
that the worker had inside that call, and hears of no other. Here the call is made once all workers accept
connections, so until then another address can take the place of the former one. The rest of TensorFlow's own
recovery is as it was.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import json
import os
import socket
import struct
import threading
import time
import types
import weakref
from typing import (
    Any,
    Callable,
    Dict,
    Iterator,
    List,
    MutableMapping,
    MutableSet,
    NamedTuple,
    Optional,
    Protocol,
    Sequence,
    Set,
    Tuple,
    cast,
)

from . import adding, descriptors, waiting
from .patches import Change, method, put

COORDINATOR = "tensorflow.python.distribute.coordinator.cluster_coordinator"
CONTEXT = "tensorflow.python.eager.context"
WORKER, PS = "worker", "ps"
MOST_BYTES = 1 << 20
"""The rest of a longer message is lost, and what is left is no JSON."""

_LOOK_AGAIN_S = 0.1
_AT_A_TIME = 64
_UPDATE_S = 20.0
"""A call that renews the view takes some hundredths of a second, and one that is broken off ends soon."""
_FAIL_FAST, _AS_CALLED = "GRPC_FAIL_FAST", "use_caller"
"""TensorFlow reads this variable at each remote call. It has to exist early: a variable that comes later
would move all others while threads of TensorFlow read them."""
_SEVER_AGAIN_S = 0.5
_SEVERED_S = 60.0
"""An attempt to connect to a node that is gone takes 20 s, and what waits for it waits as long."""
_MAPPED = b"\0" * 10 + b"\xff" * 2
"""An address of IPv4 in a socket of IPv6 follows this."""
_SERVER_DEF, _RUNS, _DUE = "_server_def", "_should_preemption_thread_run", "_cluster_due_for_update_or_finish"
"""Attributes of TensorFlow's handler of lost workers."""

IsLost = Callable[[Exception], bool]
"""Whether TensorFlow takes an error for the loss of a worker, and renews its view again."""
_Cancelled = Callable[[None, None, str], Exception]
"""TensorFlow's error after which a closure goes back into the queue."""


class _Job(Protocol):
    """The part of a JobDef that is used."""

    name: str
    tasks: MutableMapping[int, str]


class _ClusterDef(Protocol):
    job: Sequence[_Job]


class _ServerDef(Protocol):
    cluster: _ClusterDef


class _Peers:
    """The handlers of lost workers in this process, and its end of the socket to the launcher."""

    def __init__(self, fd: int) -> None:
        self._socket = socket.socket(fileno=fd)
        self._changed = threading.Condition()
        self._handlers: MutableSet[object] = weakref.WeakSet()
        # A handler may be about to ask with one that has just been replaced.
        self._given: List[Tuple[object, weakref.ReferenceType[object]]] = []
        self._updating: Set[int] = set()
        self._asked: MutableMapping[object, _ServerDef] = weakref.WeakKeyDictionary()
        """The view that each handler has asked for last."""
        self._former: Dict[str, int] = {}
        self._severed: Dict[str, float] = {}
        self._listens = False

    def watch(self, handler: object) -> None:
        """From now on this handler of a coordinator gets the addresses of moved workers."""
        with self._changed:
            self._handlers.add(handler)
            self._given.append((_server_def(handler), weakref.ref(handler)))
            vars(vars(handler)[_DUE])["clear"] = functools.partial(self._clear, weakref.ref(handler))
            if not self._listens:
                self._listens = True
                threading.Thread(target=self._listen, name="tfsup-peers", daemon=True).start()

    def _clear(self, found: weakref.ReferenceType[object]) -> None:
        """A view is renewed: the handler needs no other one, unless it was given one since it asked.

        TensorFlow clears its event some time after the call, and would forget what became due meanwhile.
        """
        with self._changed:
            handler = found()
            if handler is not None and self._asked.get(handler) is _server_def(handler):
                threading.Event.clear(vars(handler)[_DUE])

    def is_moving(self, name: str) -> bool:
        """Whether this worker (`/job:worker/replica:0/task:1`) has left, or goes to a new address."""
        return name in self._former

    def wait(self, name: str) -> None:
        """Wait until this worker's address is in force."""
        with self._changed:
            while self.is_moving(name):
                self._changed.wait()

    def renew(self, server_def: object, update: Callable[[object], object], is_lost: IsLost) -> object:
        """Call `update` with the newest addresses, once all workers accept connections."""
        with self._changed:
            handler = next((of() for given, of in self._given if given is server_def), None)
        if handler is None:
            return update(server_def)
        newest = self._begin(handler)
        count = _workers_in(newest)
        try:
            with _failing_fast():
                found = update(newest)
        except Exception as error:
            awaited = any(index < count for index in self._former.values()) or not adding.fits(handler, count)
            if awaited and not is_lost(error):
                self._answer({"failed": f"its view of the cluster cannot be renewed: {error}"})
            with self._changed:
                self._changed.wait(_LOOK_AGAIN_S)  # TensorFlow would ask again at once
            raise
        else:
            adding.fit(handler, count)
            self._former = {name: index for name, index in self._former.items() if index >= count}
            return found
        finally:
            with self._changed:
                self._updating.discard(id(handler))
                self._changed.notify_all()

    def _begin(self, handler: object) -> _ServerDef:
        while _runs(handler):
            newest = _server_def(handler)
            is_up = _all_listen(newest)
            with self._changed:
                if newest is not _server_def(handler):
                    continue
                if is_up:
                    self._updating.add(id(handler))
                    self._asked[handler] = newest
                    return newest
                self._changed.wait(_LOOK_AGAIN_S)
        raise RuntimeError("the coordinator has stopped")

    def _listen(self) -> None:
        while True:
            now_s = time.monotonic()
            self._severed = {each: until_s for each, until_s in self._severed.items() if now_s < until_s}
            sever(list(self._severed))
            pause_s = _LOOK_AGAIN_S if self._former else _SEVER_AGAIN_S
            self._socket.settimeout(pause_s if self._severed else None)
            try:
                message = self._socket.recv(MOST_BYTES)
            except socket.timeout:
                continue
            except OSError:
                return
            if not message:
                return
            try:
                failure = self._take(json.loads(message)["cluster"])
            except Exception as error:
                failure = f"{type(error).__name__}: {error}"
            self._answer({"failed": failure} if failure else {})

    def _answer(self, words: Dict[str, str]) -> None:
        try:
            self._socket.send(json.dumps(words).encode())
        except OSError:
            pass  # the launcher is gone, and takes this process along

    def _take(self, cluster: Dict[str, List[str]]) -> str:
        """Returns the failure; empty if the addresses are in force from now on, or were before."""
        until_s = time.monotonic() + _UPDATE_S
        with self._changed:
            while self._updating:
                if time.monotonic() >= until_s:
                    return "TensorFlow waits for a former address inside a call"
                sever(self._left_by(cluster))
                self._changed.wait(_LOOK_AGAIN_S)
            former: Dict[int, str] = {}
            running = [each for each in self._handlers if _runs(each)]
            renewed = [(each, _renewed(_server_def(each), cluster, former)) for each in running]
            for handler, server_def in renewed:
                if server_def is not None:
                    self._given.append((server_def, weakref.ref(handler)))
                    vars(handler)[_SERVER_DEF] = server_def
            left = {f"/job:{WORKER}/replica:0/task:{index}": index for index in former}
            self._former = {**self._former, **left}
            self._changed.notify_all()
        _tell_environment(cluster)
        until_s = time.monotonic() + _SEVERED_S
        used = {each for addresses in cluster.values() for each in addresses}
        known = {**self._severed, **dict.fromkeys(former.values(), until_s)}
        self._severed = {each: until_s for each, until_s in known.items() if each not in used}
        for handler, server_def in renewed:
            if server_def is not None:
                vars(handler)[_DUE].set()
        return ""

    def _left_by(self, cluster: Dict[str, List[str]]) -> List[str]:
        """The addresses of workers that are not in `cluster` any more."""
        former: Dict[int, str] = {}
        for each in self._handlers:
            _renewed(_server_def(each), cluster, former)
        return list(former.values())


_fast = threading.Lock()
_updates: List[int] = []
"""The threads that update now: a program may have several coordinators."""


@contextlib.contextmanager
def _failing_fast() -> Iterator[None]:
    """The calls that are made inside fail if nobody listens, instead of waiting for a listener.

    One that may have died since it was seen to listen would hold up the update for ever.
    """
    with _fast:
        # Where the program has set another value, it decides.
        is_ours = bool(_updates) or os.environ.get(_FAIL_FAST) == _AS_CALLED
        if is_ours:
            _updates.append(threading.get_ident())
            os.environ[_FAIL_FAST] = "true"
    try:
        yield
    finally:
        with _fast:
            if is_ours:
                _updates.remove(threading.get_ident())
            if is_ours and not _updates:
                os.environ[_FAIL_FAST] = _AS_CALLED


def _server_def(handler: object) -> _ServerDef:
    found: _ServerDef = vars(handler)[_SERVER_DEF]
    return found


def _runs(handler: object) -> bool:
    return bool(vars(handler)[_RUNS])


_current: List[_Peers] = []
"""The one of this process, once its program begins."""


def _is_moving(name: str) -> bool:
    return bool(_current) and _current[0].is_moving(name)


def begin(fd: int) -> None:
    """The program begins; `fd` is its end of the launcher's socket, -1 if there is none."""
    if fd < 0:
        return
    os.environ.setdefault(_FAIL_FAST, _AS_CALLED)
    _current.append(_Peers(descriptors.raised(fd)))


def changes() -> Dict[str, Change]:
    """The changes that let a coordinator take new addresses, by module.

    They do nothing in a module that they do not recognise: the launcher then gets no answer.
    """
    lost: List[IsLost] = []
    return {
        COORDINATOR: functools.partial(_change_handler, lost),
        CONTEXT: functools.partial(_change_context, lost),
    }


class _Known(NamedTuple):
    """The parts of the coordinator's module that are changed or called."""

    handler: type
    init: types.FunctionType
    wait_on_failure: types.FunctionType
    closure: type
    execute_on: types.FunctionType
    resource: type
    is_lost: IsLost
    cancelled: _Cancelled

    @classmethod
    def of(cls, module: types.ModuleType) -> Optional[_Known]:
        """None if something is not as it is known."""
        handler, init = method(module, "WorkerPreemptionHandler", "__init__")
        _, wait_on_failure = method(module, "WorkerPreemptionHandler", "wait_on_failure")
        closure, execute_on = method(module, "Closure", "execute_on")
        others = (vars(module).get("ResourceClosure"), vars(module).get("_is_worker_failure"))
        cancelled = getattr(vars(module).get("errors"), "CancelledError", None)
        found = (handler, init, wait_on_failure, closure, execute_on, *others, cancelled)
        if None in found or init is None or not {_SERVER_DEF, _RUNS, _DUE} <= set(init.__code__.co_names):
            return None
        return cls(*cast(Any, found))


def _change_handler(lost: List[IsLost], module: types.ModuleType) -> None:
    known = _Known.of(module)
    if known is None:
        return
    _, init, wait_on_failure, _, execute_on, resource, is_lost, cancelled = known
    lost.append(is_lost)

    def watched(self: object, *args: object, **kwargs: object) -> None:
        init(self, *args, **kwargs)
        for peers in _current:
            peers.watch(self)

    @contextlib.contextmanager
    def watching(self: object, *args: object, **kwargs: object) -> Iterator[None]:
        name = str(kwargs.get("worker_device_name"))
        with wait_on_failure(self, *args, **kwargs):
            try:
                yield
            except Exception:
                if _is_moving(name):
                    # After this error TensorFlow gives the closure back, and forgets nothing of the worker.
                    # To forget, it calls the former address, and holds the interpreter's lock meanwhile.
                    raise cancelled(None, None, f"{name} has left, or moves to another address") from None
                raise
        for peers in _current:
            peers.wait(name)

    put(known.handler, "__init__", watched, init)
    put(known.handler, "wait_on_failure", watching, wait_on_failure)
    put(known.closure, "execute_on", _executed(module, execute_on, resource, cancelled), execute_on)


def _executed(
    module: types.ModuleType, execute_on: types.FunctionType, resource: type, cancelled: _Cancelled
) -> Callable[[object, object], object]:
    def execute(closure: object, worker: object) -> object:
        name = str(vars(worker)["device_name"])
        if _is_moving(name):
            raise cancelled(None, None, name)
        fill(closure, worker)
        return execute_on(closure, worker)

    def executed(self: object, worker: object) -> object:
        for peers in _current:
            if isinstance(self, resource):
                peers.wait(str(vars(worker)["device_name"]))  # no other worker can do it
        return execute(self, worker)

    # A wait while something is made for a closure would keep the closure from the other workers.
    fill = adding.filling(module, execute)
    return executed


def _change_context(lost: List[IsLost], module: types.ModuleType) -> None:
    context, update = method(module, "Context", "update_server_def")
    if context is None or update is None:
        return

    def renewing(self: object, server_def: object, *args: object, **kwargs: object) -> object:
        if not _current or not lost:
            return update(self, server_def, *args, **kwargs)
        return _current[0].renew(server_def, lambda newest: update(self, newest, *args, **kwargs), lost[0])

    put(context, "update_server_def", renewing, update)


def sever(addresses: List[str]) -> None:
    """Break all connections of this process to these addresses, and its attempts to connect.

    A call to a node that is gone without a word would never return, and the next one would wait for 20 s.
    """
    places = {place for each in addresses for place in _places(each)}
    if not places:
        return
    inodes = {inode for name in ("tcp", "tcp6") for remote, inode in _remotes(name) if remote in places}
    for fd in map(int, os.listdir("/proc/self/fd")):
        try:
            if os.readlink(f"/proc/self/fd/{fd}") in inodes:
                with socket.socket(fileno=os.dup(fd)) as sock:
                    sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            continue  # closed by now


def _remotes(name: str) -> List[Tuple[str, str]]:
    """The remote address of each socket of TCP, and the name that it has as an open file."""
    try:
        with open(f"/proc/self/net/{name}", encoding="ascii") as file:
            rows = [line.split() for line in file]
    except OSError:
        return []  # a machine without IPv6
    return [(row[2], f"socket:[{row[9]}]") for row in rows[1:]]


def _places(address: str) -> Set[str]:
    """An address as the kernel lists it: words of the machine's byte order; a port."""
    host, _, port = address.rpartition(":")
    try:
        found = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)
    except (OSError, ValueError):
        return set()
    places = set()
    for family, _, _, _, name in found:
        raw = socket.inet_pton(family, str(name[0]))
        for each in (raw, _MAPPED + raw)[: 2 if family == socket.AF_INET else 1]:
            words = struct.unpack(f"={len(each) // 4}I", each)
            places.add("".join(f"{word:08X}" for word in words) + f":{int(port):04X}")
    return places


def _all_listen(server_def: _ServerDef) -> bool:
    workers = [
        f"{WORKER}:{index}={address}"
        for job in server_def.cluster.job
        if job.name == WORKER
        for index, address in sorted(job.tasks.items())
    ]
    return not any(
        waiting.silent(workers[first : first + _AT_A_TIME]) for first in range(0, len(workers), _AT_A_TIME)
    )


def _renewed(
    server_def: _ServerDef, cluster: Dict[str, List[str]], former: Dict[int, str]
) -> Optional[_ServerDef]:
    """A copy with the addresses of `cluster`; None if none differs. `former` gets those that are replaced.

    Raises ValueError if more differs than the addresses and the number of workers.
    """
    found, changed = copy.deepcopy(server_def), False
    for job in found.cluster.job:
        if job.name not in (WORKER, PS):
            continue
        addresses = cluster.get(job.name, [])
        for index, address in sorted(job.tasks.items()):
            now = addresses[index] if index < len(addresses) else ""
            if now == address:
                continue
            if job.name != WORKER or not addresses:
                raise ValueError(
                    f"{job.name}:{index} is not at {address} any more; only workers move or leave"
                )
            former[index], changed = address, True
            if now:
                job.tasks[index] = now
            else:
                del job.tasks[index]
        if job.name == WORKER:
            for index, address in enumerate(addresses[len(job.tasks) :], len(job.tasks)):
                job.tasks[index], changed = address, True
    return found if changed else None


def _workers_in(server_def: _ServerDef) -> int:
    return sum(len(job.tasks) for job in server_def.cluster.job if job.name == WORKER)


def _tell_environment(cluster: Dict[str, List[str]]) -> None:
    """A strategy that the program makes later reads the addresses here."""
    try:
        told = json.loads(os.environ["TF_CONFIG"])
        told["cluster"] = {role: cluster.get(role, old) for role, old in told["cluster"].items()}
    except (KeyError, ValueError, TypeError, AttributeError):
        return  # the program has made something else of it
    os.environ["TF_CONFIG"] = json.dumps(told)
