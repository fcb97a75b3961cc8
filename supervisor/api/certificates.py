"""Events about certificates that end soon: the leader's own, and those that agents report in their beats."""

from __future__ import annotations

from collections.abc import Mapping

from supervisor.contract.boundaries import Logger
from supervisor.contract.errors import TfSupervisorError
from supervisor.contract.observed import Beat
from supervisor.control.decide.snapshot import Snapshot
from supervisor.control.services.jobs import JobService

KIND = "certificate"
LONGEST = 200
MOST_NODES = 10_000


class CertificateEvents:
    """Writes one event for each text of each holder, while this supervisor leads."""

    def __init__(self, service: JobService, sink: Logger) -> None:
        self._service = service
        self._sink = sink
        self._nodes: dict[str, str] = {}

    def heard(self, beat: Beat) -> None:
        """Remember the warning of an agent about its own certificate."""
        self._nodes.pop(beat.node, None)
        if beat.certificate and len(self._nodes) < MOST_NODES:
            self._nodes[beat.node] = beat.certificate[:LONGEST]

    async def tell(self, own: Mapping[str, str]) -> None:
        """Write the missing events. Failed writes are tried again at the next check."""
        for holder, text in {**own, **{f"agent:{node}": text for node, text in self._nodes.items()}}.items():
            snap = self._service.snapshot()
            if snap is None or _is_told(snap, holder, text):
                continue
            try:
                await self._service.tell_of_certificate(holder, text)
            except TfSupervisorError as error:
                self._sink.warning(
                    "the event about a certificate cannot be written yet", about=holder, reason=str(error)
                )


def _is_told(snap: Snapshot, holder: str, text: str) -> bool:
    wanted = {"holder": holder, "state": text}
    return any(held.value.kind == KIND and held.value.fields == wanted for held in snap.events)
