"""The fields of a job file: their types, their defaults, and the errors of wrong values.

The bounds of values are in `contract.job.bounds`.
"""

from __future__ import annotations

import posixpath
import re
import shlex
from collections.abc import Callable
from enum import Enum
from typing import Annotated, Literal, TypeVar

from pydantic import AfterValidator, BeforeValidator, Discriminator, Field, Tag

from supervisor.adapters.files.not_for_jobs import NOT_FOR_JOBS
from supervisor.adapters.files.quantities import DurationMs, Name, SizeBytes, Text
from supervisor.adapters.files.store_uri import parse_uri
from supervisor.adapters.files.yaml_file import Strict
from supervisor.contract.bounds import (
    MAX_FILE_PATTERNS,
    MAX_STEP_PATTERNS,
    MAX_TASKS,
    STEPS,
)
from supervisor.contract.checkpoint import Verify
from supervisor.contract.code import is_digest
from supervisor.contract.errors import UserError
from supervisor.contract.job import container, environment
from supervisor.contract.job.adopted_path import check_adopted
from supervisor.contract.job.bounds import CADENCES, OVERHEAD, PRIORITY
from supervisor.contract.job.data import check_name as check_data_name
from supervisor.contract.job.file_pattern import compile_pattern
from supervisor.contract.job.serving import MAX_KEPT_MODELS, MAX_SERVERS, check_export, check_server
from supervisor.contract.job.spec import (
    DEFAULT_STEP_PATTERNS,
    HOST_NETWORK,
    ModelCheck,
    Packing,
    PsRecovery,
    Pull,
    Rule,
    Scope,
    Strategy,
    SuccessPolicy,
)
from supervisor.contract.job.step_pattern import check_step_pattern

Named = TypeVar("Named", bound=Enum)
_MODULE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")


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


def _by(rule: Callable[[str], str]) -> AfterValidator:
    """A rule of `contract.job.container` as a validator."""

    def check(value: str) -> str:
        try:
            return rule(value)
        except UserError as error:
            raise ValueError(str(error)) from error

    return AfterValidator(check)


def _module(value: str) -> str:
    if not _MODULE.fullmatch(value):
        raise ValueError(f"{value!r} is not a Python module name; write for example tensorflow")
    return value


def _uri(value: str) -> str:
    try:
        return str(parse_uri(value))
    except UserError as error:
        raise ValueError(str(error).removeprefix("checkpoint.uri ")) from error


def _lock_path(value: str) -> str:
    if why := environment.path_objection(value):
        raise ValueError(why)
    return value


def _archive(value: str) -> str:
    if not value.endswith(environment.ARCHIVES):
        raise ValueError(environment.archive_advice(value))
    return _uri(value)


def _sha256(value: str) -> str:
    if not is_digest(value):
        raise ValueError("must be 64 hex digits, as `sha256sum FILE` prints them")
    return value


def _listed(value: object) -> object:
    return [value] if isinstance(value, str) else value


def _file_pattern(value: str) -> str:
    compile_pattern(value)
    return value


def _verify(value: object) -> object:
    names = [verify.value for verify in Verify]
    if value not in names:
        raise ValueError(f"must be one of {', '.join(names)}")
    return Verify(value)


def _or_never(value: int | None) -> int | None:
    return value or None


def _mode(value: object) -> object:
    if value == "native":
        raise ValueError(
            "'native' needs a TensorFlow that speaks hdfs:// itself, and no current one does; write staged "
            "(checkpoints are uploaded while training goes on) or mounted (the directory is in HDFS)"
        )
    if value not in ("staged", "mounted"):
        raise ValueError("must be staged or mounted")
    return value


def _cadence(value: object) -> object:
    if value not in CADENCES:
        raise ValueError(f"must be one of {', '.join(CADENCES)}")
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


def _code(value: object) -> object:
    if value is None:
        raise ValueError("is empty; write for example {dir: .}, or remove it where nodes share the directory")
    return value


def _one_of(kind: type[Named]) -> Callable[[object], Named]:
    """A reader of one of the values of an enumeration."""

    def read(value: object) -> Named:
        names = [each.value for each in kind]
        if value not in names:
            raise ValueError(f"must be one of {', '.join(names)}")
        return kind(value)

    return read


def _ulimit(value: object) -> object:
    """A limit from one number, which stands for both values, or from two."""
    if isinstance(value, int) and not isinstance(value, bool):
        return {"soft": value, "hard": value}
    if not isinstance(value, dict):
        raise ValueError("must be a whole number, or a mapping: {soft: 1024, hard: 4096}")
    return value


