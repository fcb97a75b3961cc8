"""The job file: YAML in, `JobSpec` out, or one UserError that lists everything that is wrong.

`docs/job-file.md` documents every field. Field errors come from the models below, errors that concern several
fields from `_cross_checks`, which reads the raw values so that both kinds are reported in one go.
"""

from __future__ import annotations

import difflib
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from supervisor.adapters.quantities import DurationMs, SizeBytes, Text
from supervisor.adapters.yaml_file import Document, Strict, Where, build, read, suggest
from supervisor.contract import codec
from supervisor.contract.errors import UserError
from supervisor.contract.ids import check_name
from supervisor.contract.job import (
    DEFAULT_STEP_PATTERNS,
    CheckpointSpec,
    JobSpec,
    ProgressSpec,
    Resources,
    RestartPolicy,
    RoleSpec,
    Scope,
    Strategy,
)

FOLLOWERS = ("evaluator", "tensorboard")
"""Roles that are outside the ClusterSpec unless the file says otherwise."""

MAX_TASKS = 1000
MAX_SPEC_BYTES = 120 * 1024
_PYTHON = re.compile(r"python[0-9.]*")
_MODULE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")
_ENV_NAME = re.compile(r"[A-Za-z_]\w*")
_PLACEHOLDER = re.compile(r"\{([A-Za-z0-9][A-Za-z0-9_.-]*)\}")
_OURS = ("TF_CONFIG", "CHECKPOINT_DIR")
_OUR_PREFIX = "TFSUP_"


def _command(value: object) -> object:
    if isinstance(value, str):
        try:
            words = shlex.split(value)
        except ValueError:
            words = value.split()
        raise ValueError(f"must be a list of words, not one string; write: [{', '.join(map(_flow, words))}]")
    if not isinstance(value, list):
        raise ValueError("must be a list of words, for example: [python, train.py]")
    if not value:
        raise ValueError("is empty; name the program, for example: [python, train.py]")
    return value


def _flow(word: str) -> str:
    plain = re.fullmatch(r"[A-Za-z_./-][A-Za-z0-9_./=-]*", word) and word.lower() not in (
        "true",
        "false",
        "null",
    )
    return word if plain else '"' + word.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _variable(name: str) -> str:
    if not _ENV_NAME.fullmatch(name):
        raise ValueError(f"{name[:40]!r} cannot be the name of a variable; use letters, digits and '_'")
    if name in _OURS or name.startswith(_OUR_PREFIX):
        raise ValueError(f"{name} is set by tf-supervisor for each task; remove it or use another name")
    return name


def _module(value: str) -> str:
    if not _MODULE.fullmatch(value):
        raise ValueError(f"{value!r} is not a Python module name; write for example tensorflow")
    return value


def _pattern(value: str) -> str:
    try:
        groups = re.compile(value).groups
    except re.error as error:
        raise ValueError(f"not a regular expression: {error}") from error
    if groups != 1:
        raise ValueError(f"has {groups} groups; it needs exactly one, around the step: step=(\\d+)")
    return value


def _uri(value: str) -> str:
    scheme, separator, path = value.partition("://")
    if not separator:
        raise ValueError(f"{value!r} is not a URI; write file:///absolute/directory")
    if scheme != "file":
        raise ValueError(f"{scheme}:// is not in this release; write file:///absolute/directory")
    if not path.startswith("/") or ".." in PurePosixPath(path).parts or path.strip("/") == "":
        raise ValueError("must be an absolute directory without '..'; write file:///absolute/directory")
    return value.rstrip("/")


def _mode(value: object) -> object:
    if value in ("mounted", "native"):
        raise ValueError(f"{value!r} is not in this release; write staged")
    if value != "staged":
        raise ValueError("must be staged")
    return value


def _strategy(value: object) -> object:
    names = [strategy.value for strategy in Strategy]
    if value not in names:
        raise ValueError(f"{str(value)[:40]!r} is not a strategy; use one of {', '.join(names)}")
    return Strategy(value)


def _scope(value: object) -> object:
    if value not in ("task", "all"):
        raise ValueError("must be task or all")
    return Scope(value)


def _name(value: str) -> str:
    try:
        return check_name("the name", value)
    except UserError as error:
        raise ValueError(str(error)) from error


