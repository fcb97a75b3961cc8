"""The events around a moment of a run: faults, and the product's writes about them in etcd."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from chaos.history.formats import ETCD, PUT, EtcdLine
from chaos.history.lines import read
from chaos.runner.record import RunRecord

AROUND_MS = 15_000.0
MOST = 60


@dataclass(frozen=True, slots=True)
class Entry:
    """One thing; `at_s` counts from the beginning of the run."""

    at_s: float
    kind: str
    text: str


def timeline(record: RunRecord, directory: Path) -> list[Entry]:
    """The entries shortly before and after the first broken promise; all entries if none names a moment."""
    found = sorted([*_faults(record), *_etcd(record, directory)], key=lambda entry: entry.at_s)
    moments = [broken.at_ms for broken in record.violations if broken.at_ms > 0]
    if moments:
        at_s = (min(moments) - record.began_ms) / 1000
        found = [entry for entry in found if abs(entry.at_s - at_s) * 1000 <= AROUND_MS]
    return found[-MOST:]


def _faults(record: RunRecord) -> Iterator[Entry]:
    def entry(at_ms: float, kind: str, text: str) -> Entry:
        return Entry((at_ms - record.began_ms) / 1000, kind, text)

    for fault in record.faults:
        yield entry(fault.begin_ms, "fault", f"{fault.name} of {fault.target} begins")
        if fault.in_force:
            yield entry(fault.in_force_ms, "in force", f"{fault.name}: {fault.evidence}")
        if fault.heal_ms >= 0:
            yield entry(fault.heal_ms, "healed", f"{fault.name} of {fault.target}")
    if record.converged_ms >= 0:
        yield entry(record.converged_ms, "healthy", f"{record.job} is healthy again")
    for broken in record.violations:
        if broken.at_ms > 0:
            yield entry(broken.at_ms, "broken", f"{broken.promise}: {broken.text}")


def _etcd(record: RunRecord, directory: Path) -> Iterator[Entry]:
    seen: dict[str, str] = {}
    for line in read(EtcdLine, directory / ETCD):
        text = _told(line, record.job)
        if line.at_ms < record.began_ms or not text or seen.get(line.key) == text:
            continue
        seen[line.key] = text
        yield Entry((line.at_ms - record.began_ms) / 1000, "etcd", text)


def _told(line: EtcdLine, job: str) -> str:
    """The meaning of a change; empty for a change that is not about this job."""
    family, _, rest = line.key.partition("/")
    body = json.loads(line.value) if line.kind == PUT and line.value.startswith("{") else {}
    if family == "leader":
        return f"{body.get('supervisor')} leads" if body else "nobody leads"
    if family == "cordons" and body.get("in_force") is False:
        return f"{line.key}: lifted"
    if family in ("nodes", "lost", "cordons"):
        return f"{line.key}: {body.get('reason') or 'written' if body else 'removed'}"
    if not rest.startswith(f"{job}/") and rest != job:
        return ""
    if family == "switches" and body:
        closing = ", closing" if body.get("closing") else ""
        return f"generation {body['generation']} is {body['phase']}{closing}"
    if family == "incidents" and body:
        return f"incident {body['id']}: {body['cause']} of {body['task']}, {body['outcome']}"
    if family == "attempts" and body:
        end = body.get("exit") or {}
        how = f": {end.get('reason')}, signal {end.get('signal')}, code {end.get('code')}" if end else ""
        return f"{body['role']}:{body['index']}@{body['generation']}.{body['number']} {body['state']}{how}"
    if family == "commits" and body:
        return f"checkpoint {rest.partition('/')[2]} is {body['state']}"
    return ""