def _workdir(value: str) -> str:
    if not value.startswith("/") or ".." in value.split("/"):
        raise ValueError(
            f"{value[:60]!r} must be an absolute path without '..', on the nodes or in the image"
        )
    return posixpath.normpath(value)


def _protocol(value: str) -> str:
    if not re.fullmatch(r"grpc(\+[a-z0-9_]+)*", value):
        raise ValueError(
            f"{value[:40]!r} is not a TensorFlow server protocol; write grpc, or grpc+verbs and the like"
        )
    return value


def _kind_of_value(value: object) -> str:
    return "from-secret" if isinstance(value, dict) else "as-text"


class SecretModel(Strict):
    """A variable whose value is a secret."""

    secret: Name = Field(
        description="add `secret: NAME`, one of those that the supervisors are configured with"
    )


Command = Annotated[list[Text], BeforeValidator(_command)]
Value = Annotated[
    Annotated[SecretModel, Tag("from-secret")] | Annotated[Text, Tag("as-text")],
    Discriminator(_kind_of_value),
]
Env = dict[Annotated[str, _by(container.check_variable)], Value]
Pattern = Annotated[Text, _by(check_step_pattern)]
FilePattern = Annotated[Text, _by(_file_pattern)]


class JobPart(Strict):
    """Base of mappings in which users may try keys of docker."""

    reasons = NOT_FOR_JOBS


class ResourcesModel(JobPart):
    """The resources of one task of a role on its node; in a container they are also its limits."""

    cpus: float = Field(default=0.0, ge=0, le=container.MAX_CPUS, allow_inf_nan=False)
    memory: SizeBytes = 0
    gpus: int | None = Field(default=None, ge=0, le=1024)
    gpu_memory: SizeBytes = 0
    gpu_model: Annotated[Text, _by(container.check_gpu_model)] = ""
    gpu_share: int = Field(default=1, ge=1, le=container.MAX_GPU_SHARE)
    gpu_indices: list[Annotated[int, Field(ge=0, le=container.MAX_GPU_INDEX)]] = Field(
        default_factory=list, max_length=1024
    )
    labels: dict[str, Text] = Field(default_factory=dict)


class RoleModel(JobPart):
    """One role."""

    count: int | None = Field(default=None, ge=1, le=MAX_TASKS)
    min: int | None = Field(default=None, ge=1, le=MAX_TASKS)
    max: int | None = Field(default=None, ge=1, le=MAX_TASKS)
    command: Command | None = None
    env: Env = Field(default_factory=dict)
    resources: ResourcesModel = ResourcesModel()
    follow: bool | None = None
    cluster: bool | None = None
    serves: bool | None = None
    after: list[Text] = Field(default_factory=list)


class CheckpointModel(Strict):
    """The store of commits."""

    uri: Annotated[Text, AfterValidator(_uri)] | None = None
    mode: Annotated[Literal["staged", "mounted"], BeforeValidator(_mode)] = "staged"
    verify: Annotated[Verify, BeforeValidator(_verify)] = Verify.READBACK
    keep: int = Field(default=5, ge=2, le=1000)
    keep_every: int = Field(default=0, ge=0, le=STEPS)
    keep_for: DurationMs = 0
    lag_bound: Annotated[DurationMs | None, AfterValidator(_or_never)] = 300_000
    fallback_after: DurationMs | None = None
    adopt: Annotated[Text, _by(check_adopted)] | None = None
    cadence: Annotated[str, BeforeValidator(_cadence)] = "auto"
    max_overhead: float = Field(default=1.0, ge=OVERHEAD[0], le=OVERHEAD[1], allow_inf_nan=False)
    pattern: Annotated[list[FilePattern], BeforeValidator(_listed)] = Field(
        default_factory=list, max_length=MAX_FILE_PATTERNS
    )


class MountModel(JobPart):
    """A directory of the node in the container."""

    source: Annotated[Text, _by(container.check_source)] = Field(
        description="add `source: /DIRECTORY`, on the node"
    )
    target: Annotated[Text, _by(container.check_target)] = Field(
        description="add `target: /DIRECTORY`, in the container"
    )
    read_only: bool = True


class UlimitModel(Strict):
    """The two values of a limit."""

    soft: int = Field(description="add `soft: N`")
    hard: int = Field(description="add `hard: N`")


