"""`supervisorctl kubernetes`: the manifests by which Kubernetes runs a cluster (docs/kubernetes.md)."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

import click

from supervisor.contract.errors import UserError

P = ParamSpec("P")
R = TypeVar("R")
MOST_HADOOP = 128 << 10
"""Most bytes in the files of Hadoop's configuration. `kubectl apply` copies an object into an annotation of
256 KiB."""


@click.group()
def kubernetes() -> None:
    """Print the manifests by which Kubernetes runs a cluster."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """The options of `kubernetes manifests`, as they were given."""

    image: str
    etcd: tuple[str, ...]
    namespace: str
    supervisors: int
    agents: int
    cpus: int
    memory: str
    gpus: int
    disk: str
    shm: str
    notice: int
    interface: str
    user: tuple[str, ...]
    drain_as: str
    hadoop_conf: Path | None
    hadoop_user: str
    claim: str
    reach: tuple[str, ...]


def given_options(function: Callable[Concatenate[Given, P], R]) -> Callable[P, R]:
    """Add the options; the function gets them first, as one value."""

    @click.option("--image", required=True, help="An image made with deploy/docker/cluster.Dockerfile.")
    @click.option("--etcd", multiple=True, required=True, metavar="HOST:PORT", help="One for each member.")
    @click.option("--namespace", default="tf-supervisor", show_default=True, help="It is made, too.")
    @click.option("--supervisors", type=click.IntRange(1, 9), default=3, show_default=True, help="How many.")
    @click.option("--agents", type=click.IntRange(1), default=1, show_default=True, help="How many.")
    @click.option("--cpus", type=click.IntRange(1, 4096), default=4, show_default=True, help="Of each agent.")
    @click.option("--memory", default="16GiB", show_default=True, help="For the tasks of each agent.")
    @click.option("--gpus", type=click.IntRange(0, 64), default=0, show_default=True, help="Of each agent.")
    @click.option("--disk", default="50GiB", show_default=True, help="Of each agent, on its machine.")
    @click.option("--shm", default="1GiB", show_default=True, help="/dev/shm of each agent, in memory.")
    @click.option(
        "--notice",
        type=click.IntRange(20, 3600),
        default=60,
        show_default=True,
        help="Seconds that an agent has to leave before its pod ends.",
    )
    @click.option("--interface", default="eth0", show_default=True, help="Of pods, with an IPv4 address.")
    @click.option(
        "--user",
        multiple=True,
        default=("admin:admin",),
        show_default=True,
        metavar="NAME:ROLE",
        help="Once for each user: viewer, submitter, operator or admin.",
    )
    @click.option(
        "--drain-as",
        default="",
        metavar="USER",
        help="Drain nodes before their pods end, as this user, an operator. Tasks can read its key.",
    )
    @click.option(
        "--hadoop-conf",
        type=click.Path(path_type=Path, file_okay=False, exists=True),
        help="The directory with core-site.xml and hdfs-site.xml.",
    )
    @click.option("--hadoop-user", default="tfsup", show_default=True, help="Of the daemons, to HDFS.")
    @click.option("--claim", default="", help="A PersistentVolumeClaim, which is file:///store in all pods.")
    @click.option(
        "--reach", multiple=True, metavar="CIDR:PORT[-PORT]", help="What pods may connect to outside."
    )
    @functools.wraps(function)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        values: dict[str, Any] = {each.name: kwargs.pop(each.name) for each in fields(Given)}
        return function(Given(**values), *args, **kwargs)

    return wrapped


@kubernetes.command()
@click.argument("cluster")
@given_options
def manifests(given: Given, cluster: str) -> None:
    """Print the manifests of CLUSTER, with the steps before `kubectl apply` as comments at their top."""
    from supervisor.cli.kubernetes import manifests as made
    from supervisor.cli.kubernetes.wanted import Wanted, reach_of, users_of

    wanted = Wanted(
        cluster=cluster,
        namespace=given.namespace,
        image=given.image,
        etcd=given.etcd,
        supervisors=given.supervisors,
        agents=given.agents,
        cpus=given.cpus,
        memory=_size("--memory", given.memory),
        gpus=given.gpus,
        disk=_size("--disk", given.disk),
        shm=_size("--shm", given.shm),
        notice_s=given.notice,
        interface=given.interface,
        users=users_of(given.user),
        drain_as=given.drain_as,
        hadoop=_hadoop(given.hadoop_conf) if given.hadoop_conf is not None else {},
        hadoop_user=given.hadoop_user,
        claim=given.claim,
        reach=tuple(reach_of(each) for each in given.reach),
    )
    wanted.check()
    click.echo(made.text(wanted), nl=False)


def _size(option: str, text: str) -> int:
    from supervisor.adapters.files.quantities import size_bytes

    try:
        return size_bytes(text)
    except ValueError as error:
        raise UserError(f"{option}: {error}") from error


def _hadoop(directory: Path) -> dict[str, str]:
    """The files that clients of HDFS read, checked. Raises UserError."""
    from supervisor.adapters.files.hadoop import CONF_FILES, read_conf

    read_conf(directory)
    names = [name for name in CONF_FILES if (directory / name).is_file()]
    if not names:
        raise UserError(f"--hadoop-conf {directory}: has none of {', '.join(CONF_FILES)}")
    try:
        found = {name: (directory / name).read_text(encoding="utf-8") for name in names}
    except UnicodeDecodeError as error:
        raise UserError(f"--hadoop-conf {directory}: is no UTF-8, as a ConfigMap is: {error}") from error
    if sum(len(each.encode()) for each in found.values()) > MOST_HADOOP:
        raise UserError(f"--hadoop-conf {directory}: `kubectl apply` takes {MOST_HADOOP >> 10} KiB at most")
    return found
