"""Everything that is recorded of a run, by sources that do not depend on the product."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Self

from chaos.cluster import Cluster
from chaos.cluster.cluster import PREFIX
from chaos.cluster.programs import CLUSTER
from chaos.cluster.shape import OPERATOR
from chaos.history import survey
from chaos.history.etcd_client import Certificates, EtcdAccess, NoAnswer, ask
from chaos.history.etcd_recorder import EtcdRecorder
from chaos.history.formats import (
    BASE,
    DELETE,
    ETCD,
    LEAKS,
    LEFT,
    PUT,
    SECRETS,
    STEPS,
    TRANSACTIONS,
    EtcdLine,
    Left,
    StepLine,
)
from chaos.history.lines import append, parse, read
from chaos.history.processes import ProcessRecorder
from chaos.history.store_recorder import StoreRecorder
from chaos.history.survey import Site
from chaos.history.wal import LogCut, transactions
from chaos.history.watcher import Watcher

LEFT_WITHIN_S = 15.0
"""The longest time from a job's end until its last launchers are gone: a spare learns of it from etcd."""

CATCH_UP_S = 20.0
EVENTS = "events/"
_LOOK_S = 0.25


@dataclass(frozen=True, slots=True)
class Sources:
    """The sources of recordings.

    Attributes:
        roots: the first process of each node that is up, and the node's name.
        sites: what a survey looks at, made anew for each.
        store: the job's directory in a store of files; None: elsewhere.
        fetch: copies that directory from elsewhere into a new one, by a client that is not the product's.
        watch: the command that follows the product's events; empty: none.
        logs: directories in which daemons leave what they say.
    """

    etcd: EtcdAccess
    roots: Callable[[], dict[int, str]]
    sites: Callable[[], list[Site]]
    job: str
    step_log: Path
    store: Path | None = None
    fetch: Callable[[Path], object] | None = None
    watch: tuple[str, ...] = ()
    logs: tuple[Path, ...] = ()
    keys: dict[str, str] = field(default_factory=dict)


def of_cluster(cluster: Cluster, step_log: Path, job: str) -> Sources:
    """The sources of a chaos cluster."""
    tls = cluster.programs.tls(OPERATOR)
    nodes = cluster.nodes.values()
    etcd = [node for node in nodes if node.kind == "etcd"]
    access = EtcdAccess(
        endpoints=tuple(cluster.programs.endpoints()),
        cluster=CLUSTER,
        data=tuple(node.root / "state" for node in etcd),
        certificates=Certificates(Path(tls["ca"]), Path(tls["cert"]), Path(tls["key"])),
        network=cluster.entered,
    )
    assert access.prefix == PREFIX
    hadoop, base = cluster.hadoop, cluster.programs.checkpoint_base
    return Sources(
        etcd=access,
        roots=lambda: {node.pid: node.name for node in nodes if node.on},
        sites=lambda: [Site(node.name, node.pid, node.pids, node.root) for node in nodes if node.on],
        job=job,
        step_log=step_log,
        store=None if hadoop is not None else cluster.store / job,
        fetch=(lambda into: hadoop.tool("dfs", "-get", f"{base}/{job}", str(into))) if hadoop else None,
        watch=tuple(cluster.supervisorctl("events", "--follow", "--output", "json")),
        logs=(cluster.root,),
        keys=_private_keys(cluster.root / "tls"),
    )


