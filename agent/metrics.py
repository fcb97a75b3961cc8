"""The metrics of one agent: its tasks, launchers, saves, GPUs and disks."""

from __future__ import annotations

import os
from collections.abc import Mapping
from concurrent.futures import Future, wait
from pathlib import Path

from agent.boundaries import Gpus, Outside, Post
from agent.checkpoints.keeper import NodeCheckpoints
from agent.core.events import Event, GpusSeen
from agent.core.gpus.health import KnownGpu
from agent.core.gpus.xid import XIDS
from agent.core.pool import ready_spares
from agent.core.state import AgentState, Attempt, Launcher
from agent.daemon import AgentDaemon
from agent.outputs.sender import NodeOutputs
from recovery.io.daemon_threads import DaemonThreads
from supervisor.adapters.certificates.watch import CertificateWatch
from supervisor.adapters.metrics.daemon import Fill, Metrics
from supervisor.adapters.metrics.samples import LONG, Rows, counter, gauge, histogram
from supervisor.contract.observed import GpuHealth, SaverBeat

ATTEMPT_STATES = ("starting", "running", "ending", "ended")
LAUNCHER_STATES = ("starting", "ready", "away", "ending")
DISK_S = 0.5
"""The time in which a disk answers."""
OTHER_XID = "other"
"""An XID that our table does not have."""

REGISTERED = gauge("tfsup_agent_registered", "1 while etcd has this agent's incarnation.")
READ_AGE = gauge(
    "tfsup_agent_etcd_read_age_seconds", "Time since the agent's last good read of etcd was sent."
)
TIME_LEFT = gauge(
    "tfsup_agent_time_left_seconds",
    "For so long tasks may go on if etcd does not answer; negative when that is over.",
)
BLOCKED = gauge("tfsup_agent_blocked", "1 while nothing new can start on this node.")
TASKS = gauge("tfsup_agent_attempts", "Attempts that this agent knows, by state.", "state")
LAUNCHERS = gauge("tfsup_agent_launchers", "Launcher processes, by state.", "state")
SPARES = gauge("tfsup_agent_spare_launchers", "Launchers in reserve that are ready.")
PREPARING = gauge("tfsup_agent_reservations", "Ports that are reserved for tasks of plans.")
STAGING = gauge("tfsup_agent_stagings", "Bases that are being brought to this node.")
STAGE = histogram(
    "tfsup_agent_stage_duration_seconds", "Time of each staging of a base that succeeded.", buckets=LONG
)
COMMIT = histogram(
    "tfsup_agent_commit_duration_seconds",
    "Time of each commit of a checkpoint, from its first try to its record.",
    buckets=LONG,
)
MODELS = counter("tfsup_agent_models_published_total", "Versions of models that this node has published.")
SAVERS = gauge("tfsup_agent_savers", "Jobs of which this node commits the saves.")
SAVE_WAITING = gauge(
    "tfsup_agent_save_waiting_seconds",
    "Time for which the oldest finished save of this node has waited for its commit; 0 while none waits.",
)
COMMIT_TROUBLE = gauge(
    "tfsup_agent_commit_trouble_seconds",
    "Time for which saves of this node have not become commits because of an error; 0 without one.",
)
KILL = gauge("tfsup_agent_kill_duration_seconds", "The longest kill that was rehearsed here.")
MEMORY_FREE = gauge("tfsup_agent_memory_free_bytes", "Memory that is free on this machine.")
DISK_FREE = gauge(
    "tfsup_agent_disk_free_bytes",
    "Free room on the disks of the `checkpoints` of tasks and of the agent's `state`.",
    "directory",
)
DISK_SIZE = gauge("tfsup_agent_disk_size_bytes", "The sizes of these disks.", "directory")

GPU = gauge("tfsup_gpu_info", "1 for each GPU of this node, with its model.", "gpu", "model")
GPU_HEALTH = gauge("tfsup_gpu_health", "1 for the health of a GPU.", "gpu", "health")
GPU_FAULTS = counter("tfsup_gpu_faults_total", "Faults of a GPU that asked for an action.", "gpu")
GPU_XIDS = counter("tfsup_gpu_xids_total", "XIDs that the driver has reported of this node's GPUs.", "xid")
GPU_ECC = counter(
    "tfsup_gpu_ecc_errors_total",
    "ECC errors that could not be corrected, since the driver was loaded or the GPU was reset.",
    "gpu",
)
GPU_TEMPERATURE = gauge("tfsup_gpu_temperature_celsius", "The temperature of a GPU.", "gpu")
GPU_POWER = gauge("tfsup_gpu_power_watts", "The power that a GPU draws.", "gpu")
GPU_LOAD = gauge("tfsup_gpu_utilization_ratio", "The part of the time in which a GPU works.", "gpu")
GPU_USED = gauge("tfsup_gpu_memory_used_bytes", "Memory of a GPU that is in use.", "gpu")
GPU_MEMORY = gauge("tfsup_gpu_memory_size_bytes", "Memory of a GPU.", "gpu")
NVML_UP = gauge("tfsup_gpu_nvml_up", "1 while NVML tells of this node's GPUs; absent without a driver.")


class CountedGpus(Gpus):
    """Another watch over the GPUs, whose XIDs are counted."""

    def __init__(self, gpus: Gpus, metrics: Metrics) -> None:
        self._gpus = gpus
        self._kept = metrics.kept

    async def run(self, post: Post) -> None:
        """See `Gpus`."""

        def counted(event: Event) -> None:
            if isinstance(event, GpusSeen):
                for each in event.sight.xids:
                    self._kept.add(GPU_XIDS, 1, str(each.code) if each.code in XIDS else OTHER_XID)
            post(event)

        await self._gpus.run(counted)

    def look(self) -> None:
        """See `Gpus`."""
        self._gpus.look()