Command = Annotated[list[Text], BeforeValidator(_command)]
Env = dict[Annotated[str, AfterValidator(_variable)], Text]
Name = Annotated[Text, AfterValidator(_name)]
Pattern = Annotated[Text, AfterValidator(_pattern)]


class ResourcesModel(Strict):
    """What one task of a role needs on its node."""

    cpus: float = Field(default=0.0, ge=0, le=4096, allow_inf_nan=False)
    memory: SizeBytes = 0
    gpus: int = Field(default=0, ge=0, le=1024)
    labels: dict[str, Text] = Field(default_factory=dict)


class RoleModel(Strict):
    """One role."""

    count: int = Field(ge=1, le=MAX_TASKS, description="add `count: 1`, the number of tasks of this role")
    command: Command | None = None
    env: Env = Field(default_factory=dict)
    resources: ResourcesModel = ResourcesModel()
    follow: bool | None = None


class CheckpointModel(Strict):
    """Where commits go."""

    uri: Annotated[Text, AfterValidator(_uri)] | None = None
    mode: Annotated[Literal["staged"], BeforeValidator(_mode)] = "staged"
    keep: int = Field(default=5, ge=2, le=1000)
    fallback_after: DurationMs | None = None


class CodeModel(Strict):
    """The program's directory."""

    dir: Text = "."
    exclude: list[Text] = Field(default_factory=list)


class RestartModel(Strict):
    """The restart budget."""

    max: int = Field(default=3, ge=0, le=100_000)
    backoff: DurationMs = 500
    backoff_max: DurationMs = 30_000
    degraded_limit: DurationMs = 0
    scope: dict[str, Annotated[Scope, BeforeValidator(_scope)]] = Field(default_factory=dict)


class ProgressModel(Strict):
    """How steps are read from the output."""

    patterns: list[Pattern] = Field(
        default_factory=lambda: list(DEFAULT_STEP_PATTERNS), min_length=1, max_length=32
    )


class JobModel(Strict):
    """The whole file."""

    name: Name = Field(description="add `name: my-job`")
    strategy: Annotated[Strategy, BeforeValidator(_strategy)] = Field(
        description="add `strategy:` with one of " + ", ".join(strategy.value for strategy in Strategy)
    )
    roles: dict[str, RoleModel] = Field(
        description="add `roles:` with at least one role, for example worker: {count: 1}"
    )
    command: Command | None = None
    checkpoint: CheckpointModel = CheckpointModel()
    code: CodeModel = CodeModel()
    env: Env = Field(default_factory=dict)
    preload: list[Annotated[Text, AfterValidator(_module)]] | None = None
    restart: RestartModel = RestartModel()
    progress: ProgressModel = ProgressModel()


def load_job(path: Path, *, checkpoint_base: str | None, name: str | None = None) -> JobSpec:
    """Read and check a job file.

    Args:
        path: the file; `code.dir` and the default working directory are relative to its directory.
        checkpoint_base: URI under which a job without `checkpoint.uri` gets the directory of its name; None
            when there is no such place.
        name: overrides the name in the file.

    Raises:
        NotFound: there is no such file.
        UserError: everything that is wrong, one line each, in the order of the file.
    """
    document = read(path)
    assert isinstance(document.value, dict)
    if name is not None:
        document.value["name"] = name
    _cross_checks(document)
    model = build(JobModel, document)
    workdir = _workdir(document, model, path) if model is not None else ""
    if model is not None and model.checkpoint.uri is None and checkpoint_base is None:
        document.problem(
            ("checkpoint", "uri"),
            "missing, and the client configuration has no checkpoint_base; add file:///shared/directory",
        )
    document.raise_problems()
    assert model is not None
    spec = _spec(model, workdir, checkpoint_base or "")
    size = len(codec.encode(spec))
    if size > MAX_SPEC_BYTES:
        raise UserError(
            f"{path}:1: the job is {size // 1024} KiB, more than {MAX_SPEC_BYTES // 1024} KiB; "
            "shorten its commands or environment"
        )
    return spec


