"""`python -m benchmarks.submitting`: many jobs, each with code of its own; how large does etcd get?

Jobs are submitted on hold to an embedded cluster whose code goes to a store (a directory), or with `--etcd`
to etcd. Each has an archive of `--mib` MiB of noise. JSON on standard output, progress on standard error.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from hashlib import sha256
from pathlib import Path

from benchmarks.support.figures import figures, machine
from supervisor.adapters.files.code_archive import CodeArchive
from supervisor.adapters.files.jobfile import load_job_file
from supervisor.api.client import ControlClient
from supervisor.api.upload import upload_code
from supervisor.cli.local.cluster import LocalCluster
from supervisor.contract.errors import Conflict, TfSupervisorError
from supervisor.contract.job.spec import CodeRef, JobSpec
from supervisor.contract.views.jobs import SubmitMode, SubmitRequest
from tests.support.code_store import give_code_store

STATE = Path("var/bench/submitting")
GOAL_MIB = 300
MIB = 1 << 20
TELL_EVERY = 50
TRIES = 10


@dataclass(slots=True)
class Seen:
    """Times in milliseconds, the largest file of etcd, and how many submits were repeated."""

    upload_ms: list[int] = field(default_factory=list)
    submit_ms: list[int] = field(default_factory=list)
    again_ms: list[int] = field(default_factory=list)
    largest: int = 0
    again: int = 0


def _job(directory: Path) -> JobSpec:
    file = directory / "job.json"
    body = {"name": "job", "strategy": "plain", "command": ["true"], "roles": {"worker": {"count": 1}}}
    file.write_text(json.dumps(body))
    return load_job_file(file, checkpoint_base="file:///unused").spec


def _told(samples: Sequence[int]) -> dict[str, float]:
    found = figures(samples)
    assert found is not None
    return asdict(found)


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000


async def _submit(client: ControlClient, spec: JobSpec, data: bytes, seen: Seen) -> None:
    """Upload and submit. A disk this busy may cost a leader its lease: then it is done again."""
    archive = CodeArchive(CodeRef(sha256(data).hexdigest(), len(data)), data)
    request = SubmitRequest(replace(spec, code=archive.ref), SubmitMode.FRESH, hold=True)
    for left in reversed(range(TRIES)):
        began_ms = _now_ms()
        try:
            await upload_code(client, archive)
            sent_ms = _now_ms()
            # It was taken already, where an answer was lost.
            with suppress(Conflict):
                await client.submit(request)
            done_ms = _now_ms()
            await client.find_code(archive.ref)
        except TfSupervisorError as error:
            if not left:
                raise
            print(f"{spec.name}: {error}", file=sys.stderr)
            seen.again += 1
            continue
        seen.upload_ms.append(sent_ms - began_ms)
        seen.submit_ms.append(done_ms - sent_ms)
        seen.again_ms.append(_now_ms() - done_ms)
        return


async def _run(cluster: LocalCluster, jobs: int, mib: int, seen: Seen) -> None:
    (database,) = cluster.layout.state.glob("etcd/data/member/snap/db")
    base = cluster.layout.checkpoint_base
    spec = _job(cluster.layout.state)
    async with cluster.client(deadline_s=30) as client:
        for number in range(jobs):
            name = f"job-{number}"
            checkpoint = replace(spec.checkpoint, uri=f"{base}/{name}")
            await _submit(
                client, replace(spec, name=name, checkpoint=checkpoint), os.urandom(mib * MIB), seen
            )
            seen.largest = max(seen.largest, database.stat().st_size)
            if (number + 1) % TELL_EVERY == 0:
                print(f"{number + 1} jobs: etcd has {seen.largest / MIB:.1f} MiB", file=sys.stderr)
        assert len((await client.status()).jobs) == jobs


def main(argv: Sequence[str] | None = None) -> int:
    """Run it; the exit code says that everything was taken."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--jobs", type=int, default=1000)
    parser.add_argument("--mib", type=int, default=4)
    parser.add_argument("--etcd", action="store_true", help="without a store; 512 MiB fit")
    parser.add_argument("--store", type=Path, help="the directory; best on another disk than etcd's")
    flags = parser.parse_args(argv)
    shutil.rmtree(STATE, ignore_errors=True)
    store = (flags.store or STATE / "code").resolve()
    seen = Seen()
    with LocalCluster(STATE / "cluster", nodes=1, profile="default") as cluster:
        if not flags.etcd:
            store.mkdir(mode=0o700, parents=True, exist_ok=True)
            give_code_store(cluster, store.as_uri())
        asyncio.run(_run(cluster, flags.jobs, flags.mib, seen))
    files = [path.stat().st_size for path in store.rglob("*") if path.is_file()]
    told = {
        "machine": machine(),
        "carrier": "etcd" if flags.etcd else "store",
        "jobs": flags.jobs,
        "mib_each": flags.mib,
        "etcd_largest_mib": round(seen.largest / MIB, 1),
        "goal_mib": GOAL_MIB,
        "goal_met": seen.largest < GOAL_MIB * MIB,
        "store_mib": round(sum(files) / MIB, 1),
        "store_files": len(files),
        "submitted_again": seen.again,
        "upload_ms": _told(seen.upload_ms),
        "submit_ms": _told(seen.submit_ms),
        "found_again_ms": _told(seen.again_ms),
    }
    print(json.dumps(told, indent=2))
    shutil.rmtree(STATE, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