def _private_keys(directory: Path) -> dict[str, str]:
    """A line from the middle of each private key: enough to know it by."""
    found = {}
    for path in sorted(directory.glob("*.key")):
        lines = path.read_text().splitlines()
        found[f"the private key {path.name}"] = lines[len(lines) // 2]
    return found


def record(cluster: Cluster, directory: Path, step_log: Path, job: str) -> Recorder:
    """A recorder of one job on a chaos cluster; enter it before the job is submitted."""
    return Recorder(of_cluster(cluster, step_log, job), directory)


class Recorder:
    """Records while its `with` block lasts, into `directory`.

    Attributes:
        whole: whether etcd let us in at the end, and had kept everything, and no recorder had ended before,
            so that nothing is missing.
    """

    def __init__(self, sources: Sources, directory: Path) -> None:
        self._sources, self._directory = sources, directory
        self._etcd = EtcdRecorder(sources.etcd, directory)
        self._processes = ProcessRecorder(sources.roots, directory)
        self._store = StoreRecorder(sources.store, directory) if sources.store is not None else None
        self._watcher = Watcher(list(sources.watch), directory) if sources.watch else None
        self.whole = True

    def __enter__(self) -> Self:
        self._etcd.start()
        self._processes.start()
        if self._store is not None:
            self._store.start()
        if self._watcher is not None:
            self._watcher.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        wholes = [self._etcd.stop(CATCH_UP_S) and not self._etcd.cut, self._processes.stop()]
        if self._watcher is not None:
            self._let_watcher_catch_up(self._watcher)
            self._watcher.stop()
        if self._store is not None:
            wholes.append(self._store.stop())
        self._fetch_store()
        self._merge_steps()
        wholes.append(self._take_log())
        self._look_for_secrets()
        self.whole = all(wholes)

    def survey(self, within_s: float = LEFT_WITHIN_S) -> list[Left]:
        """The leftovers of a job that has ended; a leftover that goes within `within_s` does not count."""
        deadline = time.monotonic() + within_s
        known = {line.key: line.value for line in read(EtcdLine, self._directory / ETCD) if line.value}
        record: dict[str, str] = json.loads(known.get(f"jobs/{self._sources.job}", "{}"))
        while True:
            sites = [_with_ports(site, known.get(f"nodes/{site.name}")) for site in self._sources.sites()]
            found = [
                *survey.leftovers(sites, self._sources.store, record.get("uuid", "")),
                *survey.first_answer(self._sources.etcd, survey.idle_leases),
            ]
            # The checkers look at records; what is left of them is recorded until it has had its time.
            settled = not found and not self._reported()
            if settled or time.monotonic() > deadline:
                append(self._directory / LEFT, found)
                return found
            time.sleep(_LOOK_S)

    def _reported(self) -> bool:
        """Whether an attempt of the job is still reported as running."""
        prefix = f"attempts/{self._sources.job}/"
        lines = read(EtcdLine, self._directory / ETCD)
        last = {line.key: line.value for line in lines if line.key.startswith(prefix)}
        return any(value and json.loads(value)["state"] == "running" for value in last.values())

    def _let_watcher_catch_up(self, watcher: Watcher) -> None:
        """Wait at most CATCH_UP_S until the watcher has the last event; the checker reports missing ones."""
        changes = read(EtcdLine, self._directory / ETCD)
        told = [line for line in changes if line.kind == PUT and line.key.startswith(EVENTS)]
        if told:
            watcher.wait_for(int(told[-1].key.removeprefix(EVENTS)), CATCH_UP_S)

    def _fetch_store(self) -> None:
        """One look at all of it: what is elsewhere is looked at once, as that takes a while."""
        if self._sources.fetch is None:
            return
        with tempfile.TemporaryDirectory(prefix="chaos-store-") as scratch:
            into = Path(scratch, "job")
            self._sources.fetch(into)
            fetched = StoreRecorder(into, self._directory)
            fetched.start()
            fetched.stop()

    def _merge_steps(self) -> None:
        log = self._sources.step_log
        found = [each for path in sorted(log.glob("*")) if path.is_file() for each in _steps_in(path)]
        append(self._directory / STEPS, found)

    def _take_log(self) -> bool:
        """From whichever member has the longest log that reaches back to the beginning.

        False: none does that reaches as far as what was seen.
        """
        for endpoint in self._sources.etcd.endpoints:
            with suppress(NoAnswer):
                # Two entries more, so that those before them are known to be agreed on.
                for _ in range(2):
                    ask(self._sources.etcd, endpoint, "lease/grant", {"TTL": "1"}, 2.0)
                break
        logs = []
        for member in self._sources.etcd.data:
            with suppress(LogCut, OSError):
                logs.append(transactions(member, self._sources.etcd.prefix))
        longest = max(logs, key=lambda log: log[-1].revision if log else 0, default=[])
        known = read(EtcdLine, self._directory / ETCD)
        first = max((line.revision for line in known if line.kind == BASE), default=0)
        append(self._directory / TRANSACTIONS, [each for each in longest if each.revision > first])
        last = max((line.revision for line in known if line.kind in (PUT, DELETE)), default=0)
        return last <= (longest[-1].revision if longest else 0)

    def _look_for_secrets(self) -> None:
        secrets = dict(self._sources.keys)
        with suppress(FileNotFoundError):
            secrets |= json.loads((self._directory / SECRETS).read_text())
        pids = [pid for site in self._sources.sites() for pid in site.pids()]
        changes = read(EtcdLine, self._directory / ETCD)
        files = [*self._sources.logs, *(site.files for site in self._sources.sites())]
        found = [
            *survey.leaks_in_commands(secrets, pids),
            *survey.leaks_in_logs(secrets, files),
            *survey.leaks_in_etcd(secrets, ((line.key, line.value) for line in changes)),
        ]
        append(self._directory / LEAKS, found)


def _with_ports(site: Site, registered: str | None) -> Site:
    """The range of ports is what the node's agent has registered."""
    if registered is None:
        return site
    body = json.loads(registered)
    return replace(site, ports=(body["port_low"], body["port_high"]))


def _steps_in(path: Path) -> list[StepLine]:
    """A process that was killed may leave half a line."""
    raw = path.read_bytes()
    return [parse(StepLine, line) for line in raw[: raw.rfind(b"\n") + 1].splitlines()]
