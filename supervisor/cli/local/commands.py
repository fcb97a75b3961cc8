"""`supervisorctl local`: the embedded cluster of this machine."""

from __future__ import annotations

import functools
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeVar

import click

from supervisor.cli import render
from supervisor.cli.local.layout import LocalDocker, LocalMount
from supervisor.cli.options import Globals, global_options
from supervisor.cli.target import state_of
from supervisor.contract.errors import UserError
from supervisor.contract.ids import check_name

if TYPE_CHECKING:
    from supervisor.cli.local.cluster import LocalCluster, LocalStatus, MemberView

P = ParamSpec("P")
R = TypeVar("R")


def docker_options(function: Callable[Concatenate[LocalDocker | None, P], R]) -> Callable[P, R]:
    """Add the options of `--runtime docker`; the function gets them first, None for plain processes."""

    @click.option("--runtime", type=click.Choice(["process", "docker"]), default="process", show_default=True)
    @click.option("--image", default="", help="docker: the image of jobs that name none.")
    @click.option("--socket", help="docker: dockerd's socket; else DOCKER_HOST, else /var/run/docker.sock.")
    @click.option(
        "--mount", "mounts", multiple=True, metavar="DIR[:rw]", help="docker: a directory in every container."
    )
    @click.option(
        "--network", "networks", multiple=True, metavar="NAME", help="docker: a network that jobs may join."
    )
    @functools.wraps(function)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        runtime, image, socket, mounts, networks = (
            kwargs.pop(name) for name in ("runtime", "image", "socket", "mounts", "networks")
        )
        assert isinstance(image, str)
        assert socket is None or isinstance(socket, str)
        assert isinstance(mounts, tuple)
        assert isinstance(networks, tuple)
        docker = None
        if runtime == "docker":
            found = tuple(_mount(each) for each in mounts)
            docker = LocalDocker(_socket_path(socket), image, found, networks)
        elif image or socket or mounts or networks:
            raise UserError("--image, --socket, --mount and --network are for --runtime docker")
        return function(docker, *args, **kwargs)

    return wrapped


def _socket_path(given: str | None) -> str:
    """The path of dockerd's Unix socket: agents reach it only there."""
    address = given or os.environ.get("DOCKER_HOST") or "/var/run/docker.sock"
    path = address.removeprefix("unix://")
    if not path.startswith("/"):
        raise UserError(f"{address!r} is not dockerd's Unix socket; give its path with --socket")
    return path


def _mount(given: str) -> LocalMount:
    directory = Path(given.removesuffix(":rw")).absolute()
    if not directory.exists():
        raise UserError(f"--mount {given}: {directory} does not exist")
    return LocalMount(os.path.normpath(directory), not given.endswith(":rw"))


def _secret(given: str) -> tuple[str, str]:
    name, equals, file = given.partition("=")
    if not equals or not Path(file).is_file():
        raise UserError(f"--secret {given}: write NAME=FILE, the path of a file that is there")
    if Path(file).stat().st_mode & 0o077:
        raise UserError(f"--secret {given}: others on this machine can read it; run: chmod 600 {file}")
    return check_name("secret", name), str(Path(file).absolute())


@click.group()
def local() -> None:
    """Start, inspect and stop an embedded cluster: etcd, supervisors and agents of this machine."""


