"""The stored job file of a job: each field of its record, and the source of its value. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from supervisor.api.views import find_job
from supervisor.contract.job.spec import (
    ContainerSpec,
    EnvironmentRef,
    JobRecord,
    JobSpec,
    RoleSpec,
    ServingSpec,
    resized,
)
from supervisor.contract.job.written import duration, flow, size
from supervisor.contract.secret import sounds_secret
from supervisor.contract.views.description import (
    CHECKPOINT_BASE,
    CLUSTER,
    DEFAULT,
    JOB_FILE,
    NAME_OPTION,
    NOT_RECORDED,
    ROOM,
    SCALE,
    SUBMIT,
    Description,
    FieldView,
)
from supervisor.control.decide.snapshot import Snapshot

REDACTED = "{redacted}"
"""In place of a value that may be a secret. It is no placeholder, so that no cluster takes a job with it."""

Field = tuple[tuple[str, ...], str, bool]
"""The path of a field, its value, and whether a job file may have it."""

_VALUE = r"""(?:"[^"]*"|'[^']*'|[^\s"'])+"""
_ASSIGNED = re.compile(rf"(?<![\w-])(([\w-]+)=){_VALUE}")
_FLAG = re.compile(rf"(?<![\w-])((-[\w-]+)\s)\s*(?!-){_VALUE}")
"""In a script, as `sh -c` has one."""
_HEADER = re.compile(rf"""(?<![\w-])(([\w-]+)["']?:\s*)(?:(?:Basic|Bearer)\s+)?{_VALUE}""", re.IGNORECASE)
"""`Authorization: Bearer x`, and an entry of JSON or YAML."""
_PASSWORD = re.compile(r"(://[^\s/:@]*:)[^\s/]+(?=@)")


def describe(snap: Snapshot, name: str) -> Description:
    """The stored file of a job; raises NotFound, and Conflict for a job that is set aside."""
    job = find_job(snap, name)
    return description(job.record.value, job.intent.value.sizes)


def description(record: JobRecord, sizes: Mapping[str, int]) -> Description:
    """The stored file of a job whose roles have, or are to have, the counts that `scale` asked for."""
    spec, given = resized(record.spec, sizes), frozenset(record.given)
    fields = [
        FieldView(path, value, _source(spec, path, given, sizes), in_file)
        for path, value, in_file in _fields(spec, given)
    ]
    if record.hdfs_user:
        fields.append(FieldView(("hdfs_user",), flow(record.hdfs_user), CLUSTER, False))
    return Description(
        job=spec.name,
        uuid=record.uuid,
        submitted_wall_ms=record.submitted_wall_ms,
        owner=record.owner,
        group=record.group,
        recorded=bool(given),
        redacted=any(REDACTED in each.value for each in fields),
        fields=tuple(fields),
    )


def _source(spec: JobSpec, path: tuple[str, ...], given: frozenset[str], sizes: Mapping[str, int]) -> str:
    """The source of a value. The reader of job files has no other defaults than those at the end."""
    if path[0] == "roles" and path[2] == "count" and path[1] in sizes:
        return SCALE
    if path[0] == "roles" and path[2] == "count" and spec.role(path[1]).most:
        return ROOM
    has_lock = spec.environment is not None and not spec.environment.archive
    if path == ("code", "sha256") or (has_lock and path == ("environment", "sha256")):
        return SUBMIT
    if not given:
        return NOT_RECORDED
    if any(".".join(path[:length]) in given for length in range(1, len(path) + 1)):
        return JOB_FILE
    elsewhere = {("name",): NAME_OPTION, ("checkpoint", "uri"): CHECKPOINT_BASE, ("workdir",): SUBMIT}
    return elsewhere.get(path, DEFAULT)


def _fields(spec: JobSpec, given: frozenset[str]) -> Iterator[Field]:
    """Every field of a job, in the order in which the reader of job files has them."""
    yield from _part(name=flow(spec.name), strategy=flow(spec.strategy))
    common = [role for role in spec.roles if "command" in given and f"roles.{role.name}.command" not in given]
    if common:
        yield from _part(command=_words(common[0].command))
    for role in spec.roles:
        yield from _role(role, own_command=role not in common)
    yield from _checkpoint(spec)
    yield from _code(spec, given)
    if spec.environment is not None:
        yield from _environment(spec.environment)
    yield from _entries(spec.data, "data")
    yield from _variables(spec.env, spec.secrets)
    yield from _part(preload=flow(spec.preload))
    yield from _failures(spec)
    if spec.container is not None:
        yield from _container(spec.container)
    if spec.serving is not None:
        yield from _serving(spec.serving)
    yield from _part(
        protocol=flow(spec.protocol),
        notify=flow(spec.notify),
        packing=flow(spec.packing),
        priority=flow(spec.priority),
        success_policy=flow(spec.success_policy),
    )


def _role(role: RoleSpec, *, own_command: bool) -> Iterator[Field]:
    at, need = ("roles", role.name), role.resources
    yield (*at, "count"), flow(role.count), not role.most
    if role.most:
        yield from _part(*at, min=flow(role.least or None), max=flow(role.most))
    if own_command:
        yield from _part(*at, command=_words(role.command))
    yield from _variables(role.env, role.secrets, *at)
    yield from _part(
        *(*at, "resources"),
        cpus=flow(need.cpus),
        memory=size(need.memory_bytes),
        gpus=flow(need.gpus),
        gpu_memory=size(need.gpu_memory_bytes),
        gpu_share=flow(need.gpu_share),
        gpu_indices=flow(need.gpu_indices),
    )
    yield (*at, "resources", "gpu_model"), flow(need.gpu_model or None), bool(need.gpu_model)
    yield from _entries(need.labels, *at, "resources", "labels")
    yield from _part(
        *at,
        follow=flow(role.follow),
        cluster=flow(role.in_cluster),
        serves=flow(role.serves),
        after=flow(role.after),
    )


