"""The bounds of a job's fields. Pure.

They are checked when a job file is read and again when a leader takes the job, so that other clients than
`supervisorctl` are bound too. The tables of docs/job-file.md have the bounds of `NUMBERS`.
"""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, partial

from supervisor.contract import bounds, codec, secret
from supervisor.contract.desired import ClusterSpec, RoleAddresses
from supervisor.contract.errors import UserError
from supervisor.contract.ids import check_name
from supervisor.contract.job import container, data, environment, serving
from supervisor.contract.job.adopted_path import holds_program
from supervisor.contract.job.container import Objection, Where
from supervisor.contract.job.file_pattern import compile_pattern
from supervisor.contract.job.placeholders import fill, fill_earlier
from supervisor.contract.job.spec import (
    CHIEF_ROLES,
    JobSpec,
    PsRecovery,
    RoleSpec,
    Scope,
    Strategy,
    SuccessPolicy,
)
from supervisor.contract.job.step_pattern import check_step_pattern
from supervisor.contract.job.tf_config import placeholder_values

MODES = ("staged", "mounted")
CADENCES = ("auto", "off")
OVERHEAD = (0.01, 50.0)
"""Per cent of the time, at least and at most."""
_SPARE_DIRECTORY = "d" * 256
"""Stands for a path that only the node knows."""

_KERNELS = ("/dev", "/proc", "/sys")
_SHARDED = (Strategy.ASYNC, Strategy.SYNC, Strategy.COORDINATOR)
_FILLED = "once its placeholders are filled in; at most"
_ADVICE = "are possible: let the program read TF_CONFIG instead"
_MODULE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", re.ASCII)
PRIORITY = 1_000_000_000
"""The largest one, and the bound of what a PriorityClass of Kubernetes may have."""

