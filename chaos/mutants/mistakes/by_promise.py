"""Mistakes with what supervisors promise while etcd is gone: rule 11."""

from __future__ import annotations

from dataclasses import replace

from chaos.mutants.edit import Edit
from chaos.mutants.mutant import Mutant, Simulated
from chaos.sim.trouble.fault import Fault

OUTLIVES = "no task outlives D"
IN_TIME = "what must end by D is killed in time"
DEAD = "a lost node's tasks are dead before the flip"
CALM = "training goes on without etcd"
BOOK = "agent/core/promised.py"
WORD = "supervisor/control/decide/facts/promises.py"
OUTAGE = Simulated(story="outage")

# Etcd goes, promises are given, a node is cut off, and etcd is back while they hold.
BACK = (
    Fault(0.5, "outage_down", 0, 6.0),
    Fault(5.5, "cut_node_off", 0, 30.0),
    Fault(24.0, "etcd_leader", 0, 0.1),
)
"""The last one only keeps all from being healed before."""

ONE_IS_DOWN = (
    Fault(0.3, "sup_down", 0, 14.0),
    Fault(0.5, "outage_down", 0, 12.0),
    Fault(11.0, "etcd_leader", 0, 0.1),
)


def _in_order(*faults: Fault) -> Simulated:
    return Simulated(tuple(sorted(faults, key=lambda fault: fault.at_s)), story="outage")


# When the silence is over that a first start without a file asks for.
LATER_S = 46.0
LATER = (
    *(replace(fault, at_s=fault.at_s + LATER_S) for fault in BACK),
    *(Fault(5.0 + LATER_S, "sup_kill", pick, 0.5) for pick in range(3)),
)

MUTANTS = (
    Mutant(
        "the word of some supervisors is enough",
        11,
        (OUTLIVES, IN_TIME),
        (
            Edit(
                BOOK,
                "all(name in book.given for name in book.supervisors)",
                "any(name in book.given for name in book.supervisors)",
            ),
            Edit(
                BOOK,
                "min(book.given[name] for name in book.supervisors)",
                "max(book.given[name] for name in book.supervisors if name in book.given)",
            ),
        ),
        _in_order(*ONE_IS_DOWN),
    ),
    Mutant(
        "the leader takes tasks away though it has promised",
        11,
        (DEAD,),
        (
            Edit(
                WORD,
                "    return max(0, max(ends_ms) - snap.now_ms) if ends_ms else 0\n",
                "    return max(0, min(ends_ms) - snap.now_ms) if ends_ms and not picture else 0\n",
            ),
        ),
        _in_order(*BACK),
    ),
    Mutant(
        "a restarted supervisor has forgotten its promises",
        11,
        (DEAD,),
        (
            Edit(
                WORD,
                "    if word.boot_id == boot_id:\n        return word\n",
                "    if word.boot_id == boot_id:\n        return replace(word, promises={})\n",
            ),
        ),
        _in_order(*LATER),
    ),
    Mutant(
        "a supervisor whose file is lost declares at once",
        11,
        (DEAD,),
        (
            Edit(
                WORD,
                "        return Word(boot_id, now_ms + silence_ms, blind=True)\n",
                "        return Word(boot_id, now_ms, blind=True)\n",
            ),
        ),
        _in_order(*BACK, *(Fault(5.0, "sup_disk", pick, 0.5) for pick in range(3))),
    ),
    Mutant(
        "a supervisor that has booted declares at once",
        11,
        (DEAD,),
        (
            Edit(
                WORD,
                "    return Word(boot_id, now_ms + silence_ms, word.blind, {}, takings)\n",
                "    return Word(boot_id, now_ms, word.blind, {}, takings)\n",
            ),
        ),
        _in_order(*BACK, *(Fault(5.0, "sup_reboot", pick, 0.5) for pick in range(3))),
    ),
    Mutant(
        "a promise that is made again is not on disk",
        11,
        (DEAD,),
        (
            Edit(
                "supervisor/control/loop/promise_log.py",
                "            await self._save()\n        except Refused as error:\n"
                "            return promises.refusal(",
                "            if promises.life_of(request.node, request.incarnation) not in before.promises:\n"
                "                await self._save()\n        except Refused as error:\n"
                "            return promises.refusal(",
            ),
        ),
        _in_order(
            Fault(0.5 + LATER_S, "outage_down", 0, 20.0),
            Fault(19.8 + LATER_S, "cut_node_off", 0, 60.0),
            *(Fault(20.0 + LATER_S, "sup_kill", pick, 0.5) for pick in range(3)),
            Fault(62.0 + LATER_S, "etcd_leader", 0, 0.1),
        ),
    ),
    Mutant(
        "a promise counted from its answer",
        11,
        (OUTLIVES, IN_TIME),
        (
            Edit(
                BOOK,
                "    until_ms = max(event.sent_ms + event.for_ms,",
                "    until_ms = max(work.now_ms + event.for_ms,",
            ),
        ),
        _in_order(
            Fault(0.4, "sup_late", 0, 70.0),
            Fault(0.5, "outage_down", 0, 65.0),
            Fault(8.0, "cut_node_off", 0, 60.0),
            Fault(58.0, "etcd_leader", 0, 0.1),
        ),
    ),
    Mutant(
        "promises are asked for too late",
        11,
        (CALM,),
        (
            Edit(
                BOOK,
                "    if unread_ms <= timing.beat_ms + timing.rpc_deadline_ms or",
                "    if unread_ms <= state.d_ms - timing.beat_ms or",
            ),
        ),
        OUTAGE,
    ),
)
