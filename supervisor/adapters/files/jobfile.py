"""The job file: YAML in, `JobSpec` out, or one UserError that lists all errors.

`docs/job-file.md` documents every field. `yaml_file.Strict` refuses an unknown field. Errors of one field
come from the models of `jobfile_model`, errors that concern several fields from `_cross_checks`, which reads
the raw values so that both are reported in one go.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from graphlib import CycleError, TopologicalSorter
from pathlib import Path, PurePosixPath

from supervisor.adapters.files.environment_file import read_environment
from supervisor.adapters.files.jobfile_model import (
    ContainerModel,
    JobModel,
    ResourcesModel,
    RoleModel,
    SecretModel,
    ServingModel,
    Value,
)
from supervisor.adapters.files.tfjob import as_job_file
from supervisor.adapters.files.yaml_file import Document, Strict, Where, build, read, suggest
from supervisor.contract.bounds import MAX_TASKS
from supervisor.contract.checkpoint import Verify
from supervisor.contract.errors import UserError
from supervisor.contract.ids import check_name
from supervisor.contract.incident import Cause
from supervisor.contract.job.bounds import objections
from supervisor.contract.job.placeholders import MODEL_BASE, known_words, problems
from supervisor.contract.job.spec import (
    CHIEF_ROLES,
    CheckpointSpec,
    ContainerSpec,
    JobSpec,
    Limits,
    Mount,
    ProgressSpec,
    Resources,
    RestartPolicy,
    RoleSpec,
    ServingSpec,
    Strategy,
    Ulimit,
    saver_of,
)
from supervisor.contract.job.tfjob.convert import is_manifest

FOLLOWERS = ("evaluator", "tensorboard")
"""Roles that are by default outside the ClusterSpec."""

OUTSIDERS = ("dispatcher", "data_worker")
"""Roles of tf.data's service: by default TF_CONFIG does not name them."""

Adapt = Callable[[dict[str, object]], None]

_WRAPPERS = frozenset(
    {"sh", "bash", "dash", "ksh", "zsh", "env", "nice", "nohup", "setsid", "stdbuf", "taskset", "numactl"}
    | {"time", "timeout"}
)
_SCRIPT_WORDS, _SCRIPT_BYTES = 3, 1 << 16
_PYTHON = re.compile(r"""(?<![^\s/;&|('"=])python[0-9.]*(?![^\s;&|)'"])""")


@dataclass(frozen=True, slots=True)
class CodeSource:
    """The directory to ship. `where` is its place in the job file, `FILE:LINE: code`, for errors about it."""

    directory: str
    exclude: tuple[str, ...]
    where: str


@dataclass(frozen=True, slots=True)
class JobFile:
    """A job file. `spec.code` is None: the directory of `code` is packed on demand (`code_archive`).

    `document` has the lines of its fields, for errors that a cluster finds in them. `given`: the fields that
    the file gives, as `roles.worker.count`. `hold`: the file says that the job is recorded and not started,
    as a TFJob can.
    """

    spec: JobSpec
    code: CodeSource | None
    document: Document
    given: tuple[str, ...]
    hold: bool = False


def load_job_file(path: Path, *, checkpoint_base: str | None, name: str | None = None) -> JobFile:
    """As `job_of`, of what the file holds. Raises NotFound, too."""
    if path.suffix == ".py":
        advice = f"`supervisorctl init -- python {path}` writes a job file for it"
        raise UserError(f"{path}: a Python program, and no job file; {advice}")
    return job_of(read(path), path, checkpoint_base=checkpoint_base, name=name)


