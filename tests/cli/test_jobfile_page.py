"""docs/job-file.md: its tables have the types, defaults and bounds of the code, its examples are good jobs.

That it has every key is a test of `tests/test_recipes.py`.
"""

from __future__ import annotations

import json
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest
from annotated_types import Ge, Le
from ruamel.yaml import YAML

from supervisor.adapters.files import yaml_file
from supervisor.adapters.files.jobfile import JobFile, load_job_file
from supervisor.contract import bounds
from supervisor.contract.errors import UserError
from supervisor.contract.job import step_pattern
from supervisor.contract.job.bounds import NUMBERS
from supervisor.contract.job.placeholders import CLASSIC_ROLES, OF_TASK, fill, known_words, problems
from tests.support import job_page
from tests.support.job_page import Example, Key

SCHEMA = job_page.schema()
NUMBER_OF = {".".join(number.field): number for number in NUMBERS}
EXAMPLES = job_page.examples()
AROUND: dict[str, dict[str, object]] = {
    "code.": {"code": {}},
    "container.mounts": {"container": {"mounts": [{"source": "/data/x", "target": "/data"}]}},
    "container.": {"container": {}},
    "serving.": {"serving": {"export": "export/*"}},
}
"""The other keys of a file in which a default is tried."""
LOCK = "numpy==2.1.0 --hash=sha256:" + "0" * 64


def read(text: str) -> dict[str, Any]:
    found = YAML(typ="safe").load(text)
    assert isinstance(found, dict)
    return found


SMALLEST = read(EXAMPLES[0].text)


def load(directory: Path, job: dict[str, Any]) -> JobFile:
    (directory / "requirements.lock").write_text(LOCK)
    path = directory / "job.yaml"
    path.write_text(json.dumps(job))
    return load_job_file(path, checkpoint_base="file:///base")


def put(job: dict[str, Any], name: str, value: object) -> None:
    """Set a key in a job: of the worker where roles have it, and of the first entry of a list."""
    *above, last = name.split(".")
    for part in above:
        if part.endswith("[]"):
            job = job[part.removesuffix("[]")][0]
        else:
            job = job.setdefault("worker" if part == "NAME" else part, {})
    job[last] = value


@pytest.mark.parametrize("key", job_page.key_rows(), ids=lambda key: key.name)
def test_a_row_says_what_values_a_key_takes(key: Key) -> None:
    field = SCHEMA[job_page.plain(key.name)]
    said, _, more = key.value.partition(", from ")
    if field.sort.startswith("`"):
        assert ", ".join(sorted(said.split(", "))) == field.sort
    elif field.sort:
        assert said == field.sort
    else:
        assert said not in ("duration", "size", "true or false")
    marks = field.declared.metadata if field.declared is not None else ()
    least = next((mark.ge for mark in marks if isinstance(mark, Ge)), None)
    most = next((mark.le for mark in marks if isinstance(mark, Le)), None)
    if number := NUMBER_OF.get(key.name):
        least, most = number.least, number.most
    if field.sort == "duration":
        assert (least, most) in ((None, None), (0, bounds.MAX_DURATION_MS))
    elif field.sort == "size":
        assert most in (None, bounds.MAX_SIZE_BYTES)
        assert more == (f"{least} byte" if least else "")
    elif most is not None:
        assert said == f"number, {least:,.15g} to {most:,.15g}"


@pytest.mark.parametrize("key", job_page.key_rows(), ids=lambda key: key.name)
def test_a_default_on_the_page_is_what_a_file_without_the_key_has(tmp_path: Path, key: Key) -> None:
    field = SCHEMA[job_page.plain(key.name)]
    required = field.declared is not None and field.declared.is_required()
    assert (key.default == "required") is (required or key.name == "roles.NAME.count")
    if not key.written:
        # Words tell of a default that is found elsewhere. Learnt bounds and the usual formats are two.
        assert not field.default or key.name == "progress.patterns"
        return
    beside = next((more for start, more in AROUND.items() if key.name.startswith(start)), {})
    without = json.loads(json.dumps({**SMALLEST, **beside}))
    given = json.loads(json.dumps(without))
    put(given, key.name, YAML(typ="safe").load(key.written))
    assert given != without
    with_it, as_it_is = load(tmp_path, given), load(tmp_path, without)
    assert with_it.spec == as_it_is.spec
    assert with_it.given != as_it_is.given or key.name.startswith("container.mounts")


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.section)
def test_each_example_is_a_good_job(tmp_path: Path, example: Example) -> None:
    assert load(tmp_path, {**SMALLEST, **read(example.text)}).spec.roles


