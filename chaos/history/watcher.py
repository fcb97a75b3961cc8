"""A client of the product's API that follows its events, as an operator's terminal does."""

from __future__ import annotations

import json
import subprocess
import threading
from pathlib import Path

from chaos.history.etcd_client import now_ms
from chaos.history.formats import Watched
from chaos.history.lines import append
from chaos.processes import DIES_WITH_US

END_S = 5.0


class Watcher:
    """Runs `supervisorctl events --follow` and writes down what comes, and when."""

    def __init__(self, command: list[str], directory: Path, name: str = "events") -> None:
        self._command = command
        self._file = directory / f"watch-{name}.jsonl"
        self._complaints = directory / f"watch-{name}.log"
        self._seen: set[int] = set()
        self._fresh = threading.Condition()
        self._process: subprocess.Popen[str] | None = None
        self._thread = threading.Thread(target=self._read, name="events", daemon=True)

    def start(self) -> None:
        """Begin, from the main thread, with which it ends; it connects in its own time."""
        self._file.touch()
        with self._complaints.open("wb") as complaints:
            # It ends by this alone: without events it writes nothing, and misses no reader.
            self._process = subprocess.Popen(
                [*DIES_WITH_US, *self._command],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=complaints,
                text=True,
            )
        self._thread.start()

    def wait_for(self, serial: int, within_s: float) -> bool:
        """Wait until it was sent this event. False: it was not, within the time."""
        with self._fresh:
            return self._fresh.wait_for(lambda: serial in self._seen, within_s)

    def stop(self) -> None:
        """End."""
        process = self._process
        assert process is not None
        process.kill()
        self._thread.join(END_S)
        process.wait()
        if process.stdout is not None:
            process.stdout.close()

    def _read(self) -> None:
        process = self._process
        assert process is not None
        assert process.stdout is not None
        for line in process.stdout:
            body = json.loads(line)
            serial = int(body["serial"])
            append(self._file, [Watched(now_ms(), serial, str(body["text"]))])
            with self._fresh:
                self._seen.add(serial)
                self._fresh.notify_all()