MOST_TARGETS = 16
"""Targets that a job may name."""
_PROTOCOL = re.compile(r"grpc(\+[a-z0-9_]{1,32}){0,8}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Number:
    """The bounds of a number in a job file. `read` finds it in a job; None: it is not set."""

    field: tuple[str, ...]
    read: Callable[[JobSpec], int | None]
    least: int
    most: int


def _duration(field: tuple[str, ...], read: Callable[[JobSpec], int | None]) -> Number:
    return Number(field, read, 0, bounds.MAX_DURATION_MS)


NUMBERS = (
    Number(("checkpoint", "keep"), lambda job: job.checkpoint.keep, 2, 1000),
    Number(("checkpoint", "keep_every"), lambda job: job.checkpoint.keep_every, 0, bounds.STEPS),
    _duration(("checkpoint", "keep_for"), lambda job: job.checkpoint.keep_for_ms),
    _duration(("checkpoint", "lag_bound"), lambda job: job.checkpoint.lag_bound_ms),
    _duration(("checkpoint", "fallback_after"), lambda job: job.checkpoint.fallback_after_ms),
    Number(("restart", "max"), lambda job: job.restart.max_restarts, 0, 100_000),
    Number(("restart", "max_in_window"), lambda job: job.restart.max_in_window, 0, 100_000),
    Number(("restart", "retry_from"), lambda job: job.restart.retry_from, 0, 255),
    _duration(("restart", "backoff"), lambda job: job.restart.backoff_ms),
    _duration(("restart", "backoff_max"), lambda job: job.restart.backoff_max_ms),
    _duration(("restart", "degraded_limit"), lambda job: job.restart.degraded_limit_ms),
    _duration(("restart", "window"), lambda job: job.restart.window_ms),
    _duration(("progress", "suspect_after"), lambda job: job.progress.suspect_after_ms),
    _duration(("progress", "act_after"), lambda job: job.progress.act_after_ms),
    _duration(("limits", "wall_time"), lambda job: job.limits.wall_time_ms),
    _duration(("limits", "startup"), lambda job: job.limits.startup_ms),
    _duration(("limits", "save_grace"), lambda job: job.limits.save_grace_ms),
    _duration(("limits", "hold_on_failure"), lambda job: job.limits.hold_on_failure_ms),
    _duration(("limits", "keep_work"), lambda job: job.limits.keep_work_ms),
    _duration(("limits", "delete_after"), lambda job: job.limits.delete_after_ms),
    Number(("priority",), lambda job: job.priority, -PRIORITY, PRIORITY),
    Number(("limits", "output_budget"), lambda job: job.limits.output_budget_bytes, 1, bounds.MAX_SIZE_BYTES),
    Number(
        ("serving", "keep"),
        lambda job: job.serving.keep if job.serving is not None else None,
        1,
        serving.MAX_KEPT_MODELS,
    ),
    Number(("code",), lambda job: job.code.size if job.code is not None else None, 0, 2**40),
)


def objections(spec: JobSpec) -> Iterator[Objection]:
    """Objections to values out of bounds, by their fields. A job that is too large has that objection alone.

    The leader calls this on its loop, and stops at the first. The time grows with the size of the job alone.
    """
    size = _size(spec)
    if size > bounds.MAX_SPEC_BYTES:
        most = bounds.MAX_SPEC_BYTES // 1024
        text = f"the job is {size // 1024} KiB, more than {most} KiB; shorten its commands or environment"
        yield Objection((), text)
        return
    yield from _plain(spec)
    yield from container.objections(spec)
    yield from serving.objections(spec)
    yield from environment.objections(spec)
    yield from data.objections(spec)


def workdir_objection(path: str) -> str:
    """The reason why no task may run in this absolute path, without a look at links; empty if it may."""
    plain = "/" + posixpath.normpath(path).strip("/") + "/"
    own = next((each for each in _KERNELS if plain.startswith(f"{each}/")), "")
    return f"{path} is in {own}, which is the kernel's; let tasks run in a directory of files" if own else ""


def _size(spec: JobSpec) -> int:
    try:
        return len(codec.encode(spec))
    except ValueError:
        return 0  # a number of it is out of bounds


def _plain(spec: JobSpec) -> Iterator[Objection]:
    for number in NUMBERS:
        value = number.read(spec)
        if value is not None and not number.least <= value <= number.most:
            shown = value if abs(value) <= bounds.MAX_INT else f"a number of {value.bit_length()} bits"
            text = f"{shown} is out of bounds; it must be from {number.least} to {number.most}"
            yield Objection(number.field, text)
    yield from _count(("roles",), len(spec.roles), bounds.MAX_ROLES, "roles")
    tasks = sum(max(role.count, 0) for role in spec.roles)
    yield from _count(("roles",), tasks, bounds.MAX_TASKS, "tasks")
    yield from _texts(("workdir",), (spec.workdir,), bounds.MAX_PATH_LENGTH)
    if spec.code is None and (text := workdir_objection(spec.workdir)):
        yield Objection(("workdir",), text)
    yield from _checkpoint(spec)
    yield from _patterns(spec)
    yield from _count(("preload",), len(spec.preload), bounds.MAX_PRELOAD, "modules")
    for name in spec.preload:
        if len(name) > bounds.MAX_NAME_LENGTH or not _MODULE.fullmatch(name):
            text = f"{name[:40]!r} is not a Python module name; write for example tensorflow"
            yield Objection(("preload",), text)
    yield from _count(("notify",), len(spec.notify), MOST_TARGETS, "targets")
    if not _PROTOCOL.fullmatch(spec.protocol):
        shown = repr(spec.protocol[:40])
        text = f"{shown} is not a TensorFlow server protocol; write grpc, or grpc+verbs and the like"
        yield Objection(("protocol",), text)
    yield from _count(("restart", "scope"), len(spec.restart.scope), bounds.MAX_ROLES, "entries")
    yield from _count(("restart", "rules"), len(spec.restart.rules), bounds.MAX_RULES, "entries")
    yield from _ps_recovery(spec)
    yield from _success_policy(spec)
    yield from _environment(("env",), spec.env)
    yield from _secrets(("env",), spec.env, spec.secrets)
    for role in spec.roles:
        yield from _role(role)
        yield from _elastic(spec, role)
        many = len(secret.secrets_of(spec, role))
        yield from _count(("roles", role.name, "env"), many, secret.MOST_SECRETS, "secrets of a task")
    if 0 < tasks <= bounds.MAX_TASKS:
        yield from _filled(spec)


def _checkpoint(spec: JobSpec) -> Iterator[Objection]:
    where: Where = ("checkpoint",)
    yield from _texts((*where, "uri"), (spec.checkpoint.uri,), bounds.MAX_PATH_LENGTH)
    yield from _texts((*where, "adopt"), (spec.checkpoint.adopt,), bounds.MAX_PATH_LENGTH)
    if spec.checkpoint.adopt and (text := holds_program(spec.checkpoint.adopt, spec.workdir)):
        yield Objection((*where, "adopt"), text)
    if spec.checkpoint.mode not in MODES:
        yield Objection((*where, "mode"), f"must be one of {', '.join(MODES)}")
    if spec.checkpoint.cadence not in CADENCES:
        yield Objection((*where, "cadence"), f"must be one of {', '.join(CADENCES)}")
    if not OVERHEAD[0] <= spec.checkpoint.max_overhead <= OVERHEAD[1]:
        text = f"must be from {OVERHEAD[0]:g} to {OVERHEAD[1]:g} per cent"
        yield Objection((*where, "max_overhead"), text)
    given = spec.checkpoint.patterns
    yield from _count((*where, "pattern"), len(given), bounds.MAX_FILE_PATTERNS, "patterns")
    for pattern in given[: bounds.MAX_FILE_PATTERNS]:
        yield from _refused((*where, "pattern"), compile_pattern, pattern)


def _ps_recovery(spec: JobSpec) -> Iterator[Objection]:
    if spec.restart.ps_recovery is PsRecovery.FULL:
        return
    text = ""
    if spec.strategy is not Strategy.ASYNC:
        text = f"partial needs strategy async; with {spec.strategy.value} all variables must be of one step"
    elif spec.restart.scope.get("ps") is Scope.ALL:
        text = "partial restarts a lost ps alone, and scope.ps says all; remove one of the two"
    if text:
        yield Objection(("restart", "ps_recovery"), text)


def _success_policy(spec: JobSpec) -> Iterator[Objection]:
    if spec.success_policy is SuccessPolicy.ALL_WORKERS:
        return
    chief = next((role.name for role in spec.roles if role.name in CHIEF_ROLES), None)
    if chief is not None:
        text = f"worker_0 is for jobs without a chief; this one is done when its {chief} is; remove it"
        yield Objection(("success_policy",), text)
    elif not any(role.name == "worker" and not role.follow and not role.serves for role in spec.roles):
        text = "there is no role worker whose tasks end by themselves; remove it, or name that role worker"
        yield Objection(("success_policy",), text)


def _patterns(spec: JobSpec) -> Iterator[Objection]:
    where: Where = ("progress", "patterns")
    given = spec.progress.patterns
    yield from _count(where, len(given), bounds.MAX_STEP_PATTERNS, "patterns")
    for index, pattern in enumerate(given[: bounds.MAX_STEP_PATTERNS]):
        yield from _refused((*where, index), check_step_pattern, pattern)


def _role(role: RoleSpec) -> Iterator[Objection]:
    where: Where = ("roles", role.name)
    yield from _count((*where, "command"), len(role.command), bounds.MAX_WORDS, "words")
    yield from _texts((*where, "command"), role.command, bounds.MAX_WORD_BYTES)
    yield from _environment((*where, "env"), role.env)
    yield from _secrets((*where, "env"), role.env, role.secrets)
    labels = role.resources.labels
    yield from _count((*where, "resources", "labels"), len(labels), bounds.MAX_LABELS, "labels")
    yield from _texts((*where, "resources", "labels"), (*labels, *labels.values()), bounds.MAX_NAME_LENGTH)
    yield from _count((*where, "after"), len(role.after), bounds.MAX_ROLES, "roles")
    if why := bounds.number_objection(role.resources.cpus):
        yield Objection((*where, "resources", "cpus"), why)


def _elastic(spec: JobSpec, role: RoleSpec) -> Iterator[Objection]:
    where: Where = ("roles", role.name, "min")
    if not (role.least or role.most):
        return
    if not 1 <= role.least <= role.count <= role.most:
        text = f"min {role.least}, {role.count} tasks and max {role.most} are not in this order"
        yield Objection(where, text)
    if why := size_objection(spec, role.name):
        yield Objection(where, f"{why}; write `count`")


def size_objection(spec: JobSpec, role: str) -> str:
    """Why the count of a role cannot change while the job keeps its checkpoints; empty if it can."""
    if role in CHIEF_ROLES:
        return f"a job has one {role}; its count cannot change"
    if role == "ps" and spec.strategy in _SHARDED:
        return "the number of parameter servers cannot change: checkpoints are laid out for it"
    return ""


def _environment(where: Where, env: Mapping[str, str]) -> Iterator[Objection]:
    yield from _count(where, len(env), bounds.MAX_VARIABLES, "variables")
    for name, value in env.items():
        yield from _texts((*where, name), (name, value), bounds.MAX_WORD_BYTES)


def _secrets(where: Where, env: Mapping[str, str], secrets: Mapping[str, str]) -> Iterator[Objection]:
    for variable, name in secrets.items():
        yield from _texts((*where, variable), (variable,), bounds.MAX_WORD_BYTES)
        yield from _refused((*where, variable), partial(check_name, "secret"), name)
        if variable in env:
            yield Objection((*where, variable), "is a text and a secret; keep one of the two")


def _filled(spec: JobSpec) -> Iterator[Objection]:
    """Objections to commands that are too long after their placeholders are filled in, with the longest
    addresses.
    """
    address = "h" * 64 + ":65535"
    roles = tuple(RoleAddresses(role.name, (address,) * role.count) for role in spec.roles)
    cluster = ClusterSpec(spec.name, 1, "p", roles)
    values = placeholder_values(cluster, spec.tasks()[0], _SPARE_DIRECTORY, spec.protocol, address)
    values |= {"output_dir": _SPARE_DIRECTORY, "all_outputs": _SPARE_DIRECTORY}
    values["model_base"] = serving.model_base(spec)
    values |= {data.placeholder_of(name): _SPARE_DIRECTORY for name in spec.data}
    size_of = filled_bytes(values, fill if spec.templated else fill_earlier)
    # Each task is told of the whole cluster in TF_CONFIG.
    base = sum(len(role.name) + role.count * (len(address) + 3) for role in spec.roles)
    for role in spec.roles:
        where: Where = ("roles", role.name)
        total, most = base + secret.MOST_BYTES * len(secret.secrets_of(spec, role)), bounds.MAX_WORD_BYTES
        for what, text in _parts(spec, role):
            size = size_of(text)
            total += size
            if size > most:
                yield Objection((*where, *what), f"takes {size} bytes {_FILLED} {most} {_ADVICE}")
                break
        else:
            if total > bounds.MAX_START_BYTES:
                what_all = f"command and environment of a task take {total} bytes"
                yield Objection(where, f"{what_all} {_FILLED} {bounds.MAX_START_BYTES} {_ADVICE}")


def _parts(spec: JobSpec, role: RoleSpec) -> Iterator[tuple[tuple[str, ...], str]]:
    for word in role.command:
        yield ("command",), word
    for name, value in secret.environment_of(spec, role).items():
        yield ("env", name), value


class _Sizes(Mapping[str, str]):
    """Stands for the values of placeholders. It counts the bytes that are filled in, and builds no text."""

    def __init__(self, values: Mapping[str, str]) -> None:
        self._sizes = {name: _json_bytes(value) - len('""') for name, value in values.items()}
        self.taken = 0

    def __getitem__(self, name: str) -> str:
        self.taken += self._sizes[name]
        return ""

    def __iter__(self) -> Iterator[str]:
        return iter(self._sizes)

    def __len__(self) -> int:
        return len(self._sizes)


def filled_bytes(
    values: Mapping[str, str], replaced: Callable[[str, Mapping[str, str]], str]
) -> Callable[[str], int]:
    """A function that counts the bytes of a filled-in text as JSON. It looks at each text once."""
    sizes = _Sizes(values)

    @cache
    def size_of(text: str) -> int:
        sizes.taken = 0
        rest = _json_bytes(replaced(text, sizes))
        return rest + sizes.taken

    return size_of


def _json_bytes(text: str) -> int:
    return len(json.dumps(bounds.whole_text(text)))


def _count(where: Where, count: int, most: int, what: str) -> Iterator[Objection]:
    if count > most:
        yield Objection(where, f"{count} {what}; at most {most} are possible")


def _texts(where: Where, texts: Iterable[str], most: int) -> Iterator[Objection]:
    for text in texts:
        if len(text) > most:
            yield Objection(where, f"has {len(text)} characters; at most {most} are possible")
        elif "\0" in text:
            yield Objection(where, "must not contain a NUL character; remove it")
        elif why := bounds.text_objection(text):
            yield Objection(where, f"must not contain {why}")


def _refused(where: Where, check: Callable[[str], object], text: str) -> Iterator[Objection]:
    try:
        check(text)
    except UserError as error:
        yield Objection(where, str(error))
