"""A real YARN, by deploy/yarn/yarn.sh, beside an HDFS of its own: a ResourceManager and three NodeManagers.

    with YarnCluster() as yarn:
        yarn.environment                     # for Hadoop's commands, and for supervisor.engines.yarn
        yarn.script("kill", "nodemanager0")  # its containers live on; `restore` brings it back
        yarn.yarn("node", "-list")           # the output of a command of Hadoop's

NodeManager N is the machine 127.0.0.(N + 2), with memory for one agent of `AGENT_MIB` and some
ApplicationMasters. Starting takes about fifteen seconds on a calm machine. `YarnCluster(Secured(...))` has
Kerberos, beside an HDFS with Kerberos that runs already.
"""

from __future__ import annotations

import os
import re
import secrets
import subprocess
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from chaos.hdfs import HdfsCluster
from chaos.processes import Guard

AGENT_MIB = 3072
PLACES = ("127.0.0.2", "127.0.0.3", "127.0.0.4")
_SCRIPT = Path(__file__).resolve().parents[1] / "deploy" / "yarn" / "yarn.sh"


@dataclass(frozen=True, slots=True)
class Secured:
    """A HDFS with Kerberos, beside which a YARN has it too.

    Attributes:
        directory: where it has its clients' configuration, `krb5.conf` and YARN's own `yarn.keytab`.
        user: the ticket cache of those who use YARN.
        administrator: the ticket cache of YARN's administrator.
    """

    directory: Path
    user: str
    administrator: str


class YarnCluster:
    """A small YARN; a context manager. `gpus`: it has one, and preempts nothing.

    `node_mib`: the memory of each machine, of which YARN only counts.
    """

    def __init__(self, kerberos: Secured | None = None, *, gpus: bool = False, node_mib: int = 4096) -> None:
        self.directory = Path(tempfile.gettempdir()) / f"yarn-{os.getpid()}-{secrets.token_hex(4)}"
        self._kerberos = kerberos
        self._asked = {"YARN_GPUS": "1" if gpus else "", "YARN_NODE_MIB": str(node_mib)}
        self._end = ExitStack()

    @property
    def environment(self) -> dict[str, str]:
        """The environment in which Hadoop's commands find this YARN. Compiled classes stay with it."""
        return os.environ | self.variables

    @property
    def variables(self) -> dict[str, str]:
        """The part of the environment that is of this YARN."""
        found = {
            "HADOOP_HOME": str(self.directory),
            "HADOOP_CONF_DIR": str(self.directory / "client"),
            "XDG_CACHE_HOME": str(self.directory / "cache"),
        }
        if self._kerberos is not None:
            found["KRB5_CONFIG"] = str(self._kerberos.directory / "krb5.conf")
            found["KRB5CCNAME"] = self._kerberos.user
        return found

    @property
    def web(self) -> str:
        """The first of the ResourceManager's pages."""
        return (self.directory / "cluster").read_text().partition("rm=")[2].strip() + "/cluster"

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            beside = self._kerberos or stack.enter_context(HdfsCluster())
            environment = {**os.environ, **self._asked}
            guard = Guard(_SCRIPT, "run", self.directory, beside.directory, environment=environment)
            stack.callback(guard.end)
            self._end = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end.close()

    def script(self, verb: str, *arguments: str) -> str:
        """Run yarn.sh on this cluster; what it printed."""
        return self._run(str(_SCRIPT), verb, str(self.directory), *arguments)

    def yarn(self, *arguments: str) -> str:
        """The output of Hadoop's `yarn`."""
        return self._run(str(self.directory / "bin/yarn"), *arguments)

    def container_of(self, application: str) -> str:
        """The container of an application's agent, in its first attempt."""
        attempt = application.replace("application", "appattempt") + "_000001"
        words = [line.split() for line in self.yarn("container", "-list", attempt).splitlines()]
        # The first is the ApplicationMaster's.
        return max(each[0] for each in words if each and each[0].startswith("container_"))

    def container_at(self, place: str) -> str:
        """The container of an agent on a machine, of whichever application."""
        running = re.findall(
            r"application_\d+_\d+", self.yarn("application", "-list", "-appStates", "RUNNING")
        )
        attempts = [each.replace("application", "appattempt") + "_000001" for each in set(running)]
        lines = [line for each in attempts for line in self.yarn("container", "-list", each).splitlines()]
        found = [line.split()[0] for line in lines if f"{place}:" in line]
        return max(each for each in found if not each.endswith("_01_000001"))

    def decommission(self, *places: str) -> None:
        """Tell YARN to take machines away, with a minute of grace."""
        (self.directory / "exclude").write_text("".join(f"{place}\n" for place in places))
        self._administer("-refreshNodes", "-g", "60", "-server")

    def restore(self) -> None:
        """Have all machines again. The NodeManager of one that was decommissioned has ended."""
        (self.directory / "exclude").write_text("")
        self._administer("-refreshNodes")
        # One that still runs may be about to end: it is ready when it has, and is started after that.
        for _ in range(2):
            for index in range(len(PLACES)):
                # One that runs is left alone, with an error.
                subprocess.run(
                    [str(_SCRIPT), "start", str(self.directory), f"nodemanager{index}"],
                    capture_output=True,
                    check=False,
                )
            self.script("ready")

    def logs(self, application: str) -> str:
        """The output of `yarn logs` about an application; empty before YARN has collected it."""
        command = [str(self.directory / "bin/yarn"), "logs", "-applicationId", application]
        return subprocess.run(
            command, env=self.environment, capture_output=True, text=True, timeout=120, check=False
        ).stdout

    def _administer(self, *arguments: str) -> None:
        caches = {} if self._kerberos is None else {"KRB5CCNAME": self._kerberos.administrator}
        self._run(str(self.directory / "bin/yarn"), "rmadmin", *arguments, **caches)

    def _run(self, *command: str, **environment: str) -> str:
        done = subprocess.run(
            command,
            env=self.environment | environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, f"{' '.join(command)}: {done.stdout}{done.stderr}"
        return done.stdout