def job_of(
    document: Document,
    path: Path,
    *,
    checkpoint_base: str | None,
    name: str | None = None,
    adapt: Adapt | None = None,
) -> JobFile:
    """Check a job file, or a TFJob (docs/tfjob.md).

    Args:
        document: what the file holds.
        path: the file; `code.dir` is relative to its directory, which is the default working directory.
        checkpoint_base: URI under which a job without `checkpoint.uri` gets the directory of its name; None
            without such a place.
        name: overrides the name in the file.
        adapt: changes the fields before they are checked; a mistake in what it adds is an error of the file.

    Raises:
        UserError: all errors, one line each, in the order of the file; for a wrong `name` that error alone.
    """
    hold = False
    if name is not None:
        check_name("--name", name)
    if is_manifest(document.value):
        document, hold = as_job_file(document, name)
    assert isinstance(document.value, dict)
    if name is not None:
        document.value["name"] = name
    if adapt is not None:
        adapt(document.value)
    _cross_checks(document)
    model = build(JobModel, document)
    workdir = _workdir(document, model, path) if model is not None else ""
    if model is not None and model.checkpoint.uri is None and checkpoint_base is None:
        document.problem(
            ("checkpoint", "uri"),
            "missing, and the client configuration has no checkpoint_base; add file:///shared/directory",
        )
    environment = read_environment(document, model.environment, workdir) if model is not None else None
    document.raise_problems()
    assert model is not None
    spec = replace(_spec(model, workdir, checkpoint_base or ""), environment=environment)
    for wrong in objections(spec):
        document.problem(wrong.where, wrong.text)
    document.raise_problems()
    _check_mounted(document, spec)
    given = tuple(sorted({*_given(model)} - ({"name"} if name is not None else set())))
    if model.code is None:
        return JobFile(spec, None, document, given, hold)
    where = f"{path}:{document.line(('code', 'dir'))}: code"
    return JobFile(spec, CodeSource(workdir, tuple(model.code.exclude), where), document, given, hold)


def _given(model: Strict, at: str = "") -> Iterator[str]:
    """The fields that a file gives. A mapping of free keys is one field, but for the roles."""
    for name in model.model_fields_set:
        value = getattr(model, name)
        if isinstance(value, Strict):
            yield from _given(value, f"{at}{name}.")
        elif name == "roles":
            for role, each in value.items():
                yield from _given(each, f"roles.{role}.")
        else:
            yield f"{at}{name}"


def _check_mounted(document: Document, spec: JobSpec) -> None:
    """Check for options that a mount cannot offer: its files get their names once they are whole, and do not
    change then.
    """
    checkpoint = spec.checkpoint
    if checkpoint.mode != "mounted":
        return
    if checkpoint.patterns:
        document.problem(
            ("checkpoint", "pattern"),
            "a mounted directory takes TensorFlow's own checkpoints alone; write mode: staged",
        )
    if checkpoint.verify is not Verify.READBACK:
        document.problem(
            ("checkpoint", "verify"),
            "a mounted save is always read back, as nobody else has its checksums; leave this out",
        )
    if not checkpoint.uri.startswith("hdfs://"):
        document.problem(
            ("checkpoint", "mode"),
            f"mounted is for hdfs://, and the checkpoints go to {checkpoint.uri}; write staged",
        )
    document.raise_problems()