def _spec(model: JobModel, workdir: str, checkpoint_base: str) -> JobSpec:
    roles = tuple(_role(name, role, model.command or []) for name, role in model.roles.items())
    preload = (
        tuple(model.preload) if model.preload is not None else ("tensorflow",) if _any_python(roles) else ()
    )
    return JobSpec(
        name=model.name,
        strategy=model.strategy,
        roles=roles,
        checkpoint=CheckpointSpec(
            uri=model.checkpoint.uri or f"{checkpoint_base.rstrip('/')}/{model.name}",
            mode=model.checkpoint.mode,
            keep=model.checkpoint.keep,
            fallback_after_ms=model.checkpoint.fallback_after,
        ),
        workdir=workdir,
        env=dict(model.env),
        preload=preload,
        restart=RestartPolicy(
            max_restarts=model.restart.max,
            backoff_ms=model.restart.backoff,
            backoff_max_ms=model.restart.backoff_max,
            degraded_limit_ms=model.restart.degraded_limit,
            scope=dict(model.restart.scope),
        ),
        progress=ProgressSpec(tuple(model.progress.patterns)),
    )


def _role(name: str, role: RoleModel, job_command: Sequence[str]) -> RoleSpec:
    needs = role.resources
    return RoleSpec(
        name=name,
        count=role.count,
        command=tuple(role.command or job_command),
        env=dict(role.env),
        resources=Resources(needs.cpus, needs.memory, needs.gpus, dict(needs.labels)),
        follow=name in FOLLOWERS if role.follow is None else role.follow,
    )


def _any_python(roles: Sequence[RoleSpec]) -> bool:
    return any(_PYTHON.fullmatch(PurePosixPath(role.command[0]).name) for role in roles)


def _workdir(document: Document, model: JobModel, path: Path) -> str:
    directory = (path.parent / model.code.dir).resolve()
    if not directory.is_dir():
        document.problem(
            ("code", "dir"), f"{directory} is not a directory; name the directory of the program"
        )
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
    known = {f"{name}_hosts" for name in ("chief", "ps", "worker", *roles)} | {
        "job_name",
        "task_index",
        "checkpoint_dir",
    }
    _check_placeholders(document, ("command",), top.get("command"), known)
    for name, role in roles.items():
        _check_placeholders(document, ("roles", name, "command"), _mapping(role).get("command"), known)


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
        if not top.get("command") and "command" not in _mapping(role):
            document.problem(
                where, "has no command; add `command: [python, train.py]` to this role or to the job"
            )
    if sum(counts.values()) > MAX_TASKS:
        document.problem(("roles",), f"{sum(counts.values())} tasks in all; at most {MAX_TASKS} are possible")
    followers = [n for n, role in roles.items() if _mapping(role).get("follow", n in FOLLOWERS) is True]
    if roles and len(followers) == len(roles):
        document.problem(
            ("roles",), "every role follows, so nobody trains; set follow: false for one of them"
        )


def _check_strategy(document: Document, strategy: str, counts: Mapping[str, int]) -> None:
    if not counts:
        return
    if counts.get("chief", 0) > 1:
        document.problem(("roles", "chief", "count"), f"there are {counts['chief']} chiefs; set it to 1")
    where: Where = ("strategy",)
    if strategy in ("async", "sync", "coordinator"):
        for role in ("ps", "worker"):
            if role not in counts:
                document.problem(
                    where, f"{strategy} needs the roles ps and worker; add {role}: {{count: 1}} to roles"
                )
    if strategy == "coordinator" and "chief" not in counts:
        document.problem(
            where, "coordinator needs a chief, which runs the program; add chief: {count: 1} to roles"
        )
    if strategy == "multiworker":
        if "ps" in counts:
            document.problem(("roles", "ps"), "multiworker has no parameter servers; remove this role")
        if "worker" not in counts and "chief" not in counts:
            document.problem(where, "multiworker needs workers; add worker: {count: 2} to roles")


def _check_placeholders(document: Document, where: Where, command: object, known: set[str]) -> None:
    """Near misses only: other words in braces may be the program's own (awk, Python's format)."""
    for index, word in enumerate(command if isinstance(command, list) else ()):
        for match in _PLACEHOLDER.finditer(str(word)):
            given = match[1]
            near = difflib.get_close_matches(given, known, n=1, cutoff=0.8)
            if given not in known and (near or given.endswith("_hosts")):
                text = f"unknown placeholder {{{given}}}" + suggest(given, known)
                document.problem((*where, index), text)


def _mapping(value: object) -> Mapping[str, object]:
    return value if isinstance(value, dict) else {}


def _count(role: object) -> int:
    count = _mapping(role).get("count")
    return count if isinstance(count, int) and not isinstance(count, bool) else 1
