"""Jobs and nodes of which an action has met an unexpected error: parked, or left alone for a while."""

from __future__ import annotations

from supervisor.contract.boundaries import Logger
from supervisor.contract.containment import told
from supervisor.control.decide import parking
from supervisor.control.decide.set_aside import Left
from supervisor.control.decide.snapshot import Snapshot
from supervisor.control.loop.apply import Applied, Applier

LEFT_MS = 60_000
"""A job or node of which an action meets an error, and that is not parked, is looked at again then."""


class Broken:
    """The broken jobs and nodes that are not parked: until when each is left alone, and why."""

    def __init__(self, sink: Logger) -> None:
        self._sink = sink
        self._left: dict[tuple[str, str], tuple[int, Left]] = {}

    def without(self, picture: Snapshot) -> Snapshot:
        """The snapshot without those that are left alone now."""
        for (job, node), (until_ms, why) in list(self._left.items()):
            subject = picture.jobs.get(job) or picture.nodes.get(node)
            if subject is not None and picture.now_ms < until_ms:
                picture = parking.without(picture, subject, why)
            else:
                del self._left[job, node]
        return picture

    async def park(self, applier: Applier, picture: Snapshot) -> None:
        """Park the only job or node of which an action met an unexpected error; those that are not parked
        are left alone for a while.

        Raises the error of an action that is about no job and no node.
        """
        broken, applier.broken = applier.broken, []
        met: dict[tuple[str, str], parking.Met] = {}
        for action, error in broken:
            job, node = about = action.job, "" if action.job else action.fields.get("node", "")
            text = "an action failed with an unexpected error"
            self._sink.error(text, what=action.kind, job=job, node=node, error=told(error))
            subject = picture.jobs.get(job) or picture.nodes.get(node)
            if subject is not None:
                met.setdefault(about, parking.Met(subject, error))
            elif about == ("", ""):
                raise error
        tried = any(action.kind in (parking.JOB_PARKED, parking.NODE_PARKED) for action, _error in broken)
        for park in [] if tried else parking.park_alone(picture, list(met.values())):
            if await applier.run(park) is not Applied.BROKEN:
                met.clear()
            applier.broken = [each for each in applier.broken if each[0] is not park]
        for about, each in met.items():
            self._left[about] = picture.now_ms + LEFT_MS, parking.why_of(each.error)
            text = "nothing is decided about this job or node for a minute"
            self._sink.error(text, job=about[0], node=about[1])
