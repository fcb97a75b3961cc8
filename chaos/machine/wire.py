"""A long wire between two interfaces: each frame arrives later, in order or, with jitter, not.

    python -S -m chaos.machine.wire INTERFACE INTERFACE DELAY_MS JITTER_MS SEED [ADDRESS...]

Frames from or to one of the addresses are not held up. Standard library alone.
"""

from __future__ import annotations

import errno
import heapq
import random
import select
import socket
import sys
import time

_ETH_P_ALL = 0x0003
_SOL_PACKET, _PACKET_IGNORE_OUTGOING = 263, 23
_MAX_FRAME = 1 << 16
_IPV4 = b"\x08\x00"
_MOST_WAITING = 100_000


def main() -> None:
    """Carry frames until killed."""
    first, second, delay_ms, jitter_ms, seed, *spared = sys.argv[1:]
    ends = [_opened(name) for name in (first, second)]
    exempt = {socket.inet_aton(address) for address in spared}
    chance = random.Random(seed)
    waiting: list[tuple[float, int, int, bytes]] = []
    serial = 0
    poll = select.poll()
    for end in ends:
        poll.register(end, select.POLLIN)
    others = {ends[0].fileno(): 1, ends[1].fileno(): 0}
    while True:
        now = time.monotonic()
        while waiting and waiting[0][0] <= now:
            _, _, target, frame = heapq.heappop(waiting)
            _send(ends[target], frame)
        timeout_ms = (waiting[0][0] - now) * 1000 if waiting else None
        for number, _ in poll.poll(timeout_ms):
            target = others[number]
            try:
                frame = ends[1 - target].recv(_MAX_FRAME)
            except OSError as error:
                if error.errno not in (errno.ENETDOWN, errno.ENXIO):
                    raise
                return  # the node at the end of this wire has lost its power
            if _spared(frame, exempt):
                _send(ends[target], frame)
            elif len(waiting) < _MOST_WAITING:
                serial += 1
                late = float(delay_ms) + chance.random() * float(jitter_ms)
                heapq.heappush(waiting, (time.monotonic() + late / 1000, serial, target, frame))


def _opened(name: str) -> socket.socket:
    end = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ETH_P_ALL))
    end.setsockopt(_SOL_PACKET, _PACKET_IGNORE_OUTGOING, 1)
    end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8 << 20)
    end.bind((name, _ETH_P_ALL))
    return end


def _send(end: socket.socket, frame: bytes) -> None:
    try:
        end.send(frame)
    except OSError as error:
        # A wire loses what it cannot carry.
        print(f"lost a frame of {len(frame)} bytes: {error}", file=sys.stderr, flush=True)


def _spared(frame: bytes, exempt: set[bytes]) -> bool:
    if frame[12:14] != _IPV4:
        return True
    return frame[26:30] in exempt or frame[30:34] in exempt


if __name__ == "__main__":
    main()