@local.command()
@click.option("--nodes", type=int, default=None, help="Agents, each a node of the cluster; by default 3.")
@click.option("--supervisors", default=2, show_default=True, help="Supervisors, one of which leads.")
@click.option(
    "--profile",
    type=click.Choice(["fast", "default"]),
    default=None,
    help="Durations of failures; by default fast, and default with --advertise.",
)
@click.option(
    "--separate", is_flag=True, help="A checkpoint directory for each node, as on machines of their own."
)
@click.option(
    "--secret",
    "secrets",
    multiple=True,
    metavar="NAME=FILE",
    help="A secret that jobs may name, and the file that holds it.",
)
@click.option(
    "--advertise",
    default="",
    metavar="HOST",
    help="Let other machines reach the cluster at this name or address, over TLS. Agents are pools.",
)
@click.option(
    "--scratch",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path(tempfile.gettempdir()),
    help="With --advertise: a directory that each machine has to itself.",
)
@click.option("--foreground", is_flag=True, help="Stay here, and stop the cluster at SIGTERM.")
@global_options
@docker_options
def up(
    docker: LocalDocker | None,
    given: Globals,
    /,
    nodes: int | None,
    supervisors: int,
    profile: str | None,
    secrets: tuple[str, ...],
    **more: object,
) -> None:
    """Start a cluster in the background; returns when it can take jobs."""
    from supervisor.cli.local.cluster import LocalCluster

    started = time.monotonic()
    say = (lambda _: None) if given.json else click.echo
    advertise, foreground = str(more["advertise"]), bool(more["foreground"])
    cluster = LocalCluster(
        state_of(given),
        nodes=nodes if nodes is not None else 0 if advertise else 3,
        supervisors=supervisors,
        profile=profile or ("default" if advertise else "fast"),
        docker=docker,
        separate=bool(more["separate"]),
        progress=say,
    )
    cluster.secrets = dict(map(_secret, secrets))
    cluster.advertise, cluster.scratch = advertise, str(Path(str(more["scratch"])).absolute())
    with _ended_by_sigterm(cluster) if foreground else nullcontext():
        status = cluster.up(leashed=foreground)
        if given.json:
            render.emit_json(status)
        else:
            click.echo(f"up after {time.monotonic() - started:.1f} s; state and logs: {status.state}")
            click.echo(f"page: {_page_for_output(status.page, cluster.layout.http_token)}")
        if foreground:
            cluster.attend()


def _page_for_output(page: str, token: Path) -> str:
    """The address of the page; without its token where others may read the output, as a job's log."""
    if not page or sys.stdout.isatty():
        return page
    return f"{page.partition('?')[0]} (its token is in {token})"


@contextmanager
def _ended_by_sigterm(cluster: LocalCluster) -> Iterator[None]:
    """End the cluster at SIGTERM or an interrupt, and then what is inside."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    except KeyboardInterrupt:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        cluster.down()


@local.command()
@global_options
def down(given: Globals) -> None:
    """Stop the cluster and everything that it started; its state stays."""
    pids = _cluster(given).down()
    if given.json:
        render.emit_json({"stopped_pids": pids})
    else:
        click.echo(f"stopped {len(pids)} processes; nothing is left" if pids else "nothing was running")


@local.command()
@global_options
@click.pass_context
def status(context: click.Context, given: Globals) -> None:
    """Show the cluster's processes. Exits with 3 when it is down."""
    found = _cluster(given).status()
    if given.json:
        render.emit_json(found)
    else:
        _show(found, _cluster(given).layout.http_token)
    context.exit(0 if found.running else 3)


@local.command("stop-member")
@click.argument("name")
@click.option("--kill", is_flag=True, help="SIGKILL instead of SIGTERM.")
@global_options
def stop_member(given: Globals, name: str, kill: bool) -> None:
    """End one process; it stays ended until start-member."""
    number = signal.SIGKILL if kill else signal.SIGTERM
    _show_member(given, _cluster(given).stop_member(name, number))


@local.command("start-member")
@click.argument("name")
@global_options
def start_member(given: Globals, name: str) -> None:
    """Start a stopped process again."""
    _show_member(given, _cluster(given).start_member(name))


@local.command("kill-member")
@click.argument("name")
@global_options
def kill_member(given: Globals, name: str) -> None:
    """SIGKILL one process; its keeper starts it again."""
    _show_member(given, _cluster(given).kill_member(name))


def _cluster(given: Globals) -> LocalCluster:
    from supervisor.cli.local.cluster import LocalCluster

    return LocalCluster(state_of(given))


def _show(status: LocalStatus, token: Path) -> None:
    if not status.running:
        where = f"the cluster in {status.state} runs on {status.elsewhere}, or its end was not noted"
        click.echo(where if status.elsewhere else f"no cluster runs in {status.state}")
        return
    click.echo(f"cluster in {status.state}, keeper pid {status.keeper_pid}")
    if status.page:
        click.echo(f"page: {_page_for_output(status.page, token)}")
    rows = [
        (
            member.member,
            member.state,
            member.pid or "-",
            member.restarts,
            render.when(member.since_wall_ms) if member.pid else "-",
            member.last_exit,
        )
        for member in status.members
    ]
    render.table(
        ("member", "state", "pid", "restarts", "since", "last exit"), rows, "the keeper does not answer"
    )


def _show_member(given: Globals, member: MemberView) -> None:
    if given.json:
        render.emit_json(member)
    else:
        click.echo(f"{member.member}: {member.state}" + (f", pid {member.pid}" if member.pid else ""))
