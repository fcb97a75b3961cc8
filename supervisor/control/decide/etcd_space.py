"""The room in etcd: when its history goes, when a member is defragmented, and what operators are told.

Etcd keeps every value that a key ever had until a compaction. That frees room inside a member's database
file. The file counts for the quota, and only a defragmentation makes it smaller. A member that defragments
answers nothing for that time, which grows with the data that it holds. So the leader defragments only what
is quickly done, one member at a time, and leaves the rest to operators.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from supervisor.contract.etcd_member import QUICK_BYTES, EtcdMember
from supervisor.control.decide.plan import Action

MIB = 1 << 20
LOOK_MS = 15_000
"""The interval of the looks."""
HURRIED_HISTORY_MS = 30_000
"""How much history stays where the database grows fast. A watch that is so far behind lists again."""
MOST_GROWN = 64 * MIB
"""History goes early once the data and their history have grown by so much, or by a tenth of the quota."""
UNCOMPACTED, UNCOMPACTED_MS = 3, 4 * 3_600_000
"""History of so many times its length is told, but none that is shorter than that: operators may let etcd
itself keep an hour, and it may compact an hour late."""
LEVELS = (80, 60)
"""Percentages of the quota of which an event tells; a level ends CALMER points below."""
CALMER = 5
WRONG_QUOTA = 110
"""An etcd with a larger percentage of its quota that is not full has another quota than is configured."""
ROOM = 90
"""The alarm NOSPACE is ended once every member has less than this percentage of its quota. It is ended now
and then even if that is not so: etcd counts what a compaction has freed only after some more writes, and an
etcd without room raises the alarm again at the next one."""
WELL_MS, WELL_WHEN_FULL_MS = 600_000, 60_000
"""For so long all members have answered, at every look, before one is defragmented."""
REST_MS, REST_WHEN_FULL_MS = 6 * 3_600_000, 600_000
"""A member is not defragmented again before, and the alarm not ended again."""
SLOW_MS = 500
"""A member whose defragmentation took longer is left to operators: no lease is renewed while etcd's leader
rewrites its file, and the shortest one is 1 s."""
LONG_AGO = -(10**15)


@dataclass(frozen=True, slots=True)
class SpaceSettings:
    """`quota_bytes`: of a member that does not tell it. `history_ms`: 0 leaves etcd alone."""

    quota_bytes: int
    history_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Past:
    """The memory from one look to the next.

    Attributes:
        marks: times, and the newest revision at each.
        compacted, compacted_ms: the newest revision that this supervisor has compacted, and when.
        least_bytes: the least that was in use since the history was last caught up with; -1: none known.
        grown_ms: since when that has grown by too much; None if it has not.
        missed_ms: when a member last did not answer, or nobody looked.
        silent: the addresses of those that did not answer at the look before.
        defragmented: when each member was.
        slow: the members for which that took too long.
        disarmed_ms: when the alarm was last ended.
        level: the level that was told.
        full_ms: since when etcd is full; None if it is not.
        may_compact: etcd has not refused this supervisor the last compaction.
        may_disarm: nor the last end of the alarm.
        endless: history of UNCOMPACTED times its length, and of UNCOMPACTED_MS, is still there.
    """

    marks: tuple[tuple[int, int], ...] = ()
    compacted: int = 0
    compacted_ms: int = LONG_AGO
    least_bytes: int = -1
    grown_ms: int | None = None
    missed_ms: int
    silent: frozenset[str] = frozenset()
    defragmented: Mapping[int, int] = field(default_factory=dict)
    slow: frozenset[int] = frozenset()
    disarmed_ms: int = LONG_AGO
    level: int = 0
    full_ms: int | None = None
    may_compact: bool = True
    may_disarm: bool = True
    endless: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Care:
    """The decision of one look.

    Attributes:
        compact: forget what was replaced before this revision; 0: nothing.
        check: see whether something else compacts: whether this revision is still there; 0: no need.
        defragment: the member to defragment.
        disarm: end the alarm NOSPACE.
        events: of changes since the look before.
        lines: what operators must know now, each with what to do.
    """

    compact: int = 0
    check: int = 0
    defragment: EtcdMember | None = None
    disarm: bool = False
    events: tuple[Action, ...] = ()
    lines: tuple[str, ...] = ()


def begin(now_ms: int) -> Past:
    """The memory before the first look."""
    return Past(missed_ms=now_ms)


def look(
    past: Past, found: Sequence[EtcdMember], settings: SpaceSettings, now_ms: int, *, acts: bool
) -> tuple[Past, Care]:
    """Decide. Without `acts` (another supervisor leads) only what is seen is remembered and told."""
    members = [each for each in found if not each.problem]
    silent = [each for each in found if each.problem and not each.refused]
    if silent or (past.marks and now_ms - past.marks[-1][0] > 2 * LOOK_MS):
        past = replace(past, missed_ms=now_ms)
    # On a busy machine one answer may be late.
    told = [each for each in silent if each.endpoint in past.silent]
    past = replace(past, silent=frozenset(each.endpoint for each in silent))
    if not members:
        return past, Care()
    space = Space(members, settings)
    past = _seen(past, space, now_ms)
    past, events = _changes(past, space, now_ms)
    care = Care(events=events, lines=_lines(past, space, told))
    if not acts or settings.history_ms == 0:
        return past, care
    past, care = _compact(past, care, space, now_ms)
    if care.compact and not space.full:
        return past, care
    past, care = _defragment(past, care, space, now_ms)
    if care.defragment is None and past.full_ms is not None:
        rest_ms = WELL_WHEN_FULL_MS if space.percent < ROOM else REST_WHEN_FULL_MS
        if now_ms - past.full_ms >= WELL_WHEN_FULL_MS and now_ms - past.disarmed_ms >= rest_ms:
            past, care = replace(past, disarmed_ms=now_ms), replace(care, disarm=True)
    return past, care


class Space:
    """The sizes of the members that answered."""

    def __init__(self, members: Sequence[EtcdMember], settings: SpaceSettings) -> None:
        self.settings = settings
        self.members = members
        self.revision = max(each.revision for each in members)
        self.used_bytes = max(each.used_bytes for each in members)
        self.full = any(each.full for each in members)
        self.fullest = max(members, key=self.percent_of)
        self.percent = self.percent_of(self.fullest)
        self.wasteful = [each for each in members if self._wastes(each)]

    def quota_of(self, member: EtcdMember) -> int:
        """The quota of a member."""
        return member.quota_bytes or self.settings.quota_bytes

    def percent_of(self, member: EtcdMember) -> int:
        """The part of its quota that a member's file has."""
        return 100 * member.file_bytes // self.quota_of(member)

    def _wastes(self, member: EtcdMember) -> bool:
        large = self.full or self.percent_of(member) >= LEVELS[-1]
        return large and 2 * member.used_bytes <= member.file_bytes

    @property
    def sizes(self) -> str:
        """The sizes of the fullest member, in words."""
        member = self.fullest
        sizes = f"{_mib(member.file_bytes)} of its quota of {_mib(self.quota_of(member))}"
        return f"etcd's database file on {member.endpoint} has {sizes} ({self.percent} %)"


