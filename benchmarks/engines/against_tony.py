"""`python -m benchmarks.engines.against_tony`: recovery under TonY 0.4.7 on YARN, and under us.

The same program with the same flags and data on a YARN of three machines. A worker and the parameter server
are killed, and a machine is lost with all that it runs. JSON on standard output, progress on standard error.
"""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from xml.sax.saxutils import escape

from benchmarks.engines import ours
from benchmarks.engines.comparison import (
    ENDLESS,
    SAVE_STEPS,
    Application,
    Flags,
    Sides,
    compare,
    fetched,
    parse,
    watcher,
)
from benchmarks.engines.losses import Losses
from benchmarks.engines.yarn_nodes import bring_back, containers, environment_of, lose
from chaos.yarn import YarnCluster
from examples.demo.job import PROGRAM, Training
from examples.demo.watch import TRAINERS, beside
from supervisor.cli.local.cluster import LocalCluster

STATE = Path("var/bench/tony")
PATIENCE_S = 150.0
VERSION = "0.4.7"
TASKS = (*TRAINERS, "ps:0")
JAVA_17 = " ".join(f"--add-exports=java.base/sun.net.{name}=ALL-UNNAMED" for name in ("dns", "util"))
"""Hadoop 2.10 uses classes that Java has closed since 16."""


