"""The part `serving:` of a job: the models that it exports, and the servers told of them. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from supervisor.contract.addresses import split_host_port
from supervisor.contract.errors import UserError
from supervisor.contract.ids import check_name
from supervisor.contract.job.container import Objection, Where
from supervisor.contract.job.file_pattern import STEP, compile_pattern
from supervisor.contract.job.spec import EnvironmentRef, JobSpec, ModelCheck, ServingSpec

MODELS = "models"
"""The directory of a store that holds the published versions of all models."""

CHECKPOINT_DIR = "{checkpoint_dir}/"
"""Before a pattern whose first directory is made to lead from $CHECKPOINT_DIR to the output directory."""

MAX_SERVERS = 16
MAX_KEPT_MODELS = 100
OF_A_PYTHON = ("LD_LIBRARY_PATH", "PATH", "PYTHONHOME", "PYTHONPATH", "TF_USE_LEGACY_KERAS")
"""Variables by which a program's Python finds its modules."""


@dataclass(frozen=True, slots=True)
class Exports:
    """The models that a task exports, and what its node needs to try them.

    Attributes:
        program: the first word of the task's command: a Python, or a wrapper of one.
        workdir: the task's working directory.
        env: of its environment what says where a Python finds its modules.
        environment: the job's own packages, whose Python it is then.
    """

    serving: ServingSpec
    program: str = ""
    workdir: str = "/"
    env: dict[str, str] = field(default_factory=dict)
    environment: EnvironmentRef | None = None


def base_of(uri: str, model: str) -> str:
    """The directory of a model in a store, as model servers are given it."""
    return f"{uri.removeprefix('file://')}/{MODELS}/{model}"


def model_base(spec: JobSpec) -> str:
    """The directory of the model that a job publishes; empty if it publishes none."""
    return base_of(spec.checkpoint.uri, spec.serving.model) if spec.serving is not None else ""


def pattern_of(export: str) -> str:
    """The pattern of directories below the output directory, of a text in `serving.export`."""
    return export.removeprefix(CHECKPOINT_DIR)


def link_of(export: str) -> str:
    """The name in $CHECKPOINT_DIR that leads to the same name in the output directory; empty: none does."""
    return pattern_of(export).partition("/")[0] if export.startswith(CHECKPOINT_DIR) else ""


def check_export(export: str) -> str:
    """Return a text for `serving.export`; raises UserError for any other text."""
    pattern, link = pattern_of(export), link_of(export)
    if "*" in link or "?" in link:
        raise UserError(f"{export!r}: the first directory below {{checkpoint_dir}} must be a name")
    if STEP in pattern:
        raise UserError(f"{pattern!r}: write * where the number is; versions are counted by the cluster")
    try:
        compile_pattern(pattern)
    except UserError as error:
        text = str(error).replace(
            "$CHECKPOINT_DIR, such as backup/model-{step}.keras", "{output_dir}: export/*"
        )
        raise UserError(text) from error
    return export


def check_server(address: str) -> str:
    """Return the address of a model server; raises UserError for any other text."""
    if split_host_port(address)[1] == 0:
        raise UserError(f"{address!r} has port 0; write the port on which the model server takes gRPC")
    return address


def objections(spec: JobSpec) -> Iterator[Objection]:
    """Objections to `serving:` of a job, by their fields."""
    serving = spec.serving
    if serving is None:
        return
    where: Where = ("serving",)
    names = [role.name for role in spec.roles]
    if serving.role not in names:
        text = f"there is no role {serving.role[:80]!r}; the roles are {', '.join(names[:10])}"
        yield Objection((*where, "role"), text)
    if spec.container is not None and serving.check is not ModelCheck.CHECKSUMS:
        text = f"{serving.check.value} is not possible in containers; write check: checksums"
        yield Objection((*where, "check"), text)
    if link_of(serving.export) and spec.checkpoint.mode != "staged":
        text = "a mounted $CHECKPOINT_DIR leads nowhere else; write the exports below {output_dir}"
        yield Objection((*where, "export"), text)
    if len(serving.servers) > MAX_SERVERS:
        text = f"{len(serving.servers)} servers; at most {MAX_SERVERS} are possible"
        yield Objection((*where, "servers"), text)
    checks: list[tuple[Where, Callable[[str], str], str]] = [
        ((*where, "model"), _model, serving.model),
        ((*where, "export"), check_export, serving.export),
    ]
    checks += [((*where, "servers", i), check_server, each) for i, each in enumerate(serving.servers)]
    for place, check, text in checks[: MAX_SERVERS + 2]:
        try:
            check(text)
        except UserError as error:
            yield Objection(place, str(error))


def _model(name: str) -> str:
    return check_name("model", name)
