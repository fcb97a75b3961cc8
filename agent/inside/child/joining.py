"""A worker of TensorFlow 1 that joins a cluster whose other tasks run, and know it at an earlier address.

Its own sessions tell the others where it is: each of them brings the ClusterSpec along, and the parameter
servers serve it by that one, with the variables that they have (`SHARES`). TensorFlow demands
that the worker's server has another name then, so it starts as the only task of a role `local`. Nothing
changes in the other tasks. A worker of TensorFlow 2 that is started so serves its coordinator as usual.
"""

from __future__ import annotations

import copy
import functools
import inspect
import types
from typing import Any, Callable, Dict, List, Optional

from .patches import Change, method, put

SERVER = "tensorflow.python.training.server_lib"
SESSION = "tensorflow.python.client.session"
ROLE = "local"
SHARES = "share_session_state_in_clusterspec_propagation"
_SCHEME = "grpc://"
_HERE = ("localhost", "127.0.0.1", "[::1]", "0.0.0.0", "")


class _Own:
    """The server of this process that has joined."""

    def __init__(self, target: str, cluster: object) -> None:
        self.target = target
        self.cluster = cluster
        """Without its peers of the same role: a session would wait for each, and one may be away."""

    def is_target(self, target: object) -> bool:
        """Whether a session with this target runs on it."""
        text = target.decode(errors="replace") if isinstance(target, bytes) else target
        if not isinstance(text, str) or not text.startswith(_SCHEME):
            return False
        host, _, port = text[len(_SCHEME) :].rpartition(":")
        own_host, _, own_port = self.target[len(_SCHEME) :].rpartition(":")
        return port == own_port and host in (own_host, *_HERE)


def changes() -> Dict[str, Change]:
    """The changes that make the servers and sessions of this process join, by module.

    Each raises ValueError in a module that it does not recognise: a worker that cannot join would wait for
    ever.
    """
    owns: List[_Own] = []
    return {
        SERVER: functools.partial(_change_server, owns),
        SESSION: functools.partial(_change_session, owns),
    }


def _change_server(owns: List[_Own], module: types.ModuleType) -> None:
    server, init = method(module, "Server", "__init__")
    describe = vars(module).get("_make_server_def")
    if server is None or init is None or not callable(describe):
        raise ValueError("the servers of this TensorFlow are not known")
    if (*inspect.signature(init).parameters,)[1:] != (*inspect.signature(describe).parameters, "start"):
        raise ValueError("the servers of this TensorFlow are not known")
    make: Callable[..., Any] = describe
    parameters = inspect.signature(init)

    def joining(self: object, *args: object, **kwargs: object) -> None:
        bound = parameters.bind(self, *args, **kwargs)
        bound.apply_defaults()
        _, *described, start = bound.args
        wanted = make(*described)
        addresses = {job.name: job.tasks for job in wanted.cluster.job}
        if sum(map(len, addresses.values())) < 2:
            init(self, wanted, start=start)
            return
        alone = copy.deepcopy(wanted)
        alone.cluster.Clear()
        alone.cluster.job.add(name=ROLE).tasks[0] = addresses[wanted.job_name][wanted.task_index]
        alone.job_name, alone.task_index = ROLE, 0
        init(self, alone, start=start)
        vars(self)["_server_def"] = wanted
        needed = copy.deepcopy(wanted.cluster)
        for job in needed.job:
            for index in set(job.tasks) - {wanted.task_index} if job.name == wanted.job_name else ():
                del job.tasks[index]
        owns.append(_Own(vars(server)["target"].fget(self), needed))

    put(server, "__init__", joining, init)


def _change_session(owns: List[_Own], module: types.ModuleType) -> None:
    session, init = method(module, "BaseSession", "__init__")
    messages = vars(module).get("config_pb2")
    defaults = vars(module).get("context")
    config_proto = getattr(messages, "ConfigProto", None)
    if (
        session is None
        or init is None
        or not isinstance(config_proto, type)
        or not hasattr(getattr(config_proto(), "experimental", None), SHARES)
    ):
        raise ValueError("the sessions of this TensorFlow are not known")
    context: Any = defaults

    def joining(
        self: object, target: object = "", graph: object = None, config: Optional[object] = None
    ) -> None:
        own = next((each for each in reversed(owns) if each.is_target(target)), None)
        if own is not None and (config is None or isinstance(config, config_proto)):
            told: Any = copy.deepcopy(context.context().config if config is None else config)
            if not told.HasField("cluster_def"):
                told.cluster_def.CopyFrom(own.cluster)
                setattr(told.experimental, SHARES, True)
            target, config = own.target, told
        init(self, target, graph, config)

    put(session, "__init__", joining, init)