def measure(metrics: Metrics, checkpoints: NodeCheckpoints, outputs: NodeOutputs) -> None:
    """Time a node's commits and stagings, and count its models."""
    for metric in (STAGE, COMMIT):
        metrics.kept.spread(metric)
    checkpoints.staged = lambda ms: metrics.kept.observe(STAGE, ms / 1000)
    outputs.published = lambda: metrics.kept.add(MODELS, 1)
    checkpoints.committed = lambda ms: metrics.kept.observe(COMMIT, ms / 1000)


def add_node(
    metrics: Metrics,
    daemon: AgentDaemon,
    outside: Outside,
    watch: CertificateWatch,
    directories: Mapping[str, Path],
) -> None:
    """Have an agent's metrics answered. `directories`: a word -> a directory of which the disk is told."""

    def node() -> Fill:
        # An agent's state is small, and its containers may change with the next event.
        rows = Rows()
        if daemon.started.is_set():
            fill(daemon.state, outside.clock.now_ms(), rows)
            savers(outside.checkpoints.beats(lambda _job, _error: None), rows)
        return lambda answer: answer.take(rows)

    metrics.add(node)
    metrics.add_certificates(watch.ends)
    disks = Disks(directories)
    metrics.add(lambda: disks.fill)


def fill(state: AgentState, now_ms: int, rows: Rows) -> None:
    """The samples of an agent's state."""
    rows.put(REGISTERED, state.me is not None)
    if state.read_ms >= 0:
        rows.put(READ_AGE, (now_ms - state.read_ms) / 1000)
    if state.runs_until_ms is not None:
        rows.put(TIME_LEFT, (state.runs_until_ms - state.reserve_ms - now_ms) / 1000)
    rows.put(BLOCKED, bool(state.blocked(now_ms)))
    for each in ATTEMPT_STATES:
        rows.put(TASKS, 0, each)
    for attempt in state.attempts.values():
        rows.add(TASKS, 1, _attempt(attempt))
    for each in LAUNCHER_STATES:
        rows.put(LAUNCHERS, 0, each)
    for launcher in state.launchers.values():
        rows.add(LAUNCHERS, 1, _launcher(launcher))
    rows.put(SPARES, len(ready_spares(state)))
    rows.put(PREPARING, len(state.holds))
    rows.put(STAGING, sum(not each.done for each in state.staging.values()))
    if state.kill_ms:
        rows.put(KILL, state.kill_ms / 1000)
    if state.free_bytes >= 0:
        rows.put(MEMORY_FREE, state.free_bytes)
    if state.gpus.looked and (state.gpus.known or not state.gpus.problem):
        rows.put(NVML_UP, not state.gpus.problem)
    for known in state.gpus.known.values():
        _gpu(known, rows)


def _attempt(attempt: Attempt) -> str:
    if attempt.end is not None:
        return "ended"
    if attempt.kills or attempt.ending_ms >= 0:
        return "ending"
    return "running" if attempt.pid else "starting"


def _launcher(launcher: Launcher) -> str:
    if not launcher.usable:
        return "ending"
    if not launcher.welcomed or not launcher.settled:
        return "starting"
    return "ready" if launcher.connected else "away"


def _gpu(known: KnownGpu, rows: Rows) -> None:
    told, sight = known.told(), known.sight
    gpu = str(told.index)
    rows.put(GPU, 1, gpu, told.name)
    for health in GpuHealth:
        rows.put(GPU_HEALTH, told.health is health, gpu, health.value)
    rows.put(GPU_FAULTS, told.fault, gpu)
    rows.put(GPU_MEMORY, told.memory_bytes, gpu)
    if known.unknown:
        return
    for metric, value, scale in (
        (GPU_ECC, sight.ecc_volatile, 1),
        (GPU_TEMPERATURE, sight.temperature, 1),
        (GPU_POWER, sight.power_mw, 1000),
        (GPU_LOAD, sight.utilisation, 100),
        (GPU_USED, sight.memory_used, 1),
    ):
        if value >= 0:
            rows.put(metric, value / scale, gpu)


def savers(beats: tuple[SaverBeat, ...], rows: Rows) -> None:
    """The samples of the saves that this node commits."""
    rows.put(SAVERS, len(beats))
    rows.put(SAVE_WAITING, max((0, *(each.waiting_ms for each in beats))) / 1000)
    rows.put(COMMIT_TROUBLE, max((0, *(each.trouble_ms for each in beats))) / 1000)


class Disks:
    """The room on disks. One that does not answer in time is left out, and asked no second time meanwhile."""

    def __init__(self, directories: Mapping[str, Path]) -> None:
        self._directories = directories
        self._threads = DaemonThreads(len(directories), "disks")
        self._asked: dict[str, Future[os.statvfs_result]] = {}

    def fill(self, rows: Rows) -> None:
        """The samples, as far as they come in time."""
        for name, directory in self._directories.items():
            before = self._asked.get(name)
            if before is None or before.done():
                self._asked[name] = self._threads.submit(os.statvfs, directory)
        wait(self._asked.values(), DISK_S)
        for name, asked in self._asked.items():
            if asked.done() and asked.exception() is None:
                found = asked.result()
                rows.put(DISK_FREE, found.f_bavail * found.f_frsize, name)
                rows.put(DISK_SIZE, found.f_blocks * found.f_frsize, name)