class TonY(Application):
    """A Tool: an application of TonY, set up so that it starts all tasks again when one has failed."""

    def __init__(self, yarn: YarnCluster, directory: Path, training: Training, home: Path) -> None:
        self._yarn = yarn
        self._home = home
        self._host = ""
        self._conf = directory / "conf"
        shutil.copytree(yarn.directory / "client", self._conf)
        site = self._conf / "core-site.xml"
        # Its ApplicationMaster looks for its own address among the interfaces, where 127.0.0.3 is not found.
        by_name = "<property><name>hadoop.security.token.service.use_ip</name><value>false</value></property>"
        site.write_text(site.read_text().replace("</configuration>", f"{by_name}</configuration>"))
        (directory / "history" / "intermediate").mkdir(parents=True)
        (directory / "checkpoints").mkdir()
        super().__init__(directory, training)

    def pid_of(self, task: str) -> int:
        """The process of the program with this task in its environment."""
        return self._processes()[task]

    def tasks_with(self, task: str) -> Sequence[str]:
        """Those whose containers are on the same NodeManager."""
        hosts = {name: _host(pid) for name, pid in self._processes().items()}
        return [name for name, host in hosts.items() if host == hosts[task]]

    async def lose_node(self, task: str) -> int:
        """A NodeManager with its containers."""
        self._host = _host(self.pid_of(task))
        return lose(self._yarn, self._host)

    async def node_back(self) -> None:
        """Start the NodeManager again."""
        await asyncio.to_thread(bring_back, self._yarn, self._host)

    def close(self) -> None:
        """End the client and the application."""
        super().close()
        for line in self._yarn.yarn("application", "-list", "-appTypes", "TONY").splitlines():
            if line.startswith("application_"):
                self._yarn.yarn("application", "-kill", line.split()[0])

    def _processes(self) -> dict[str, int]:
        found: dict[str, int] = {}
        for pid in containers(self._yarn):
            environment = environment_of(pid)
            if environment.get("STEP_LOG") != str(self._training.step_log) or "TF_CONFIG" not in environment:
                continue
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            if words[0].endswith(b"python"):
                found[f"{environment['JOB_NAME']}:{environment['TASK_INDEX']}"] = pid
        return found

    def _submit(self) -> subprocess.Popen[bytes]:
        history = self._directory / "history"
        settings = {
            "tony.application.security.enabled": "false",
            "tony.application.hadoop.location": "",
            # As Hadoop is, TonY is installed on every machine, so that no container waits for a copy of it.
            "tony.application.hadoop.classpath": f"{self._home}/lib/*",
            "tony.chief.instances": "1",
            "tony.ps.instances": "1",
            "tony.worker.instances": "2",
            **{f"tony.{role}.memory": "1g" for role in ("chief", "ps", "worker")},
            "tony.am.memory": "512m",
            "tony.task.am.jvm.opts": JAVA_17,
            "tony.task.executor.jvm.opts": f"-Xmx256m {JAVA_17}",
            "tony.task.gpu-metrics.enabled": "false",
            "tony.history.location": str(history),
            "tony.history.intermediate": str(history / "intermediate"),
            # The settings for recovery: start all tasks again, whichever has failed, and as often as needed;
            # take a task for lost after the fewest heartbeats that are allowed.
            "tony.am.retry-count": "1000",
            "tony.application.fail-on-worker-failure-enabled": "true",
            "tony.task.heartbeat-interval-ms": "1000",
            "tony.task.max-missed-heartbeats": "3",
        }
        program = {
            "STEP_LOG": str(self._training.step_log),
            "CHECKPOINT_DIR": str(self._directory / "checkpoints"),
            "TF_CPP_MIN_LOG_LEVEL": "2",
            "TF_ENABLE_ONEDNN_OPTS": "0",
        }
        rows = (
            f"<property><name>{name}</name><value>{escape(value)}</value></property>"
            for name, value in settings.items()
        )
        file = self._directory / "tony.xml"
        file.write_text(f"<configuration>{''.join(rows)}</configuration>")
        options = [word for name, value in program.items() for word in ("--shell_env", f"{name}={value}")]
        command = " ".join((sys.executable, str(PROGRAM), *self._training.flags()))
        with (self._directory / "client.log").open("ab") as log:
            return subprocess.Popen(
                [
                    *("setpriv", "--pdeathsig", "KILL", "java", *JAVA_17.split(), "-Xmx256m"),
                    *("-Djava.net.preferIPv4Stack=true", "-cp", f"{self._conf}:{self._home}/lib/*"),
                    *("com.linkedin.tony.TonyClient", "--executes", command),
                    *("--conf_file", str(file), *options),
                ],
                env={**self._yarn.environment, "HADOOP_CONF_DIR": str(self._conf)},
                cwd=self._directory,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare; the exit code is that of `compare`."""
    flags = parse(arguments, "against_tony", STATE, PATIENCE_S)
    return compare(flags, f"TonY {VERSION}", _sides(flags))


@contextmanager
def _sides(flags: Flags) -> Iterator[Sides]:
    """Both sides, on one YARN."""
    with YarnCluster() as yarn:
        yield (
            ("TonY", lambda losses: _theirs(yarn, flags, losses)),
            ("supervised", lambda losses: _ours(yarn, flags, losses)),
        )


def _theirs(yarn: YarnCluster, flags: Flags, losses: Losses) -> None:
    home, directory = fetched("benchmarks/engines/fetch.sh", "tony"), flags.state / "theirs"
    directory.mkdir(parents=True)
    training = Training(ENDLESS, flags.step_delay_ms, SAVE_STEPS, directory / "steps")
    tool = TonY(yarn, directory, training, home)
    try:
        asyncio.run(watcher(tool, "TonY", losses, flags, flags.most_s).lose(flags.plan))
    finally:
        tool.close()


def _ours(yarn: YarnCluster, flags: Flags, losses: Losses) -> None:
    directory = flags.state / "ours"
    training = Training(ENDLESS, flags.step_delay_ms, SAVE_STEPS, directory / "steps")
    with LocalCluster(directory / "cluster", nodes=1) as cluster:
        asyncio.run(_supervised(yarn, cluster, training, flags, losses))


async def _supervised(
    yarn: YarnCluster, cluster: LocalCluster, training: Training, flags: Flags, losses: Losses
) -> None:
    async with (
        ours.pool(cluster, "yarn", yarn.environment, flags.state),
        ours.training(cluster, training) as watch,
    ):
        tool = ours.OnYarn(watch, cluster, yarn)
        work = watcher(tool, "supervised", losses, flags, flags.most_s / 2).lose(flags.plan)
        await beside(work, *watch.looks())


def _host(pid: int) -> str:
    return environment_of(pid)["NM_HOST"]


if __name__ == "__main__":
    sys.exit(main())
