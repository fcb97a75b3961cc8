"""What a cluster does about what a program does on a real GPU: needs one that nothing else uses, and nvcc.

`python -m tests.nvml.real [GIB]` prints a table of docs/gpu.md. The program holds so much of the memory.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import pynvml

from supervisor.cli.local.cluster import LocalCluster
from supervisor.contract.views.jobs import IncidentView
from tests.nvml.cluster import Cluster

SOURCE = Path(__file__).with_name("on_gpu.cu")
DEEDS = ("page_fault", "misaligned", "assert", "out_of_memory", "killed", "stopped", "spin")
JOB = """\
name: {name}
command: [./on_gpu, {deed}, "{gib}"]
strategy: plain
code: {{dir: code}}
roles:
  worker: {{count: 1, resources: {{gpus: 1}}}}
env: {{WITNESS: "{directory}/{name}"}}
restart: {{backoff: 10ms}}
progress: {{suspect_after: 2s, act_after: 4s}}
checkpoint: {{uri: "file://{directory}/checkpoints-{name}"}}
"""


@dataclass(frozen=True)
class Seen:
    """What came of a deed: what the GPU's fault is called, and seconds from the deed."""

    fault: str
    told_s: float
    free_s: float
    incident: IncidentView
    start_s: float
    step_s: float

    def row(self, deed: str) -> str:
        """A row of the table."""
        told = f"{self.told_s:.2f} s" if self.fault else "-"
        times = f"{told} | {self.free_s:.2f} s | {self.start_s:.2f} s | {self.step_s:.2f} s"
        return f"| {deed} | {self.fault or '-'} | `{self.incident.cause}` | {times} |\n"


class Processes(threading.Thread):
    """Notes each time from which on NVML lists no process on the GPU."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.free: list[float] = []
        self._over = threading.Event()

    def run(self) -> None:
        handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        used = False
        while not self._over.wait(0.002):
            before, used = used, bool(pynvml.nvmlDeviceGetComputeRunningProcesses_v3(handle))
            if before and not used:
                self.free.append(time.time())

    def end(self) -> None:
        self._over.set()
        self.join()


def measure(cluster: Cluster, deed: str, gib: int) -> Seen:
    """A job that does the deed once, until it makes steps again; it is stopped then."""
    name, directory = deed.replace("_", "-"), cluster.directory
    file, witness = directory / f"{name}.yaml", directory / name
    file.write_text(JOB.format(name=name, deed=deed, gib=gib, directory=directory))
    before, processes = cluster.gpus()[0].fault, Processes()
    processes.start()
    cluster.ask("submit", str(file))
    cluster.until("the deed", lambda: noted(witness, "deed"))
    told: list[tuple[float, str]] = []

    def again() -> bool:
        gpu = cluster.gpus()[0]
        assert gpu.state == "ok"
        if gpu.fault != before:
            told.append((time.time(), gpu.reason))
        return len(noted(witness, "step")) > 1 and bool(incidents(cluster, name))

    cluster.until("steps again", again)
    processes.end()
    cluster.ask("stop", name)
    (began,), (_, start), (_, step) = (noted(witness, what) for what in ("deed", "start", "step"))
    (incident,) = incidents(cluster, name)
    told_s = told[0][0] - began if told else 0.0
    fault = told[0][1] if told else ""
    free = next(each for each in processes.free if each > began)
    return Seen(fault, told_s, free - began, incident, start - began, step - began)


def noted(witness: Path, what: str) -> list[float]:
    """When the program did this."""
    lines = witness.read_text().splitlines() if witness.exists() else []
    return [float(line.split()[0]) for line in lines if line.endswith(f" {what}")]


def incidents(cluster: Cluster, job: str) -> list[IncidentView]:
    return [each for each in cluster.explain(job).incidents if each.cause != "submitted"]


def main(gib: int) -> None:
    """Print the table, and what was seen of the GPU."""
    pynvml.nvmlInit()
    with tempfile.TemporaryDirectory(prefix="gpu-") as root:
        directory = Path(root)
        (directory / "code").mkdir()
        program = str(directory / "code" / "on_gpu")
        subprocess.run(["nvcc", "-arch=native", "-o", program, str(SOURCE)], check=True)
        with LocalCluster(directory / "state", nodes=1, supervisors=1) as local:
            cluster = Cluster(local, (), directory)
            cluster.until("the GPU", lambda: cluster.states() == ["ok"])
            sys.stdout.write(
                f"{cluster.ask('gpus')}\n| deed | fault | cause | told | free | started | step |\n"
            )
            sys.stdout.write("|---|---|---|---|---|---|---|\n")
            for deed in DEEDS:
                sys.stdout.write(measure(cluster, deed, gib).row(deed))
                sys.stdout.flush()


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 70)
