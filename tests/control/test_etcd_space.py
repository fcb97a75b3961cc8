"""The care for etcd, decided: what is compacted, what is defragmented and when, and what is told."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest

from supervisor.contract.etcd_member import EtcdMember
from supervisor.control.decide import etcd_space
from supervisor.control.decide.etcd_space import (
    HURRIED_HISTORY_MS,
    LOOK_MS,
    MIB,
    REST_MS,
    UNCOMPACTED_MS,
    WELL_MS,
    Care,
    SpaceSettings,
)

HISTORY_MS = 600_000
QUOTA = 2048 * MIB
COMMON = SpaceSettings(QUOTA, HISTORY_MS)


def member(name: str, *, leads: bool = False, file: int = 100, used: int = 50) -> EtcdMember:
    """A member with so many MiB."""
    number = int(name[1:])
    return EtcdMember(
        endpoint=name, member_id=number, leads=leads, file_bytes=file * MIB, used_bytes=used * MIB
    )


@dataclass
class Looks:
    """Looks in a row, of an etcd that gets a revision with each."""

    settings: SpaceSettings = COMMON
    acts: bool = True
    now_ms: int = 0
    past: etcd_space.Past = field(default_factory=lambda: etcd_space.begin(0))

    def look(self, *members: EtcdMember, ms: int = LOOK_MS) -> Care:
        self.now_ms += ms
        shown = [each if each.problem else replace(each, revision=self.now_ms) for each in members]
        self.past, care = etcd_space.look(self.past, shown, self.settings, self.now_ms, acts=self.acts)
        return care

    def looks(self, *members: EtcdMember, ms: int) -> list[Care]:
        return [self.look(*members) for _ in range(ms // LOOK_MS)]


def test_history_of_some_minutes_stays() -> None:
    looks = Looks()
    ages = []
    for _ in range(400):
        care = looks.look(member("m1"))
        if care.compact:
            ages.append(looks.now_ms - care.compact)
    assert len(ages) >= 15
    assert min(ages) >= HISTORY_MS
    assert max(ages) < HISTORY_MS + LOOK_MS


@pytest.mark.parametrize("used", [65, 1300])
def test_history_goes_early_where_the_database_grows_fast(used: int) -> None:
    looks = Looks()
    looks.looks(member("m1", used=0), ms=120_000)
    ages = [
        looks.now_ms - care.compact
        for care in (looks.look(member("m1", used=used)) for _ in range(5))
        if care.compact
    ]
    assert ages
    assert all(HURRIED_HISTORY_MS <= age < HURRIED_HISTORY_MS + LOOK_MS for age in ages)


def test_data_that_stay_hurry_no_compaction_for_good() -> None:
    looks = Looks()
    looks.looks(member("m1", used=0), ms=120_000)
    early = [care.compact for care in looks.looks(member("m1", used=200), ms=HISTORY_MS) if care.compact]
    assert 1 <= len(early) <= 3


def test_levels_are_told_once_and_lines_stay() -> None:
    looks = Looks()
    assert looks.look(member("m1", file=1000)).lines == ()
    told = [looks.look(member("m1", file=each, used=1000)) for each in (1300, 1310, 1700, 1640, 1700, 1300)]
    assert [len(care.events) for care in told] == [1, 0, 1, 0, 0, 0]
    assert all(len(care.lines) == 1 for care in told)
    assert "1300 MiB of its quota of 2048 MiB (63 %)" in told[0].lines[0]
    assert "delete jobs" in told[0].lines[0]
    assert "supervisorctl etcd defrag" in looks.look(member("m1", file=1300, used=100)).lines[0]
    assert looks.look(member("m1", file=500)).lines == ()
    assert len(looks.look(member("m1", file=1300)).events) == 1


def test_members_are_defragmented_one_at_a_time_and_their_leader_last() -> None:
    looks = Looks()
    three = (member("m1", leads=True, file=1500), member("m2", file=1500), member("m3", file=1400))
    early = [care.defragment for care in looks.looks(*three, ms=WELL_MS - LOOK_MS)]
    assert not any(early), "not before all have been well for a while"
    later = looks.looks(*three, ms=WELL_MS)
    assert [each.defragment.endpoint for each in later if each.defragment] == ["m2", "m3", "m1"]
    assert not any(each.defragment and each.compact for each in later)
    assert not any(care.defragment for care in looks.looks(*three, ms=REST_MS // 2))


def test_none_is_defragmented_while_one_is_away_or_was_just_now() -> None:
    looks = Looks()
    two = (member("m1", file=1500), member("m2", file=1500))
    away = EtcdMember(endpoint="m3", problem="no answer")
    assert "m3" not in " ".join(looks.look(*two, away).lines), "one answer may be late"
    cares = looks.looks(*two, away, ms=2 * WELL_MS)
    assert not any(care.defragment for care in cares)
    assert "m3 does not answer" in cares[-1].lines[0]
    assert not any(care.defragment for care in looks.looks(*two, ms=WELL_MS - LOOK_MS))
    assert any(care.defragment for care in looks.looks(*two, ms=WELL_MS))


@pytest.mark.parametrize(("file", "used"), [(1500, 400), (1500, 1000), (1000, 10)])
def test_a_member_is_left_alone_where_that_takes_long_or_brings_little(file: int, used: int) -> None:
    looks = Looks()
    assert not any(
        care.defragment for care in looks.looks(member("m1", file=file, used=used), ms=2 * WELL_MS)
    )


@pytest.mark.parametrize("looks", [Looks(acts=False), Looks(SpaceSettings(QUOTA, 0))])
def test_a_follower_and_one_that_is_to_leave_etcd_alone_only_tell(looks: Looks) -> None:
    full = replace(member("m1", file=2048, used=10), full=True)
    cares = looks.looks(full, ms=2 * WELL_MS)
    assert "etcd is full" in cares[-1].lines[0]
    assert not any(care.compact or care.check or care.defragment or care.disarm for care in cares)


def test_a_quota_that_a_member_tells_counts() -> None:
    told = replace(member("m1", file=1500), quota_bytes=8 * QUOTA)
    assert Looks().look(told).lines == ()


def test_a_quota_that_is_configured_too_low_is_told() -> None:
    assert "`etcd_quota`" in Looks().look(member("m1", file=3000, used=100)).lines[0]


def test_an_etcd_that_stays_full_is_tried_now_and_then() -> None:
    looks = Looks()
    full = replace(member("m1", file=2048, used=2000), full=True)
    cares = looks.looks(full, ms=3_600_000)
    assert 5 <= sum(care.disarm for care in cares) <= 7
    assert sum(len(care.events) for care in cares) == 2, "that it is full, and the level"


def test_the_alarm_is_ended_while_a_member_is_away() -> None:
    looks = Looks()
    away = EtcdMember(endpoint="m2", problem="no answer")
    cares = looks.looks(replace(member("m1", file=500), full=True), away, ms=120_000)
    assert any(care.disarm for care in cares)
    assert not any(care.defragment for care in cares)
    assert "within two minutes, or by `etcdctl alarm disarm`" in cares[-1].lines[1]


@pytest.mark.parametrize(
    ("settings", "past"),
    [
        (COMMON, replace(etcd_space.begin(0), may_disarm=False)),
        (COMMON, replace(etcd_space.begin(0), may_compact=False)),
        (SpaceSettings(QUOTA, 0), etcd_space.begin(0)),
    ],
)
def test_no_line_promises_to_end_an_alarm_that_this_supervisor_leaves(
    settings: SpaceSettings, past: etcd_space.Past
) -> None:
    (line,) = Looks(settings, past=past).look(replace(member("m1", file=500), full=True)).lines
    assert "end the alarm by `supervisorctl etcd defrag`" in line


def test_no_line_tells_of_an_alarm_that_is_not_raised() -> None:
    looks = Looks()
    looks.look(member("m1", file=1300))
    (line,) = looks.look(member("m1", file=1180)).lines
    assert "alarm" not in line


def test_where_it_may_not_compact_it_sees_whether_something_else_does() -> None:
    looks = Looks()
    looks.looks(member("m1"), ms=HISTORY_MS)
    looks.past = replace(looks.past, may_compact=False)
    cares = looks.looks(member("m1"), ms=UNCOMPACTED_MS - HISTORY_MS)
    assert not any(care.check for care in cares), "etcd itself may be told to keep an hour"
    cares = looks.looks(member("m1"), ms=HISTORY_MS + LOOK_MS)
    assert cares[-1].check == looks.now_ms - UNCOMPACTED_MS - 1
    looks.past = replace(looks.past, endless=True)
    (line,) = looks.look(member("m1")).lines
    assert "for more than 4 hours" in line
    assert "--auto-compaction-retention" in line


def test_a_member_that_was_slow_once_is_left_to_operators() -> None:
    looks = Looks()
    two = (member("m1", file=1500), member("m2", file=1500))
    looks.past = replace(looks.past, slow=frozenset({1}))
    done = [each.defragment.endpoint for each in looks.looks(*two, ms=2 * WELL_MS) if each.defragment]
    assert done == ["m2"]
    assert "supervisorctl etcd defrag" in looks.look(*two).lines[0]


def test_time_in_which_nobody_looked_proves_no_member_well() -> None:
    looks = Looks()
    looks.look(member("m1", file=1500))
    assert looks.look(member("m1", file=1500), ms=2 * WELL_MS).defragment is None
    assert not any(care.defragment for care in looks.looks(member("m1", file=1500), ms=WELL_MS - LOOK_MS))
    assert any(care.defragment for care in looks.looks(member("m1", file=1500), ms=WELL_MS))
