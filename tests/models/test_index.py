"""The index of a model: numbers, what is kept, labels, and who may change it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recovery.models import index as models
from recovery.models.index import ModelIndex, ModelVersion, VersionState
from supervisor.contract.bounds import MAX_INT
from supervisor.contract.errors import IncompatibleRecord, NotFound, UserError

EMPTY = ModelIndex(model="digits")


def new(number: int) -> ModelVersion:
    """A version that is not in the index yet."""
    return ModelVersion(
        version=0,
        id=f"g1.1-{number}",
        digest=f"d{number}",
        source=f"export/{number}",
        member="chief.0",
        check="load",
        size=1,
        job_uuid="uuid",
        generation=1,
        attempt=1,
        taken_ms=number,
    )


def with_versions(count: int, keep: int = 3) -> ModelIndex:
    index = replace(EMPTY, keep=keep)
    for number in range(1, count + 1):
        index = models.with_version(index, new(number))
    return index


def published(index: ModelIndex) -> list[int]:
    return [each.version for each in index.published]


def test_versions_count_from_1_and_the_newest_are_kept() -> None:
    index = with_versions(5)
    assert [each.version for each in index.versions] == [1, 2, 3, 4, 5]
    assert published(index) == [3, 4, 5]
    assert models.parse_index(models.encode_index(index)) == index


def test_a_number_is_never_given_again() -> None:
    index = with_versions(5)
    forgotten = replace(index, versions=())
    assert models.next_version(forgotten) == 6


def test_a_directory_that_somebody_else_put_there_is_passed_over() -> None:
    assert models.next_version(with_versions(2), ("7", "x", "007", "0", "-9")) == 8
    with pytest.raises(UserError, match="no version can be higher; remove it"):
        models.next_version(EMPTY, (str(MAX_INT),))


@given(st.lists(st.sampled_from(["new", "back", "on", "label"]), max_size=40), st.integers(1, 4))
def test_whatever_operators_do_the_newest_stays_and_numbers_rise(deeds: list[str], keep: int) -> None:
    index, given_out = replace(EMPTY, keep=keep), list[int]()
    for number, deed in enumerate(deeds):
        before = index
        try:
            if deed == "new":
                index = models.with_version(index, new(number))
                given_out.append(index.last)
            elif deed == "back":
                index = models.rolled_back(index, None)
            elif deed == "on":
                index = models.put_forward(index, None)
            else:
                index = models.labelled(index, "stable", published(index)[0] if published(index) else 1)
        except (NotFound, UserError):
            index = before
        assert models.parse_index(models.encode_index(index)) == index
        assert not index.versions or published(index), "servers would have nothing to serve"
        assert set(index.labels.values()) <= set(published(index))
    assert given_out == sorted(set(given_out))


def test_a_version_with_a_label_is_kept() -> None:
    index = models.labelled(with_versions(2, keep=2), "stable", 1)
    for number in range(3, 8):
        index = models.with_version(index, new(number))
    assert published(index) == [1, 6, 7]


def test_a_rollback_withdraws_what_is_newer_and_holds_what_comes() -> None:
    index = models.rolled_back(with_versions(3), None)
    assert published(index) == [1, 2]
    index = models.with_version(index, new(4))
    assert published(index) == [1, 2], "it waits for an operator"
    assert index.find(4).state is VersionState.WITHDRAWN
    assert published(models.put_forward(index, 4)) == [1, 2, 4]
    assert published(models.put_forward(index, None)) == [2, 3, 4], "three are kept"
    assert not models.put_forward(index, None).held
    again = models.rolled_back(index, 1)
    assert published(again) == [1]
    assert published(models.rolled_back(again, 3)) == [1, 3], "a withdrawn one can be the target"


def test_what_is_held_does_not_fill_the_store() -> None:
    index = models.rolled_back(with_versions(3, keep=2), None)
    for number in range(4, 9):
        index = models.with_version(index, new(number))
    assert published(index) == [2]
    assert [each.version for each in index.present] == [2, 7, 8]
    assert published(models.put_forward(index, None)) == [7, 8]


def test_a_rollback_does_not_take_a_label_away() -> None:
    index = models.labelled(with_versions(3), "canary", 3)
    with pytest.raises(UserError, match=r"label canary is on version 3.*move it first: label canary 2"):
        models.rolled_back(index, 2)


def test_labels_are_on_published_versions_alone() -> None:
    index = models.rolled_back(with_versions(3), 2)
    with pytest.raises(UserError, match="version 3 is withdrawn; publish it first"):
        models.labelled(index, "stable", 3)
    with pytest.raises(NotFound, match="model digits has no version 9; it has 1, 2, 3"):
        models.labelled(index, "stable", 9)
    with pytest.raises(NotFound, match="has no label stable"):
        models.labelled(index, "stable", None)
    with pytest.raises(NotFound, match="no published version before its newest"):
        models.rolled_back(with_versions(1), None)


def test_an_earlier_attempt_and_another_job_may_not_change_it() -> None:
    index = replace(EMPTY, job="job", generation=2, attempt=3)
    assert "as attempt 2.3 does" in models.claim_objection(index, "job", 2, 2)
    assert "as attempt 2.3 does" in models.claim_objection(index, "job", 1, 9)
    assert "name another one in serving.model" in models.claim_objection(index, "other", 3, 1)
    assert models.claim_objection(index, "job", 2, 3) == models.claim_objection(EMPTY, "any", 1, 1) == ""


@pytest.mark.parametrize(
    "broken",
    [
        replace(EMPTY, model="../x"),
        replace(EMPTY, last=1, versions=(replace(new(1), version=2),)),
        replace(EMPTY, last=2, versions=(replace(new(1), version=0),)),
        replace(EMPTY, last=2, versions=(replace(new(1), version=2), replace(new(2), version=1))),
        replace(EMPTY, last=2, versions=(replace(new(1), version=1, id="../../x"),)),
        replace(EMPTY, last=2, versions=(replace(new(1), version=1), replace(new(1), version=2))),
        replace(EMPTY, last=1, versions=(replace(new(1), version=1),), labels={"a b": 1}),
        replace(EMPTY, last=1, versions=(replace(new(1), version=1),), labels={"stable": 2}),
        replace(EMPTY, servers=("unix:/run/docker.sock",)),
        replace(EMPTY, keep=-1),
    ],
)
def test_an_index_that_would_lead_elsewhere_is_not_read(broken: ModelIndex) -> None:
    with pytest.raises(IncompatibleRecord):
        models.parse_index(models.encode_index(broken))


def test_a_version_of_an_earlier_release_is_read_and_not_published_again() -> None:
    one = replace(EMPTY, last=1, versions=(replace(new(1), version=1),))
    raw = models.encode_index(one).replace(b'"job_uuid"', b'"job"')
    (version,) = models.parse_index(raw).versions
    assert version.job_uuid == ""
    assert models.parse_index(raw).has(version.digest, version.source, version.member, "uuid-2")


def test_old_removed_versions_are_forgotten() -> None:
    removed = tuple(
        replace(new(number), version=number, state=VersionState.REMOVED)
        for number in range(1, models.MOST_VERSIONS + 10)
    )
    many = replace(EMPTY, last=models.MOST_VERSIONS + 9, versions=removed)
    index = models.with_version(many, new(5000))
    assert len(index.versions) == models.MOST_VERSIONS
    assert published(index) == [models.MOST_VERSIONS + 10]
