"""A Slurm of the tests' own on this machine: munged, slurmctld, and a slurmd for each of a few nodes.

    with SlurmCluster(directory) as slurm:
        slurm.environment                # for sbatch, squeue, ...
        slurm.kill("n1")                 # SIGKILL of its slurmd; start("n1") brings it back

What is queued again begins after 20 s, instead of Slurm's two minutes (`cred_expire`).
A node has one processor, so that it holds one agent of a pool. One node has two GPUs, which are links to
/dev/null (Slurm wants devices): Slurm gives them to jobs, and nothing can use them. Debian's slurmd is built
so that several can run on one machine (`slurmd -N`). There are no control groups: processes are found by
their parents. It needs root.
"""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import subprocess
from pathlib import Path

from chaos.processes import Daemons, free_ports

NODES = ("n1", "n2", "n3")
RACKS = {"left": NODES[:2], "right": NODES[2:]}
"""The switches that Slurm is told of."""

WITH_GPUS = NODES[0]

_SYSTEM_PATH = "/usr/sbin:/usr/bin:/sbin:/bin"
_CONF = """\
ClusterName=tfsup
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={directory}/munge.socket,cred_expire=20
StateSaveLocation={directory}/state
SlurmdSpoolDir={directory}/spool.%n
SlurmctldPidFile={directory}/slurmctld.pid
SlurmdPidFile={directory}/slurmd.%n.pid
SlurmctldLogFile={directory}/slurmctld.log
SlurmdLogFile={directory}/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,sched_interval=2,bf_interval=2
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/none
SlurmdTimeout=10
SlurmctldTimeout=10
KillWait=10
ReturnToService=2
GresTypes=gpu
TopologyPlugin=topology/tree
{nodes}
PartitionName=all Nodes={names} Default=YES MaxTime=INFINITE State=UP
"""


class SlurmCluster(Daemons):
    """A small Slurm of munged, slurmctld and nodes; its directory should have a short path."""

    def __init__(self, directory: Path, nodes: tuple[str, ...] = NODES) -> None:
        super().__init__(directory)
        self.nodes = nodes

    @property
    def environment(self) -> dict[str, str]:
        """The environment in which Slurm's commands find this one."""
        return os.environ | self.variables

    @property
    def variables(self) -> dict[str, str]:
        """The part of the environment that is of this Slurm."""
        return {
            "PATH": f"{os.environ['PATH']}:{_SYSTEM_PATH}",
            "SLURM_CONF": str(self.directory / "slurm.conf"),
        }

    def _begin(self) -> None:
        (self.directory / "state").mkdir()
        key = self.directory / "munge.key"
        key.touch(mode=0o600)
        key.write_bytes(secrets.token_bytes(128))
        ports = free_ports(1 + len(self.nodes))
        named = zip(self.nodes, ports[1:], strict=True)
        here, common = socket.gethostname(), "CPUs=1 RealMemory=1024 State=UNKNOWN"
        rows = [
            f"NodeName={node} NodeHostname={here} NodeAddr=127.0.0.1 Port={port} Feature=on-{node} {common}"
            + (" Gres=gpu:a100:2" if node == WITH_GPUS else "")
            for node, port in named
        ]
        conf = _CONF.format(
            host=here,
            controller=ports[0],
            directory=self.directory,
            nodes="\n".join(rows),
            names=",".join(self.nodes),
        )
        (self.directory / "slurm.conf").write_text(conf)
        switches = [f"SwitchName={rack} Nodes={','.join(nodes)}" for rack, nodes in RACKS.items()]
        switches.append(f"SwitchName=all Switches={','.join(RACKS)}")
        (self.directory / "topology.conf").write_text("\n".join(switches) + "\n")
        for number in (0, 1):
            (self.directory / f"gpu{number}").symlink_to(os.devnull)
        gpus = f"NodeName={WITH_GPUS} Name=gpu Type=a100 File={self.directory}/gpu[0-1]\n"
        (self.directory / "gres.conf").write_text(gpus)
        self.start("munged")
        self._wait((self.directory / "munge.socket").exists, "munged listens")
        self.start("slurmctld")
        for node in self.nodes:
            self.start(node)
        self._wait(self._all_idle, "all nodes are idle")

    def run(self, *command: str) -> str:
        """The output of a command of Slurm."""
        done = subprocess.run(
            [*command], env=self.environment, check=True, capture_output=True, text=True, timeout=60
        )
        return done.stdout

    def close(self) -> None:
        """End the jobs, and the daemons."""
        try:
            if "slurmctld" in self._daemons:
                self.run("scancel", "--user=root")
                self._wait(lambda: not self.run("squeue", "--noheader").strip(), "no job is left")
        finally:
            super().close()

    def _argv(self, name: str) -> list[str]:
        at, conf = self.directory, str(self.directory / "slurm.conf")
        if name == "munged":
            files = (
                "key-file=munge.key",
                "socket=munge.socket",
                "pid-file=munge.pid",
                "seed-file=munge.seed",
            )
            options = [
                f"--{option}={at / file}" for option, _, file in (each.partition("=") for each in files)
            ]
            return [_program("munged"), "--foreground", "--force", "--num-threads=2", *options]
        if name == "slurmctld":
            return [_program("slurmctld"), "-D", "-f", conf]
        return [_program("slurmd"), "-D", "-N", name, "-f", conf]

    def _all_idle(self) -> bool:
        done = subprocess.run(
            ["sinfo", "--noheader", "--Node", "--format=%N %T"],
            env=self.environment,
            check=False,
            capture_output=True,
            text=True,
        )
        return done.stdout.split().count("idle") == len(self.nodes)


def _program(name: str) -> str:
    found = shutil.which(name, path=f"{_SYSTEM_PATH}:{os.environ['PATH']}")
    assert found is not None, f"there is no {name}; run deploy/get-slurm.sh"
    return found