def _checkpoint(spec: JobSpec) -> Iterator[Field]:
    given = spec.checkpoint
    return _part(
        "checkpoint",
        uri=flow(given.uri),
        mode=flow(given.mode),
        verify=flow(given.verify),
        keep=flow(given.keep),
        keep_every=flow(given.keep_every),
        keep_for=duration(given.keep_for_ms),
        lag_bound=duration(given.lag_bound_ms),
        fallback_after=duration(given.fallback_after_ms),
        adopt=flow(given.adopt or None),
        cadence=flow(given.cadence),
        max_overhead=flow(given.max_overhead),
        pattern=flow(given.patterns),
    )


def _code(spec: JobSpec, given: frozenset[str]) -> Iterator[Field]:
    """The directory of the program. A record has no patterns of what was not shipped."""
    if spec.code is None:
        yield from _part(workdir=flow(spec.workdir))
        return
    yield from _part("code", dir=flow(spec.workdir))
    if "code.exclude" in given:
        yield ("code", "exclude"), "not kept", False
    yield ("code", "sha256"), spec.code.digest, False


def _environment(given: EnvironmentRef) -> Iterator[Field]:
    """The Python environment. The digest of a lock file is in no job file: `submit` reads the lock."""
    yield from _part(
        "environment",
        requirements=flow(given.requirements or None),
        wheelhouse=flow(given.wheelhouse or None),
        archive=flow(given.archive or None),
    )
    yield ("environment", "sha256"), flow(given.digest), bool(given.archive)
    yield from _part("environment", python=flow(given.python or None))


def _failures(spec: JobSpec) -> Iterator[Field]:
    """The fields that say what a failure is, and what it leads to."""
    restart, progress, limits = spec.restart, spec.progress, spec.limits
    yield from _part(
        "restart",
        max=flow(restart.max_restarts),
        backoff=duration(restart.backoff_ms),
        backoff_max=duration(restart.backoff_max_ms),
        degraded_limit=duration(restart.degraded_limit_ms),
        max_in_window=flow(restart.max_in_window),
        window=duration(restart.window_ms),
        ps_recovery=flow(restart.ps_recovery),
        retry_from=flow(restart.retry_from),
    )
    yield from _entries(restart.scope, "restart", "scope")
    yield from _entries(restart.rules, "restart", "rules")
    yield from _part(
        "progress",
        patterns=flow(progress.patterns),
        nan=flow(progress.watch_nan),
        hangs=flow(progress.watch_hangs),
        suspect_after=duration(progress.suspect_after_ms),
        act_after=duration(progress.act_after_ms),
    )
    yield from _part(
        "limits",
        wall_time=duration(limits.wall_time_ms),
        startup=duration(limits.startup_ms),
        save_grace=duration(limits.save_grace_ms),
        hold_on_failure=duration(limits.hold_on_failure_ms),
        output_budget=size(limits.output_budget_bytes),
        keep_work=duration(limits.keep_work_ms),
        delete_after=duration(limits.delete_after_ms),
    )


def _container(given: ContainerSpec) -> Iterator[Field]:
    yield from _part(
        "container",
        image=flow(given.image or None),
        pull=flow(given.pull),
        python=flow(given.python or None),
        network=flow(given.network),
        cpuset=flow(given.cpuset or None),
        swap=size(given.swap_bytes),
        shm=size(given.shm_bytes),
        pids=flow(given.pids),
        mounts=flow(
            [
                {"source": each.source, "target": each.target, "read_only": each.read_only}
                for each in given.mounts
            ]
        ),
    )
    limits = {each.name: {"soft": each.soft, "hard": each.hard} for each in given.ulimits}
    yield from _entries(limits, "container", "ulimits")


def _serving(given: ServingSpec) -> Iterator[Field]:
    return _part(
        "serving",
        model=flow(given.model),
        export=flow(given.export),
        role=flow(given.role),
        check=flow(given.check),
        keep=flow(given.keep),
        servers=flow(given.servers),
    )


def _part(*at: str, **values: str) -> Iterator[Field]:
    """Fields of one part of the file."""
    for name, value in values.items():
        yield (*at, name), value, True


def _entries(mapping: Mapping[str, object], *at: str) -> Iterator[Field]:
    """The entries of a mapping of free keys."""
    if not mapping:
        yield at, "{}", True
    for key, value in mapping.items():
        yield (*at, key), flow(value), True


def _variables(env: Mapping[str, str], secrets: Mapping[str, str], *at: str) -> Iterator[Field]:
    """An environment. A value that may be a secret is hidden; the name of a secret is not one."""
    shown: dict[str, object] = {
        name: REDACTED if sounds_secret(name) else _without_secrets(value) for name, value in env.items()
    }
    shown |= {name: {"secret": secret} for name, secret in secrets.items()}
    return _entries(dict(sorted(shown.items())), *at, "env")


def _words(command: Sequence[str]) -> str:
    """A command. The value of a flag or variable that may be a secret is hidden."""
    shown, hide = list[str](), False
    for word in command:
        shown.append(REDACTED if hide and not word.startswith("-") else _without_secrets(word))
        hide = word.startswith("-") and "=" not in word and sounds_secret(word)
    return flow(shown)


def _without_secrets(text: str) -> str:
    """A text without what may be a secret: the value after such a name, and the password in an address."""
    for pattern in (_HEADER, _ASSIGNED, _FLAG):
        text = pattern.sub(
            lambda match: f"{match[1]}{REDACTED}" if sounds_secret(match[2]) else match[0], text
        )
    return _PASSWORD.sub(rf"\1{REDACTED}", text)
