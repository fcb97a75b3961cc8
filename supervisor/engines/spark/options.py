"""The share of a Spark application that the agents of a pool have, by its options. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from supervisor.contract.errors import UserError

_SIZE = re.compile(r"([0-9]+)([kmgtp]?)b?", re.IGNORECASE)
_UNITS = "kmgtp"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The agents of a pool, all alike.

    Attributes:
        file: the configuration that all share.
        cpus: processors that each has of Spark, and gives to its tasks; 0: not said.
        memory: bytes that each gives to its tasks; 0: not said.
        gpus: GPUs that each has of Spark; 0: not said, or none.
        token: the file with the pool's token; empty where the shared file names certificates.
        plain: an agent is a task like any other of the application, and needs no resource profile.
    """

    pool: str
    agents: int
    file: str
    cpus: int
    memory: int
    gpus: int
    token: str = ""
    plain: bool = False


def completed(wanted: Wanted, options: Mapping[str, str], *, local: bool) -> Wanted:
    """Fill in what is not said: an executor has one agent, which has all of it. Raises UserError.

    `local`: the executor is the driver's own process, and knows no resource profiles.
    """
    of_task = int(options.get("spark.task.cpus", "1"))
    of_executor = of_task if local else int(options.get("spark.executor.cores", of_task))
    gpus = int(float(options.get("spark.task.resource.gpu.amount", "0")))
    full = replace(
        wanted,
        cpus=wanted.cpus or of_executor,
        memory=wanted.memory or size_of(options.get("spark.executor.memory", "1g")),
        gpus=wanted.gpus or gpus,
    )
    if not local and full.cpus > of_executor and "spark.executor.cores" in options:
        raise UserError(
            f"cpus={full.cpus}: an executor of this application has {of_executor} (spark.executor.cores)"
        )
    return replace(full, plain=local or (full.cpus, full.gpus) == (of_task, gpus))


def size_of(text: str) -> int:
    """Bytes of a size as Spark writes it, where a number alone is MiB: 1g is a GiB."""
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        raise UserError(f"spark.executor.memory is {text!r}, which is no size; write it as 4g")
    number, unit = found.groups()
    power = _UNITS.index(unit.lower()) + 1 if unit else 2
    return int(number) << (10 * power)