def test_each_section_shows_one_of_its_keys() -> None:
    shown: dict[str, set[str]] = {}
    for example in EXAMPLES:
        shown.setdefault(example.section, set()).update(read(example.text))
    told: dict[str, set[str]] = {}
    for key in job_page.key_rows():
        told.setdefault(key.section, set()).add(key.name.partition(".")[0])
    assert [section for section, tops in told.items() if not tops & shown.get(section, set())] == []


def test_the_list_at_the_top_leads_to_every_key() -> None:
    listed = {link: job_page.codes(cell) for link, cell in job_page.table("", "to say")}
    found: dict[str, list[str]] = {}
    for key in job_page.key_rows():
        found.setdefault("#" + key.section.lower().replace(" ", "-").replace("'", ""), []).append(key.name)
    assert len(listed) == len(found)
    for link, patterns in listed.items():
        names = found[link.partition("](")[2].removesuffix(")")]
        assert [each for each in names if not any(fnmatchcase(each, one) for one in patterns)] == []
        assert [one for one in patterns if not any(fnmatchcase(each, one) for each in names)] == []


def test_the_placeholders_are_those_that_there_are() -> None:
    told = {
        word.strip("{}")
        for cell, _ in job_page.table("Variables and placeholders", "placeholder")
        for word in job_page.codes(cell)
    }
    some = {f"{role}_hosts" for role in CLASSIC_ROLES}
    assert told - some == {*OF_TASK, "ROLE_hosts", "data.NAME"}


def test_braces_are_read_as_the_page_says() -> None:
    known = known_words(["ps", "worker"])
    values = dict.fromkeys(known, "filled")
    rows = job_page.table("Variables and placeholders", "in the file")
    (placeholder,), braces, (shell,), plain = (job_page.codes(cell) for cell, _ in rows)
    assert fill(placeholder, values) == "filled"
    assert [fill(each, values) for each in braces] == job_page.codes(rows[1][1])[: len(braces)]
    for each in (shell, *plain):
        assert fill(each, values) == each
        assert list(problems(each, known)) == []
    (meant,) = job_page.codes(rows[2][1])
    assert list(problems(meant, known)) != []


@pytest.mark.parametrize(
    "variable",
    [
        name.replace("*", "X")
        for cell, _ in job_page.table("Variables and placeholders", "refused")
        for name in job_page.codes(cell)
    ],
)
def test_a_variable_that_the_page_refuses_is_refused(tmp_path: Path, variable: str) -> None:
    with pytest.raises(UserError, match=rf"env\.{variable}: "):
        load(tmp_path, {**SMALLEST, "env": {variable: "1"}})


def test_no_job_is_larger_than_the_page_says() -> None:
    kib = 1024
    assert {row[0]: row[1] for row in job_page.table("How large a job may be", "what")} == {
        "the file": f"{yaml_file.MAX_BYTES // kib} KiB, {yaml_file.MAX_DEPTH} levels deep, "
        f"{yaml_file.MAX_NODES:,} values with aliases expanded",
        "the job's record": f"{bounds.MAX_SPEC_BYTES // kib} KiB",
        "tasks of a job": f"{bounds.MAX_TASKS:,}, in {bounds.MAX_ROLES} roles",
        "words of a command": f"{bounds.MAX_WORDS:,}",
        "variables of an environment": f"{bounds.MAX_VARIABLES:,}",
        "one word or variable, with its placeholders filled in": f"{bounds.MAX_WORD_BYTES:,} bytes",
        "all that a task is started with": f"{bounds.MAX_START_BYTES // kib} KiB",
        "a step pattern": f"{step_pattern.MAX_LENGTH} characters, and repetitions `{{m,n}}` up to "
        f"{step_pattern.MAX_REPEAT:,}, also as the product of counts inside counts",
        "steps": f"below {bounds.STEPS:.0e}".replace("1e+", "10^"),
    }
