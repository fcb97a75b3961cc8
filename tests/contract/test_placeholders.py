"""Placeholders of job files: exactly which braces mean something."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.contract.job.placeholders import (
    fill,
    fill_earlier,
    known_words,
    problems,
    without_placeholders,
    words_in,
)

VALUES = {
    "ps_hosts": "h1:2,h2:2",
    "job_name": "ps",
    "task_index": "1",
    "checkpoint_dir": "/c",
    "0-x_hosts": "h",
}
KNOWN = known_words(["data-worker"])
LISTED = ", ".join(sorted(KNOWN))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("--ps_hosts={ps_hosts}", "--ps_hosts=h1:2,h2:2"),
        ("{job_name}:{task_index}", "ps:1"),
        ("{0-x_hosts}", "h"),
        ("{{job_name}}", "{job_name}"),
        ("{{{job_name}}}", "{ps}"),
        ("{{{{job_name}}}}", "{{job_name}}"),
        ("${{ps_hosts}}", "${ps_hosts}"),
        ("{{.Names}} {{print}}", "{.Names} {print}"),
        ('{{"a": {{"b": {task_index}}}}}', '{"a": {"b": 1}}'),
        ('{"index":{task_index}}', '{"index":1}'),
        ("}} {{ }} }}", "}} { } }}"),
        # Text that is nobody's placeholder stays as it is.
        ('{"a": {"b": {}}}', None),
        ("${HOME} ${ps_hosts} $job_name", None),
        ("[0-9]{3} {1..3} {a,b} {} { job_name } {job_name!r} {task_index:02}", None),
        ("{print $1} {", None),
        ("{unknown}", None),
    ],
)
def test_exactly_the_placeholders_are_filled(text: str, expected: str | None) -> None:
    assert fill(text, VALUES) == (text if expected is None else expected)


def test_what_is_filled_in_is_not_filled_again() -> None:
    assert fill("{checkpoint_dir}", {"checkpoint_dir": "/x/{job_name}/{{y}}"}) == "/x/{job_name}/{{y}}"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "{task_idx}",
            f"unknown placeholder {{task_idx}}; did you mean {{task_index}}? Known are {LISTED}; for",
        ),
        (
            "x{print}",
            f"unknown placeholder {{print}}; known are {LISTED}; for the text itself write {{{{print}}}}",
        ),
        ("{foo_hosts}", "unknown placeholder {foo_hosts}; "),
        (
            "sh ${ps_hosts}",
            "${ps_hosts} would be a variable of the shell; write {ps_hosts} for the placeholder,",
        ),
        ("{data-worker_hosts} ${HOME} {{foo}} {3} {a,b}", None),
    ],
)
def test_what_is_wrong_with_a_text(text: str, expected: str | None) -> None:
    found = list(problems(text, KNOWN))
    assert found == [] if expected is None else [each.startswith(expected) for each in found] == [True]


def test_each_advice_is_taken() -> None:
    """The replacement that a message advises is right."""
    for text in ("{print}", "${ps_hosts}"):
        (problem,) = problems(text, KNOWN)
        advised = re.findall(r"\$?\{\{\w+\}\}", problem)[-1]
        assert not list(problems(advised, KNOWN))
        assert fill(advised, VALUES) == text


def test_a_launcher_imports_with_what_is_known_before_there_are_addresses() -> None:
    env = {"A": "x", "B": "{ps_hosts}", "C": '{{"a": 1}}', "D": "{{job_name}}", "E": "${HOME}"}
    assert without_placeholders(env) == {"A": "x", "C": '{"a": 1}', "D": "{job_name}", "E": "${HOME}"}


def test_what_an_earlier_release_recorded_keeps_its_meaning() -> None:
    assert fill_earlier("{{job_name}} {x} {0-x_hosts} ${ps_hosts}", VALUES) == "{ps} {x} h $h1:2,h2:2"
    assert fill_earlier("{output} {job_name}", {**VALUES, "output": "new"}) == "{output} ps"


TEXTS = st.text(alphabet="{}$ab_ 1.-", max_size=30)


@given(TEXTS)
def test_doubling_every_brace_keeps_a_text_as_it_is(text: str) -> None:
    """Closing braces that come first have nothing to close, doubled or not."""
    start = re.sub(r"^[^{]*", "", text)
    balanced = start + "}" * (start.count("{") - start.count("}"))
    doubled = balanced.replace("{", "{{").replace("}", "}}")
    filled = fill(doubled, VALUES)
    if all(balanced[:end].count("}") <= balanced[:end].count("{") for end in range(len(balanced) + 1)):
        assert filled == balanced


@given(TEXTS)
def test_a_text_without_placeholders_and_doubled_braces_is_left_alone(text: str) -> None:
    if "{{" not in text and not words_in(text):
        assert fill(text, VALUES) == text
        assert not [each for each in problems(text, KNOWN) if each.startswith("unknown")]


@given(TEXTS, st.dictionaries(st.sampled_from(["a", "b", "ab"]), TEXTS))
def test_a_text_in_which_nothing_is_wrong_has_no_word_left(text: str, values: dict[str, str]) -> None:
    if not list(problems(text, frozenset(values))):
        assert set(words_in(text)) <= set(values)
        assert fill(text, {}) == text or "{{" in text or words_in(text)
