"""Values as a job file writes them: the reader of job files takes them for what they were."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.adapters.files.quantities import duration_ms, size_bytes, text
from supervisor.adapters.files.yaml_file import parse
from supervisor.contract.bounds import MAX_DURATION_MS
from supervisor.contract.job.written import duration, flow, scalar, size

TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=20) | st.sampled_from(
    [
        "true",
        "~",
        "-",
        "3000",
        "1e3",
        "0x10",
        "a: b",
        "# c",
        "{x}",
        "é\u2028\u202e",
        "\x7f",
        "\x85",
        ".inf",
        "<<",
    ]
)


def read(written: str) -> object:
    document = parse(f"top: {written}\n", "x")
    document.raise_problems()
    assert isinstance(document.value, dict)
    return document.value["top"]


@given(value=TEXTS)
def test_a_text_is_read_as_it_was(value: str) -> None:
    assert text(read(scalar(value))) == value


@given(value=st.dictionaries(TEXTS, st.lists(TEXTS, max_size=3), max_size=3))
def test_lists_and_mappings_are_read_as_they_were(value: dict[str, list[str]]) -> None:
    found = read(flow(value))
    assert isinstance(found, dict)
    assert {name: [text(each) for each in inner] for name, inner in found.items()} == value
    assert "\n" not in flow(value)


@given(value=st.integers(-(10**9), 10**9) | st.floats(allow_nan=False, allow_infinity=False) | st.booleans())
def test_numbers_are_read_as_they_were(value: float) -> None:
    assert read(flow(value)) == value
    assert read(flow(None)) is None


@given(value=st.integers(0, MAX_DURATION_MS))
def test_durations_and_sizes_are_read_as_they_were(value: int) -> None:
    assert duration_ms(read(duration(value))) == value
    assert size_bytes(read(size(value))) == value


@pytest.mark.parametrize(
    ("written", "value"),
    [
        (duration(90_000), "90s"),
        (duration(86_400_000), "1d"),
        (duration(300_000), "5m"),
        (duration(1500), "1500ms"),
        (duration(0), "0"),
        (duration(None), "null"),
        (size(2 << 30), "2GiB"),
        (size(1_500_000_000), "1500MB"),
        (size(123), "123B"),
        (flow(1.0), "1"),
        (flow(("python", "--steps", "3000")), '[python, "--steps", "3000"]'),
    ],
)
def test_values_are_written_in_the_shortest_way(written: str, value: str) -> None:
    assert written == value
