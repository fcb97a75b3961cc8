"""The fields of a job file: their types, defaults and bounds, and what to say when one is wrong."""

from __future__ import annotations

import re
import shlex
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from recovery.stores.uri import parse_uri
from supervisor.adapters.quantities import DurationMs, SizeBytes, Text
from supervisor.adapters.yaml_file import Strict
from supervisor.contract.checkpoint import Verify
from supervisor.contract.errors import UserError
from supervisor.contract.file_pattern import compile_pattern
from supervisor.contract.ids import check_name
from supervisor.contract.job import DEFAULT_STEP_PATTERNS, Rule, Scope, Strategy

MAX_TASKS = 1000
_MODULE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")
_ENV_NAME = re.compile(r"[A-Za-z_]\w*")
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
    try:
        return str(parse_uri(value))
    except UserError as error:
        raise ValueError(str(error).removeprefix("checkpoint.uri ")) from error


def _listed(value: object) -> object:
    return [value] if isinstance(value, str) else value


def _file_pattern(value: str) -> str:
    try:
        compile_pattern(value)
    except UserError as error:
        raise ValueError(str(error)) from error
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


def _rule(value: object) -> object:
    names = [rule.value for rule in Rule]
    if value not in names:
        raise ValueError(f"must be one of {', '.join(names)}")
    return Rule(value)


def _protocol(value: str) -> str:
    if not re.fullmatch(r"grpc(\+[a-z0-9_]+)*", value):
        raise ValueError(
            f"{value[:40]!r} is not a TensorFlow server protocol; write grpc, or grpc+verbs and the like"
        )
    return value


def _name(value: str) -> str:
    try:
        return check_name("the name", value)
    except UserError as error:
        raise ValueError(str(error)) from error


Command = Annotated[list[Text], BeforeValidator(_command)]
Env = dict[Annotated[str, AfterValidator(_variable)], Text]
Name = Annotated[Text, AfterValidator(_name)]
Pattern = Annotated[Text, AfterValidator(_pattern)]
FilePattern = Annotated[Text, AfterValidator(_file_pattern)]


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
    cluster: bool | None = None
    serves: bool | None = None
    after: list[Text] = Field(default_factory=list)


class CheckpointModel(Strict):
    """Where commits go."""

    uri: Annotated[Text, AfterValidator(_uri)] | None = None
    mode: Annotated[Literal["staged", "mounted"], BeforeValidator(_mode)] = "staged"
    verify: Annotated[Verify, BeforeValidator(_verify)] = Verify.READBACK
    keep: int = Field(default=5, ge=2, le=1000)
    keep_every: int = Field(default=0, ge=0, le=10**12)
    keep_for: DurationMs = 0
    lag_bound: Annotated[DurationMs | None, AfterValidator(_or_never)] = 300_000
    fallback_after: DurationMs | None = None
    pattern: Annotated[list[FilePattern], BeforeValidator(_listed)] = Field(
        default_factory=list, max_length=16
    )


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
    max_in_window: int = Field(default=20, ge=0, le=100_000)
    window: DurationMs = 3_600_000
    rules: dict[str, Annotated[Rule, BeforeValidator(_rule)]] = Field(default_factory=dict)


class ProgressModel(Strict):
    """How steps are read from the output."""

    patterns: list[Pattern] = Field(
        default_factory=lambda: list(DEFAULT_STEP_PATTERNS), min_length=1, max_length=32
    )
    nan: bool = False
    hangs: bool = True
    suspect_after: DurationMs | None = None
    act_after: DurationMs | None = None


class LimitsModel(Strict):
    """How long the job is waited for."""

    wall_time: DurationMs | None = None
    startup: DurationMs | None = 600_000
    save_grace: DurationMs = 30_000
    hold_on_failure: DurationMs = 0


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
    code: Annotated[CodeModel | None, BeforeValidator(_code)] = None
    env: Env = Field(default_factory=dict)
    preload: list[Annotated[Text, AfterValidator(_module)]] | None = None
    restart: RestartModel = RestartModel()
    progress: ProgressModel = ProgressModel()
    limits: LimitsModel = LimitsModel()
    protocol: Annotated[Text, AfterValidator(_protocol)] = "grpc"