def _spec(model: JobModel, workdir: str, checkpoint_base: str) -> JobSpec:
    roles = tuple(_role(name, role, model) for name, role in model.roles.items())
    preload = tuple(model.preload or ())
    if model.preload is None and any(_runs_python(role.command, workdir) for role in roles):
        preload = ("tensorflow",)
    return JobSpec(
        name=model.name,
        strategy=model.strategy,
        roles=roles,
        checkpoint=CheckpointSpec(
            uri=model.checkpoint.uri or f"{checkpoint_base.rstrip('/')}/{model.name}",
            mode=model.checkpoint.mode,
            keep=model.checkpoint.keep,
            fallback_after_ms=model.checkpoint.fallback_after,
            patterns=tuple(model.checkpoint.pattern),
            verify=model.checkpoint.verify,
            keep_every=model.checkpoint.keep_every,
            keep_for_ms=model.checkpoint.keep_for,
            lag_bound_ms=model.checkpoint.lag_bound,
            adopt=model.checkpoint.adopt or "",
            cadence=model.checkpoint.cadence,
            max_overhead=model.checkpoint.max_overhead,
        ),
        workdir=workdir,
        env=_texts(model.env),
        secrets=_secrets(model.env),
        preload=preload,
        notify=tuple(model.notify),
        restart=RestartPolicy(
            max_restarts=model.restart.max,
            backoff_ms=model.restart.backoff,
            backoff_max_ms=model.restart.backoff_max,
            degraded_limit_ms=model.restart.degraded_limit,
            scope=dict(model.restart.scope),
            max_in_window=model.restart.max_in_window,
            window_ms=model.restart.window,
            rules=dict(model.restart.rules),
            ps_recovery=model.restart.ps_recovery,
            retry_from=model.restart.retry_from,
        ),
        progress=ProgressSpec(
            patterns=tuple(model.progress.patterns),
            watch_nan=model.progress.nan,
            watch_hangs=model.progress.hangs,
            suspect_after_ms=model.progress.suspect_after,
            act_after_ms=model.progress.act_after,
        ),
        limits=Limits(
            wall_time_ms=model.limits.wall_time,
            startup_ms=model.limits.startup,
            save_grace_ms=model.limits.save_grace,
            hold_on_failure_ms=model.limits.hold_on_failure,
            output_budget_bytes=model.limits.output_budget,
            keep_work_ms=model.limits.keep_work,
            delete_after_ms=model.limits.delete_after,
        ),
        protocol=model.protocol,
        container=_container(model.container) if model.container is not None else None,
        packing=model.packing,
        priority=model.priority,
        success_policy=model.success_policy,
        templated=True,
        data=dict(model.data),
        serving=_serving(model.serving, model.name, roles) if model.serving is not None else None,
    )


def _serving(given: ServingModel, job: str, roles: tuple[RoleSpec, ...]) -> ServingSpec:
    return ServingSpec(
        model=given.model or job,
        export=given.export,
        role=given.role or saver_of(job, roles).role,
        check=given.check,
        keep=given.keep,
        servers=tuple(given.servers),
    )


def _container(given: ContainerModel) -> ContainerSpec:
    return ContainerSpec(
        image=given.image or "",
        pull=given.pull,
        python=given.python or "",
        network=given.network,
        cpuset=given.cpuset or "",
        swap_bytes=given.swap,
        shm_bytes=given.shm,
        pids=given.pids,
        ulimits=tuple(Ulimit(name, limit.soft, limit.hard) for name, limit in given.ulimits.items()),
        mounts=tuple(Mount(mount.source, mount.target, mount.read_only) for mount in given.mounts),
    )


def _resources(given: ResourcesModel) -> Resources:
    return Resources(
        given.cpus,
        given.memory,
        len(given.gpu_indices) if given.gpus is None else given.gpus,
        dict(given.labels),
        gpu_memory_bytes=given.gpu_memory,
        gpu_model=given.gpu_model,
        gpu_share=given.gpu_share,
        gpu_indices=tuple(given.gpu_indices),
    )


def _role(name: str, role: RoleModel, model: JobModel) -> RoleSpec:
    # A coordinator's worker is a server that the chief sends steps to; it never ends by itself.
    joined = model.strategy is Strategy.COORDINATOR and name == "worker"
    return RoleSpec(
        name=name,
        count=role.count or role.max or 1,
        least=role.min or 0,
        most=role.max or 0,
        command=tuple(role.command or model.command or []),
        env=_texts(role.env),
        secrets=_secrets(role.env),
        resources=_resources(role.resources),
        follow=name in FOLLOWERS if role.follow is None else role.follow,
        in_cluster=name not in OUTSIDERS if role.cluster is None else role.cluster,
        serves=True if joined and role.serves is None else role.serves,
        after=tuple(role.after),
    )


def _texts(env: Mapping[str, Value]) -> dict[str, str]:
    return {name: value for name, value in env.items() if isinstance(value, str)}


def _secrets(env: Mapping[str, Value]) -> dict[str, str]:
    return {name: value.secret for name, value in env.items() if isinstance(value, SecretModel)}


