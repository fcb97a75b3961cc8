"""A coordinator of TensorFlow 2 gets more workers, or fewer, while its program runs.

A worker that is added takes closures like any other. A closure may need what each worker has of its own, such
as an iterator of a dataset. The program made these when there were fewer workers, so they are made on the new
one when a closure first needs them there.

A worker that leaves is kept aside. Its thread gives back the closure that it has (`peers`), and waits for a
worker that comes in its place.
"""

from __future__ import annotations

import copy
import threading
import time
import types
import weakref
from typing import Any, Callable, List, Tuple, cast

_CLUSTER, _WORKERS = "_cluster", "workers"
"""The attribute of TensorFlow's handler of lost workers for its cluster, and that one's for its workers."""
_LEFT = "_tfsup_left"
"""Our attribute of a cluster for its workers that have left, the one with the smallest index last."""
_SOON_S, _LOOK_AGAIN_S = 10.0, 0.01
"""The handler is made first, and the workers of its cluster right after it."""
_ARGS, _KWARGS, _OUTPUT = "_args", "_kwargs", "_output_remote_value_ref"
"""Attributes of a closure."""
_VALUES, _CLOSURE = "_values", "_closure"
"""The values that workers have of their own, one each, and the closure that makes such a value again."""
_LOCK, _OWN = "_resource_tracking_lock", "_resource_remote_value_refs"
"""The values that a worker has of its own. They are made again after it was lost."""
_MADE = "_status_available_event"
"""Whether such a value was made, or has failed."""

Execute = Callable[[Any, Any], object]
"""Run a closure on a worker."""


def fits(handler: object, count: int) -> bool:
    """Whether a coordinator has so many workers, or is not known."""
    known = getattr(vars(handler).get(_CLUSTER), _WORKERS, None)
    return known is None or len(known) == count


def fit(handler: object, count: int) -> None:
    """Give a coordinator so many workers; its cluster knows them all. Those that are new begin at once.

    One that comes where another has left takes over what that one had of its own: TensorFlow makes it again.
    """
    cluster, until_s = vars(handler).get(_CLUSTER), time.monotonic() + _SOON_S
    while cluster is not None and not hasattr(cluster, _WORKERS) and time.monotonic() < until_s:
        time.sleep(_LOOK_AGAIN_S)
    if fits(handler, count):
        return
    workers: List[object] = getattr(cluster, _WORKERS)
    left: List[object] = vars(cluster).setdefault(_LEFT, [])
    make = cast(Callable[[int, str, object], object], type(workers[0]))
    while len(workers) > count:
        left.append(workers.pop())
        _give_up(left[-1])
    while len(workers) < count:
        name = f"/job:worker/replica:0/task:{len(workers)}"
        workers.append(left.pop() if left else make(len(workers), name, cluster))


def _give_up(worker: object) -> None:
    """Cancel what this worker has not made yet: a program may wait for it. Another in its place makes it."""
    with vars(worker)[_LOCK]:
        own: List[Any] = [of() for of in vars(worker)[_OWN]]
    for each in own:
        if each is not None and not vars(each)[_MADE].is_set():
            vars(each)[_CLOSURE].mark_cancelled()


def filling(module: types.ModuleType, execute: Execute) -> Callable[[object, object], None]:
    """The function that makes on a worker what a closure needs there and the worker does not have yet.

    It does nothing in a module that is not known. `execute` fails where the worker has left.
    """
    flatten = getattr(vars(module).get("nest"), "flatten", None)
    kind = vars(module).get("PerWorkerValues")
    lock = threading.Lock()

    def fill(closure: object, worker: object) -> None:
        if not callable(flatten) or not isinstance(kind, type):
            return
        for each in flatten((vars(closure).get(_ARGS, ()), vars(closure).get(_KWARGS, {}))):
            if isinstance(each, kind) and _lacks(each, worker):
                made = _made(each, worker, execute)
                with lock:
                    _give(each, worker, made)

    return fill


def _index(worker: object) -> int:
    return int(vars(worker)["worker_index"])


def _lacks(values: object, worker: object) -> bool:
    known: Tuple[object, ...] = vars(values)[_VALUES]
    return _index(worker) >= len(known) or known[_index(worker)] is None


def _made(values: object, worker: object, execute: Execute) -> object:
    """The values of this worker. The threads of other workers make theirs meanwhile."""
    own = vars(worker)
    closure: Any = copy.copy(vars(vars(values)[_VALUES][0])[_CLOSURE])
    vars(closure)[_OUTPUT] = None
    closure.tag = _index(worker)
    made: object = closure.build_output_remote_value()
    with own[_LOCK]:
        own[_OWN].append(weakref.ref(made))
    execute(closure, worker)
    return made


def _give(values: object, worker: object, made: object) -> None:
    index, known = _index(worker), list(vars(values)[_VALUES])
    known += [None] * (index + 1 - len(known))
    known[index] = made
    vars(values)[_VALUES] = tuple(known)