def _seen(past: Past, space: Space, now_ms: int) -> Past:
    used, keep_ms = space.used_bytes, _uncompacted_ms(space)
    old = sum(at_ms <= now_ms - keep_ms for at_ms, _ in past.marks)
    marks = (*past.marks[max(0, old - 1) :], (now_ms, space.revision))
    least = used if past.least_bytes < 0 else min(past.least_bytes, used)
    most = min(MOST_GROWN, space.settings.quota_bytes // 10, space.quota_of(space.fullest) // 10)
    grown = past.grown_ms if past.grown_ms is not None else now_ms
    return replace(past, marks=marks, least_bytes=least, grown_ms=grown if used - least > most else None)


def _changes(past: Past, space: Space, now_ms: int) -> tuple[Past, tuple[Action, ...]]:
    """The events of levels that were reached, and of an etcd that came to be full or is so no longer."""
    events: list[Action] = []
    if space.full and past.full_ms is None:
        past = replace(past, full_ms=now_ms)
        text = f"etcd is full (alarm NOSPACE) and takes no writes: {space.sizes}"
        events.append(_event("etcd_full", text, space))
    elif past.full_ms is not None and not space.full:
        took_s = (now_ms - past.full_ms) // 1000
        text = f"etcd takes writes again, after {took_s} s in which it was full: {space.sizes}"
        events.append(_event("etcd_has_room", text, space))
        past = replace(past, full_ms=None)
    level = next((each for each in LEVELS if space.percent >= each), 0)
    if level > past.level:
        events.append(_event("etcd_fills", f"{space.sizes}; {_remedy(past, space, away=False)}", space))
    if level > past.level or space.percent < past.level - CALMER:
        past = replace(past, level=level)
    return past, tuple(events)


def _event(kind: str, text: str, space: Space) -> Action:
    member = space.fullest
    sizes = {"file_bytes": member.file_bytes, "used_bytes": member.used_bytes}
    fields = {name: str(value) for name, value in sizes.items()}
    return Action(kind, "", text, (), (), {"percent": str(space.percent), **fields})


def _lines(past: Past, space: Space, silent: Sequence[EtcdMember]) -> tuple[str, ...]:
    away = bool(silent)
    lines = [f"etcd's member {each.endpoint} does not answer: {each.problem}" for each in silent]
    lines += [
        f"etcd's member {each.endpoint} reports corrupt data (alarm CORRUPT): see docs/etcd-care.md"
        for each in space.members
        if each.corrupt
    ]
    if space.full:
        lines.append(
            "etcd is full (alarm NOSPACE) and takes no writes: nothing is restarted or committed. "
            f"{space.sizes}; {_remedy(past, space, away=away)}"
        )
    elif past.level:
        lines.append(f"{space.sizes}; {_remedy(past, space, away=away)}")
    if past.endless:
        hours = _uncompacted_ms(space) / 3_600_000
        lines.append(
            f"etcd keeps replaced values for more than {hours:g} hours, and does not let this supervisor "
            "compact it: start its members with --auto-compaction-retention=10m (docs/etcd-care.md)"
        )
    return tuple(lines)


def _remedy(past: Past, space: Space, *, away: bool) -> str:
    """The remedy for a file that is too large. `away`: a member does not answer, so the command refuses."""
    member = space.fullest
    used = _mib(member.used_bytes)
    if space.full and space.percent < LEVELS[-1]:
        by_hand = "`etcdctl alarm disarm`" if away else "`supervisorctl etcd defrag`"
        if space.settings.history_ms and past.may_compact and past.may_disarm:
            return f"there is room again: the alarm is ended within two minutes, or by {by_hand}"
        return f"there is room again: end the alarm by {by_hand} (docs/etcd-care.md)"
    if space.percent > WRONG_QUOTA and not space.full:
        return (
            "if its quota is larger, write it as `etcd_quota` in the supervisors' files (docs/etcd-care.md)"
        )
    if member in space.wasteful:
        return f"only {used} are in use: run `supervisorctl etcd defrag` (docs/etcd-care.md)"
    return (
        f"{used} are in use, with the history of the last minutes. If that stays, delete jobs that are over, "
        "or raise --quota-backend-bytes of every member (docs/etcd-care.md)"
    )


def _compact(past: Past, care: Care, space: Space, now_ms: int) -> tuple[Past, Care]:
    history_ms = space.settings.history_ms
    much = 100 * space.used_bytes >= LEVELS[-1] * space.quota_of(space.fullest)
    hurried = space.full or much or past.grown_ms is not None
    kept_ms = min(history_ms, HURRIED_HISTORY_MS) if hurried else history_ms
    mark = _mark(past, now_ms - kept_ms)
    if not past.may_compact:
        old = _mark(past, now_ms - _uncompacted_ms(space))
        # A compaction at a revision keeps the values of that revision. Those of the one before go.
        care = replace(care, check=old[1] - 1 if old is not None else 0)
    due = hurried or now_ms - past.compacted_ms >= history_ms // 2
    if mark is None or not due or mark[1] <= past.compacted:
        return past, care
    past = replace(past, compacted=mark[1], compacted_ms=now_ms)
    if past.grown_ms is not None and mark[0] >= past.grown_ms:
        past = replace(past, grown_ms=None, least_bytes=-1)
    return past, replace(care, compact=mark[1])


def _uncompacted_ms(space: Space) -> int:
    return max(UNCOMPACTED * space.settings.history_ms, UNCOMPACTED_MS)


def _mark(past: Past, at_ms: int) -> tuple[int, int] | None:
    """The newest mark of that time or before."""
    return next((each for each in reversed(past.marks) if each[0] <= at_ms), None)


def _defragment(past: Past, care: Care, space: Space, now_ms: int) -> tuple[Past, Care]:
    """The next member to defragment: only while all are well, and the leader of etcd as the last one."""
    well_ms, rest_ms = (WELL_WHEN_FULL_MS, REST_WHEN_FULL_MS) if space.full else (WELL_MS, REST_MS)
    if now_ms - past.missed_ms < well_ms or any(each.used_bytes > QUICK_BYTES for each in space.wasteful):
        return past, care
    quick = [each for each in space.wasteful if each.member_id not in past.slow]
    for member in sorted(quick, key=lambda each: each.leads):
        if now_ms - past.defragmented.get(member.member_id, LONG_AGO) >= rest_ms:
            done = {**past.defragmented, member.member_id: now_ms}
            past = replace(past, defragmented=done, disarmed_ms=LONG_AGO)
            return past, replace(care, defragment=member)
    return past, care


def _mib(count: int) -> str:
    return f"{count / MIB:.0f} MiB"