def _runs_python(command: Sequence[str], workdir: str) -> bool:
    """Whether a command is a Python program, or a wrapper that names one, as `sh -c "... python x.py"`."""
    name = PurePosixPath(command[0]).name
    if _PYTHON.fullmatch(name):
        return True
    told = list(command) if name in _WRAPPERS else []
    told += [_script(Path(workdir, word)) for word in command[:_SCRIPT_WORDS] if word.endswith(".sh")]
    return any(map(_PYTHON.search, told))


def _script(path: Path) -> str:
    """The beginning of a script, without its comments; empty if it is no file here."""
    try:
        text = path.read_bytes()[:_SCRIPT_BYTES].decode(errors="replace") if path.is_file() else ""
    except OSError:
        return ""
    return "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))


def _workdir(document: Document, model: JobModel, path: Path) -> str:
    """The working directory of the tasks: `workdir`, `code.dir`, or the file's own directory."""
    if model.workdir is not None:
        if model.code is not None:
            document.problem(("workdir",), "the tasks run in the directory of code; remove one of the two")
        return model.workdir
    where: Where = ("code", "dir")
    given = path.parent / (model.code.dir if model.code is not None else ".")
    directory = given.resolve()
    advice = "name the directory of the program"
    if not directory.is_dir():
        what = "is not a directory" if directory.exists() else "does not exist"
        document.problem(where, f"{directory} {what}; {advice}")
    elif model.code is not None and directory in {Path("/"), Path.home().resolve()}:
        what = "the root of the file system" if directory == Path("/") else "your home directory"
        document.problem(where, f"{directory} is {what}, far more than a program; {advice}")
    return str(directory)


def _cross_checks(document: Document) -> None:
    top = _mapping(document.value)
    roles = _mapping(top.get("roles"))
    counts = {name: _count(role) for name, role in roles.items()}
    _check_roles(document, top, roles, counts)
    _check_strategy(document, str(top.get("strategy")), counts)
    for name in _mapping(_mapping(top.get("restart")).get("scope")):
        if name not in roles:
            document.problem(("restart", "scope", name), "no such role" + suggest(name, roles))
    _check_rules(document, top)
    _check_after(document, roles)
    data = [str(name) for name in _mapping(top.get("data"))]
    known = known_words(roles, data) - ({MODEL_BASE} if top.get("serving") is None else frozenset())
    _check_placeholders(document, (), top, known)
    for name, role in roles.items():
        _check_placeholders(document, ("roles", name), _mapping(role), known)


def _check_rules(document: Document, top: Mapping[str, object]) -> None:
    causes = [cause.value for cause in Cause if cause not in (Cause.SUBMITTED, Cause.OPERATOR)]
    for name in _mapping(_mapping(top.get("restart")).get("rules")):
        if name not in causes:
            document.problem(("restart", "rules", name), "no such cause" + suggest(name, causes))


def _check_after(document: Document, roles: Mapping[str, object]) -> None:
    graph: dict[str, list[str]] = {}
    for name, role in roles.items():
        after = _mapping(role).get("after")
        graph[name] = [str(other) for other in after] if isinstance(after, list) else []
        for index, other in enumerate(graph[name]):
            if other not in roles:
                document.problem(("roles", name, "after", index), "no such role" + suggest(other, roles))
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        cycle = [str(name) for name in error.args[1]]
        where: Where = ("roles", cycle[-2], "after")
        document.problem(
            where, f"these roles wait for each other: {' after '.join(cycle[::-1])}; remove one `after`"
        )


def _check_roles(
    document: Document, top: Mapping[str, object], roles: Mapping[str, object], counts: Mapping[str, int]
) -> None:
    if top.get("roles") == {} or ("roles" in top and top["roles"] is None):
        document.problem(
            ("roles",), "there is no role, so nothing would run; add for example worker: {count: 1}"
        )
    for name, role in roles.items():
        where: Where = ("roles", name)
        try:
            check_name("role", name)
        except UserError as error:
            document.problem(where, str(error))
        _check_size(document, name, _mapping(role))
        if not top.get("command") and _mapping(role).get("command") is None:
            document.problem(
                where,
                "has no command; add `command: [python, train.py]` to this role or to the job",
                ("command",),
                (*where, "command"),
            )
    if sum(counts.values()) > MAX_TASKS:
        document.problem(("roles",), f"{sum(counts.values())} tasks in all; at most {MAX_TASKS} are possible")
    followers = [n for n, role in roles.items() if _mapping(role).get("follow", n in FOLLOWERS) is True]
    if roles and len(followers) == len(roles):
        document.problem(
            ("roles",), "every role follows, so nobody trains; set follow: false for one of them"
        )


