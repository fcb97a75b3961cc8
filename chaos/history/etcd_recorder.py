"""Every change of the product's keys, from the first revision on, without a gap, or saying where one is."""

from __future__ import annotations

import base64
import threading
from bisect import bisect_left
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import cycle
from pathlib import Path

from chaos.history.etcd_client import (
    EVERYTHING,
    EtcdAccess,
    NoAnswer,
    Watch,
    ask,
    decoded,
    now_ms,
    number,
    part,
    parts,
)
from chaos.history.formats import BASE, CUT, DELETE, ETCD, PUT, EtcdLine
from chaos.history.lines import append

LOOK_S = 0.2
ANSWER_S = 1.0
LONG_PAST = 300
"""Revisions; a cluster that has had runs before is recorded from how it is now."""

BEHIND_MS = 1000.0
"""A watch that lacks for so long what a read has shown is begun again at another member."""


class EtcdRecorder:
    """Two threads: one follows a watch; the other reads the revision now and then.

    A read that was sent at s and shows revision r proves that all later revisions happened after s. It also
    shows when a watch has fallen silent: a frozen or cut-off member does not end its streams.
    """

    def __init__(self, access: EtcdAccess, directory: Path) -> None:
        self._access = access
        self._file = directory / ETCD
        self._lock = threading.Condition()
        self._done = threading.Event()
        self._watch: Watch | None = None
        self._reads: list[tuple[int, float]] = []
        self._first_read = -1
        self._through = 0
        self._in_hand: set[tuple[int, str]] = set()
        self.cut = False
        self._threads = [
            threading.Thread(target=self._follow, name="etcd watch", daemon=True),
            threading.Thread(target=self._look, name="etcd revision", daemon=True),
        ]

    def start(self) -> None:
        """Begin; what is older than this has no times, and of a long past only what is there now is kept."""
        sent_ms = now_ms()
        self._first_read = self.revision(10 * ANSWER_S)
        self._reads.append((self._first_read, sent_ms))
        if self._first_read > LONG_PAST:
            self._take_base()
        for thread in self._threads:
            thread.start()

    def stop(self, within_s: float) -> bool:
        """Take in all there is by now, and end. False if etcd did not let us, or it had ended before."""
        whole = all(thread.is_alive() for thread in self._threads)
        caught_up = True
        try:
            last = self.revision(within_s)
        except NoAnswer:
            caught_up = False
        else:
            with self._lock:
                caught_up = self._lock.wait_for(lambda: self._through >= last, within_s)
        self._done.set()
        with self._lock:
            watch = self._watch
        if watch is not None:
            watch.close()
        for thread in self._threads:
            thread.join(5 * ANSWER_S)
        return whole and caught_up

    def revision(self, within_s: float) -> int:
        """The newest revision, by a linearizable read at any member. Raises NoAnswer."""
        deadline_ms = now_ms() + within_s * 1000
        for endpoint in cycle(self._access.endpoints):
            try:
                return self._read(endpoint)
            except NoAnswer:
                if now_ms() > deadline_ms:
                    raise
            self._done.wait(0.05)
        raise NoAnswer("no endpoint is known")

    def _read(self, endpoint: str) -> int:
        body = {"key": EVERYTHING, "range_end": EVERYTHING, "count_only": True}
        return number(part(ask(self._access, endpoint, "kv/range", body, ANSWER_S), "header"), "revision")

    # What is known of times.

    def _look(self) -> None:
        behind_since_ms = 0.0
        endpoints = cycle(self._access.endpoints)
        endpoint = next(endpoints)
        while not self._done.wait(LOOK_S):
            sent_ms = now_ms()
            try:
                found = self._read(endpoint)
            except NoAnswer:
                endpoint = next(endpoints)
                continue
            with self._lock:
                if found > self._reads[-1][0]:
                    self._reads.append((found, sent_ms))
                else:
                    self._reads[-1] = (self._reads[-1][0], sent_ms)
                behind, watch = self._through < found, self._watch
            if not behind:
                behind_since_ms = 0.0
            elif not behind_since_ms:
                behind_since_ms = sent_ms
            elif sent_ms - behind_since_ms > BEHIND_MS and watch is not None:
                behind_since_ms = 0.0
                watch.close()

    def _after_ms(self, revision: int) -> float:
        """The time of the newest read that did not show this revision; -1 if there was none."""
        if revision <= self._first_read:
            return -1.0
        at = bisect_left(self._reads, (revision, 0.0))
        return self._reads[at - 1][1]

    # What has changed.

    def _follow(self) -> None:
        for endpoint in cycle(self._access.endpoints):
            if self._done.is_set():
                return
            with suppress(NoAnswer):
                self._follow_at(endpoint)
            self._done.wait(0.05)

    def _follow_at(self, endpoint: str) -> None:
        # The newest revision once more: it may have come in pieces, of which we lack the last.
        watch = Watch(self._access, endpoint, max(1, self._through), ANSWER_S)
        with self._lock:
            self._watch = watch
        try:
            for result in watch.results():
                if self._done.is_set():
                    return
                if result.get("canceled"):
                    self._compacted(endpoint, number(result, "compact_revision"))
                    return
                if not result.get("created"):
                    self._take(list(self._changes(result)), number(part(result, "header"), "revision"))
        finally:
            with self._lock:
                self._watch = None
            watch.close()

    def _changes(self, result: dict[str, object]) -> Iterator[EtcdLine]:
        at_ms = now_ms()
        for event in parts(result, "events"):
            kv = part(event, "kv")
            key, revision = decoded(kv.get("key")), number(kv, "mod_revision")
            kind = DELETE if event.get("type") == "DELETE" else PUT
            yield EtcdLine(
                kind=kind,
                revision=revision,
                key=key,
                value=decoded(kv.get("value")) if kind == PUT and key.startswith(self._access.prefix) else "",
                created=number(kv, "create_revision"),
                version=number(kv, "version"),
                lease=number(kv, "lease"),
                after_ms=self._after_ms(revision),
                at_ms=at_ms,
            )

    def _take(self, changes: list[EtcdLine], shown: int) -> None:
        fresh = []
        with self._lock:
            for change in changes:
                if change.revision < self._through or (change.revision, change.key) in self._in_hand:
                    continue
                if change.revision > self._through:
                    self._in_hand.clear()
                    self._through = change.revision
                self._in_hand.add((change.revision, change.key))
                if change.key.startswith(self._access.prefix):
                    fresh.append(self._own(change))
            if not changes:
                # An answer without events shows how far the member has come, and that nothing is missing.
                self._through = max(self._through, shown)
            append(self._file, fresh)
            self._lock.notify_all()

    def _own(self, change: EtcdLine) -> EtcdLine:
        return replace(change, key=change.key.removeprefix(self._access.prefix))

    def _compacted(self, endpoint: str, revision: int) -> None:
        """Older changes are gone: at the beginning what is there now will do, later it is a gap."""
        self.cut = self.cut or self._through > 0
        append(self._file, [EtcdLine(CUT, revision, at_ms=now_ms())])
        self._take_base_of(endpoint)

    def _take_base(self) -> None:
        for endpoint in self._access.endpoints:
            with suppress(NoAnswer):
                self._take_base_of(endpoint)
                return
        raise NoAnswer("no member answers")

    def _take_base_of(self, endpoint: str) -> None:
        prefix = self._access.prefix.encode()
        body = {
            "key": base64.b64encode(prefix).decode(),
            "range_end": base64.b64encode(prefix[:-1] + bytes([prefix[-1] + 1])).decode(),
        }
        answer = ask(self._access, endpoint, "kv/range", body, 10 * ANSWER_S)
        at_ms, shown = now_ms(), number(part(answer, "header"), "revision")
        found = [
            EtcdLine(
                BASE,
                number(kv, "mod_revision"),
                decoded(kv.get("key")),
                decoded(kv.get("value")),
                number(kv, "create_revision"),
                number(kv, "version"),
                number(kv, "lease"),
                at_ms=at_ms,
            )
            for kv in parts(answer, "kvs")
        ]
        with self._lock:
            append(self._file, [self._own(each) for each in found])
            self._in_hand.clear()
            self._through = shown + 1
            self._lock.notify_all()
