"""The record of the cluster: what all its supervisors must agree on, as its first leader has fixed it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from supervisor.contract import keys
from supervisor.contract.boundaries import Absent
from supervisor.contract.desired import ClusterRecord
from supervisor.contract.errors import UserError
from supervisor.control.decide.plan import Action, put, unchanged
from supervisor.control.decide.view import View
from supervisor.control.loop.apply import Applied, Applier


class ClusterTerms:
    """The terms of this supervisor, against those in etcd.

    Args:
        own: as this supervisor is configured, without a UUID.
        known_uuid: the UUID that this supervisor has noted of its cluster; empty without one.
        founded: called where this supervisor is the first leader of all.
    """

    def __init__(
        self,
        own: ClusterRecord,
        view: View,
        known_uuid: Callable[[], str],
        new_id: Callable[[], str],
        founded: Callable[[], None],
    ) -> None:
        self._own = own
        self._view = view
        self._known_uuid = known_uuid
        self._new_id = new_id
        self._founded = founded

    async def fix(self, applier: Applier) -> None:
        """The first leader of a cluster fixes its D, and who promises for how long (rule 11).

        Raises UserError where this supervisor is configured otherwise.
        """
        held = self._view.get(ClusterRecord, keys.CLUSTER)
        if held is not None:
            self._check(held.value)
        uuid = held.value.uuid if held is not None else ""
        own = replace(self._own, uuid=uuid or self._known_uuid() or self._new_id())
        text = f"cluster {own.cluster} runs with D = {own.d_ms} ms (profile {own.profile})"
        if own.promise_ms:
            text += f"; without etcd for up to {own.promise_ms} ms, as {', '.join(own.supervisors)} promise"
        if held is None:
            action = Action("cluster", "", text, (Absent(keys.CLUSTER),), (put(keys.CLUSTER, own),))
            if await applier.run(action) is Applied.DONE:
                self._founded()
        elif not uuid or (own.promise_ms and not held.value.promise_ms):
            # An earlier release's; or from no promises to some: nobody has asked for any yet.
            await applier.run(Action("cluster", "", text, (unchanged(held),), (put(keys.CLUSTER, own),)))

    def _check(self, record: ClusterRecord) -> None:
        own = self._own
        if record.d_ms != own.d_ms:
            raise UserError(
                f"this supervisor is configured with D = {own.d_ms} ms (profile {own.profile}), but the "
                f"cluster runs with {record.d_ms} ms (profile {record.profile}): make them equal"
            )
        if record.promise_ms and (record.promise_ms, record.supervisors) != (own.promise_ms, own.supervisors):
            raise UserError(
                f"this supervisor is configured with promise_for = {own.promise_ms} ms of "
                f"{', '.join(own.supervisors) or 'nobody'}, but the cluster runs with {record.promise_ms} ms "
                f"of {', '.join(record.supervisors)}: make them equal, or see docs/etcd-outage.md"
            )
