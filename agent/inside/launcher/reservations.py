"""The ports that a launcher holds, by reservation."""

from __future__ import annotations

import os
from typing import Dict, Optional, Tuple, Union

from .. import protocol
from . import ports


class Reservations:
    """Claims by the name that the agent gave each. `own_locks`: the directory of locks of its own network."""

    def __init__(self, own_locks: str) -> None:
        self._own_locks = own_locks
        self._claims: Dict[str, ports.Claim] = {}

    def reserve(self, message: protocol.Reserve) -> Union[protocol.Reserved, protocol.ReserveFailed]:
        """Claim a port, unless it is claimed already; returns the answer to the agent."""
        claim = self._claims.get(message.reservation)
        if claim is None and message.reuse is not None:
            # The port may be ours already, under the name that an earlier generation or agent gave it.
            held = [name for name, each in self._claims.items() if each.port == message.reuse]
            claim = self._claims.pop(held[0]) if held else None
        try:
            if claim is None:
                if not message.lock_dir:
                    os.makedirs(self._own_locks, mode=0o700, exist_ok=True)
                locks = message.lock_dir or self._own_locks
                claim = ports.claim(message.low, message.high, locks, message.avoid, message.reuse)
        except (ports.PortUnavailable, OSError) as error:
            return protocol.ReserveFailed(message.reservation, str(error))
        self.put(message.reservation, claim)
        return protocol.Reserved(message.reservation, claim.port)

    def release(self, reservation: str) -> None:
        """Release a port; not an error if it is not held."""
        claim = self._claims.pop(reservation, None)
        if claim is not None:
            claim.close()

    def held(self) -> Tuple[protocol.HeldPort, ...]:
        """The held ports, for the Hello."""
        return tuple(protocol.HeldPort(name, each.port) for name, each in self._claims.items())

    def put(self, reservation: str, claim: ports.Claim) -> None:
        """Add a port that was claimed before."""
        self._claims[reservation] = claim

    def of(self, reservation: Optional[str]) -> Optional[ports.Claim]:
        """The claim of a reservation; None for a start without a port, or if the claim is lost."""
        return self._claims.get(reservation) if reservation is not None else None