def _check_size(document: Document, name: str, role: Mapping[str, object]) -> None:
    """A role has a count, or is elastic: between `min` and `max`."""
    where: Where = ("roles", name)
    least, most = role.get("min"), role.get("max")
    keys = [(*where, key) for key in ("count", "min", "max")]
    if role.get("count") is None and least is None and most is None:
        text = "missing; add `count: 1`, the number of tasks of this role, or `min` and `max`"
        document.problem((*where, "count"), text, *keys)
    elif role.get("count") is not None and not least is most is None:
        document.problem((*where, "count"), "a role has a count, or `min` and `max`; remove one of them")
    elif role.get("count") is None and (least is None or most is None):
        text = f"has no {'min' if least is None else 'max'}; add it, or write `count`"
        document.problem(where, text, *keys)
    elif isinstance(least, int) and isinstance(most, int) and least > most:
        document.problem((*where, "min"), f"is more than max, {most}")


def _check_strategy(document: Document, strategy: str, counts: Mapping[str, int]) -> None:
    if not counts:
        return
    _check_chief(document, strategy, counts)
    where: Where = ("strategy",)
    if strategy in ("async", "sync", "coordinator"):
        for role in ("ps", "worker"):
            if role not in counts:
                document.problem(
                    where, f"{strategy} needs the roles ps and worker; add {role}: {{count: 1}} to roles"
                )
    if strategy == "coordinator" and not set(CHIEF_ROLES) & set(counts):
        document.problem(
            where, "coordinator needs a chief, which runs the program; add chief: {count: 1} to roles"
        )
    if strategy == "multiworker":
        if "ps" in counts:
            document.problem(("roles", "ps"), "multiworker has no parameter servers; remove this role")
        if "worker" not in counts and not set(CHIEF_ROLES) & set(counts):
            document.problem(where, "multiworker needs workers; add worker: {count: 2} to roles")


def _check_chief(document: Document, strategy: str, counts: Mapping[str, int]) -> None:
    """Check that a job has one chief at most, under either name; TensorFlow 2 knows only the name chief."""
    for name in CHIEF_ROLES:
        if counts.get(name, 0) > 1:
            document.problem(("roles", name, "count"), f"there are {counts[name]} {name}s; set it to 1")
    if set(CHIEF_ROLES) <= set(counts):
        document.problem(("roles", "master"), "a job has a chief or a master, not both; remove one of them")
    elif "master" in counts and strategy in ("coordinator", "multiworker"):
        text = f"the TensorFlow strategy of {strategy} takes no task named master; rename the role to chief"
        document.problem(("roles", "master"), text)


def _check_placeholders(
    document: Document, where: Where, part: Mapping[str, object], known: frozenset[str]
) -> None:
    """Check the placeholders in a job's or role's command and environment."""
    command = part.get("command")
    variables = _mapping(part.get("env")).items()
    texts: dict[Where, object] = {
        ("env", name): value for name, value in variables if not isinstance(value, dict)
    }
    texts |= {("command", i): word for i, word in enumerate(command if isinstance(command, list) else ())}
    for place, text in texts.items():
        for problem in problems(str(text), known):
            document.problem((*where, *place), problem)


def _mapping(value: object) -> Mapping[str, object]:
    return value if isinstance(value, dict) else {}


def _count(role: object) -> int:
    count = _mapping(role).get("count", _mapping(role).get("max"))
    return count if isinstance(count, int) and not isinstance(count, bool) else 1
