"""The command tree. A verb is imported when it is used: `--help` loads little more than click.

CONTRIBUTING.md lists the steps for a new verb.
"""

from __future__ import annotations

import errno
import sys
from collections.abc import Mapping
from typing import ClassVar

import click

from supervisor.cli.lazy import LazyGroup
from supervisor.cli.options import Globals, global_options
from supervisor.cli.terminal import neutralise
from supervisor.contract.errors import TfSupervisorError

VERBS = {
    "local": (
        "supervisor.cli.local.commands",
        "Start, inspect and stop the embedded cluster of this machine.",
    ),
    "init": ("supervisor.cli.jobs.init", "Read a training program, and write a job file to start from."),
    "submit": ("supervisor.cli.jobs.submit", "Start a job."),
    "run": ("supervisor.cli.jobs.submit", "Submit a job, follow it, and exit with its result."),
    "validate": ("supervisor.cli.jobs.submit", "Check a job file without starting it."),
    "wait": ("supervisor.cli.jobs.submit", "Wait until a job is running, has ended, or has reached a step."),
    "stop": ("supervisor.cli.jobs.control", "Stop a job; its checkpoints stay."),
    "start": ("supervisor.cli.jobs.control", "Start a stopped job again from its newest checkpoint."),
    "release": ("supervisor.cli.jobs.control", "Let a parked job go on."),
    "delete": ("supervisor.cli.jobs.delete", "Stop a job, and have the cluster forget it."),
    "pause": ("supervisor.cli.jobs.pause", "Let nothing be restarted or moved by itself."),
    "resume": ("supervisor.cli.jobs.pause", "End a pause, or the brake."),
    "restart": ("supervisor.cli.jobs.control", "Restart a job, or one task of it."),
    "scale": ("supervisor.cli.jobs.control", "Change how many tasks a role of a job has."),
    "status": ("supervisor.cli.jobs.look", "Show jobs and their tasks."),
    "top": ("supervisor.cli.cluster.top", "Show jobs, nodes and events on one screen, as they change."),
    "explain": (
        "supervisor.cli.jobs.look",
        "Tell what failed in a job, what was decided and how long it took.",
    ),
    "describe": (
        "supervisor.cli.jobs.describe",
        "Show the stored file of a job, and where each value is from.",
    ),
    "goodput": ("supervisor.cli.jobs.spent", "Show what the time of jobs was spent on."),
    "events": ("supervisor.cli.jobs.look", "Show what happened, oldest first."),
    "checkpoints": (
        "supervisor.cli.checkpoints.list",
        "List, verify, restore, import and collect checkpoints.",
    ),
    "outputs": (
        "supervisor.cli.jobs.outputs",
        "List and fetch what tasks wrote to their output directories.",
    ),
    "models": (
        "supervisor.cli.models.verbs",
        "List the models that jobs export; publish, roll back and label their versions.",
    ),
    "pin": ("supervisor.cli.jobs.control", "Keep a checkpoint for good."),
    "unpin": ("supervisor.cli.jobs.control", "Let a pinned checkpoint be removed when it is old."),
    "nodes": ("supervisor.cli.cluster.nodes", "Show the nodes and what runs on them."),
    "gpus": ("supervisor.cli.cluster.nodes", "Show the GPUs, their health and the tasks that have them."),
    "cordon": ("supervisor.cli.cluster.nodes", "Let no new task go to a node."),
    "uncordon": ("supervisor.cli.cluster.nodes", "Let tasks go to a node, or a GPU, again."),
    "drain": ("supervisor.cli.cluster.nodes", "Move all tasks away from a node."),
    "pool": ("supervisor.cli.pool.commands", "Run agents on machines of another resource manager, in pools."),
    "kubernetes": (
        "supervisor.cli.kubernetes.commands",
        "Print the manifests by which Kubernetes runs a cluster.",
    ),
    "tail": ("supervisor.cli.jobs.tail", "Show the output of a task, across its restarts."),
    "logs": ("supervisor.cli.jobs.logs", "Show the output of all tasks of a job, merged by time."),
    "signal": ("supervisor.cli.jobs.control", "Send a signal to a task."),
    "exec": ("supervisor.cli.jobs.execute", "Run a command beside a task, in its environment."),
    "etcd": ("supervisor.cli.cluster.etcd", "Give etcd a user for each daemon."),
    "certs": ("supervisor.cli.cluster.certs", "Make certificates for a cluster's machines and people."),
    "doctor": ("supervisor.cli.cluster.doctor", "Check this machine, and say what to do."),
    "image": ("supervisor.cli.cluster.image", "Say whether a container image can run jobs."),
    "completion": ("supervisor.cli.shell", "Print a script by which a shell completes words."),
    "man": ("supervisor.cli.shell", "Print the manual page."),
    "version": ("supervisor.cli.jobs.look", "Show the version."),
}


_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


class Verbs(LazyGroup):
    """The verbs of `supervisorctl`."""

    verbs: ClassVar[Mapping[str, tuple[str, str]]] = VERBS
    functions: ClassVar[Mapping[str, str]] = {"exec": "execute"}


def _version(ctx: click.Context, param: click.Parameter, wanted: bool) -> None:
    del param
    if wanted and not ctx.resilient_parsing:
        from supervisor.cli.jobs.look import version

        ctx.invoke(version)
        ctx.exit()


@click.command(cls=Verbs, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version", is_flag=True, is_eager=True, callback=_version, expose_value=False, help="As `version`."
)
@global_options
@click.pass_context
def cli(ctx: click.Context, given: Globals) -> None:
    """Run distributed TensorFlow training that survives the loss of any process or machine.

    The cluster is found by --state or --config, else TFSUP_STATE, TFSUP_CONFIG, else in ./var/local.
    """
    ctx.obj = given


def main() -> None:
    """Entry point of the scripts. Exit codes: docs/cli.md; wrong input gives no traceback."""
    try:
        code = cli.main(standalone_mode=False)
    except click.exceptions.Abort:
        code = 130
    except click.ClickException as error:
        error.show()
        code = error.exit_code
    except TfSupervisorError as error:
        click.echo(f"error: {neutralise(str(error))}", err=True)
        code = error.exit_code
    except OSError as error:
        if error.filename is not None or error.errno not in _FULL:
            raise
        click.echo(f"error: the output cannot be written: {error.strerror}", err=True)
        code = 1
    sys.exit(code if isinstance(code, int) else 0)


if __name__ == "__main__":
    main()