class ContainerModel(JobPart):
    """The container of each task."""

    image: Annotated[Text, _by(container.check_image)] | None = None
    pull: Annotated[Pull, BeforeValidator(_one_of(Pull))] = Pull.MISSING
    python: Annotated[Text, _by(container.check_python)] | None = None
    network: Annotated[Text, _by(container.check_network)] = HOST_NETWORK
    cpuset: Annotated[Text, _by(container.check_cpuset)] | None = None
    swap: SizeBytes = 0
    shm: SizeBytes = 0
    pids: int = Field(default=0, ge=0, le=container.MAX_PIDS)
    ulimits: dict[
        Annotated[str, _by(container.check_ulimit)], Annotated[UlimitModel, BeforeValidator(_ulimit)]
    ] = Field(default_factory=dict)
    mounts: list[MountModel] = Field(default_factory=list, max_length=container.MAX_MOUNTS)


class CodeModel(Strict):
    """The program's directory."""

    dir: Text = "."
    exclude: list[Text] = Field(default_factory=list)


class EnvironmentModel(Strict):
    """The Python environment of the programs."""

    requirements: Annotated[Text, AfterValidator(_lock_path)] | None = None
    archive: Annotated[Text, AfterValidator(_archive)] | None = None
    sha256: Annotated[Text, AfterValidator(_sha256)] | None = None
    wheelhouse: Annotated[Text, AfterValidator(_uri)] | None = None
    python: Annotated[Text, _by(environment.check_python)] | None = None


class RestartModel(Strict):
    """The restart budget."""

    max: int = Field(default=3, ge=0, le=100_000)
    backoff: DurationMs = 500
    backoff_max: DurationMs = 30_000
    degraded_limit: DurationMs = 0
    scope: dict[str, Annotated[Scope, BeforeValidator(_scope)]] = Field(default_factory=dict)
    max_in_window: int = Field(default=20, ge=0, le=100_000)
    window: DurationMs = 3_600_000
    rules: dict[str, Annotated[Rule, BeforeValidator(_one_of(Rule))]] = Field(default_factory=dict)
    ps_recovery: Annotated[PsRecovery, BeforeValidator(_one_of(PsRecovery))] = PsRecovery.FULL
    retry_from: int = Field(default=0, ge=0, le=255)


class ProgressModel(Strict):
    """The reading of steps from the output."""

    patterns: list[Pattern] = Field(
        default_factory=lambda: list(DEFAULT_STEP_PATTERNS), min_length=1, max_length=MAX_STEP_PATTERNS
    )
    nan: bool = False
    hangs: bool = True
    suspect_after: DurationMs | None = None
    act_after: DurationMs | None = None


class LimitsModel(Strict):
    """The time limits of the job."""

    wall_time: DurationMs | None = None
    startup: DurationMs | None = 600_000
    save_grace: DurationMs = 30_000
    hold_on_failure: DurationMs = 0
    output_budget: SizeBytes = Field(default=10 << 30, ge=1)
    keep_work: DurationMs = 86_400_000
    delete_after: DurationMs | None = None


class ServingModel(Strict):
    """The SavedModels that are published."""

    model: Name | None = None
    export: Annotated[Text, _by(check_export)] = Field(
        description="add `export: export/*`, the directories of SavedModels below {output_dir}"
    )
    role: Text | None = None
    check: Annotated[ModelCheck, BeforeValidator(_one_of(ModelCheck))] = ModelCheck.LOAD
    keep: int = Field(default=3, ge=1, le=MAX_KEPT_MODELS)
    servers: list[Annotated[Text, _by(check_server)]] = Field(default_factory=list, max_length=MAX_SERVERS)


class JobModel(JobPart):
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
    code: Annotated[CodeModel | None, BeforeValidator(_code)] = None
    environment: EnvironmentModel | None = None
    data: dict[Annotated[Text, _by(check_data_name)], Annotated[Text, AfterValidator(_uri)]] = Field(
        default_factory=dict
    )
    workdir: Annotated[Text, AfterValidator(_workdir)] | None = None
    env: Env = Field(default_factory=dict)
    preload: list[Annotated[Text, AfterValidator(_module)]] | None = None
    restart: RestartModel = RestartModel()
    progress: ProgressModel = ProgressModel()
    limits: LimitsModel = LimitsModel()
    protocol: Annotated[Text, AfterValidator(_protocol)] = "grpc"
    container: ContainerModel | None = None
    notify: list[Name] = Field(default_factory=list)
    serving: ServingModel | None = None
    packing: Annotated[Packing, BeforeValidator(_one_of(Packing))] = Packing.SPREAD
    priority: int = Field(default=0, ge=-PRIORITY, le=PRIORITY)
    success_policy: Annotated[SuccessPolicy, BeforeValidator(_one_of(SuccessPolicy))] = (
        SuccessPolicy.ALL_WORKERS
    )
