"""The zoo is complete, its job files are valid, and docs/programs.md is what its last run showed."""

from __future__ import annotations

import pytest

from supervisor.adapters.files.jobfile import load_job_file
from tests.programs.shapes import HERE, SHAPES, Shape
from tests.programs.table import JSON_FILE, PAGE_FILE, Document, Entry, must_say, page, read


def test_every_program_has_a_shape() -> None:
    files = {file for folder in ("zoo", "tutorials") for file in (HERE / folder).glob("*.yaml")}
    assert {shape.file for shape in SHAPES} == files
    assert all(shape.file.with_suffix(".py").exists() for shape in SHAPES)


def test_there_are_thirty_shapes_ten_tutorials_and_four_quick_ones() -> None:
    assert sum(not shape.tutorial for shape in SHAPES) >= 30
    assert sum(shape.tutorial for shape in SHAPES) >= 10
    assert sum(shape.quick for shape in SHAPES) >= 4


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)
def test_a_job_file_is_valid_and_each_of_its_roles_is_killed(shape: Shape) -> None:
    spec = load_job_file(shape.file, checkpoint_base="file:///unused").spec
    assert spec.name == shape.name
    assert {victim.role for victim in shape.victims} == {role.name for role in spec.roles}
    assert all(victim.index < spec.role(victim.role).count for victim in shape.victims)


def test_no_program_imports_ours_or_knows_our_variables() -> None:
    for shape in SHAPES:
        text = shape.file.with_suffix(".py").read_text()
        assert [
            word for word in ("supervisor.cli", "TFSUP_", "import tests", "from tests") if word in text
        ] == []


def test_the_page_is_what_the_last_run_showed() -> None:
    document = read(JSON_FILE)
    assert PAGE_FILE.read_text() == page(document), (
        "python -m tests.programs.table --render >docs/programs.md"
    )


def test_what_does_not_hold_is_said_and_nothing_else_is() -> None:
    entries = read(JSON_FILE).entries
    assert {entry.name for entry in entries} == {shape.name for shape in SHAPES}
    failed = {entry.name for entry in entries if entry.failure}
    assert failed == {shape.name for shape in SHAPES if shape.trouble}


def test_a_page_shows_a_failure() -> None:
    shape = SHAPES[0]
    text = page(
        Document({"date": "2026-01-01", "cores": "2"}, (Entry(shape.name, failure="nothing saved\nx"),))
    )
    assert f"| `{shape.name}` |" in text
    assert "**does not hold**: nothing saved |" in text


def test_what_a_job_file_says_is_read_from_it() -> None:
    job: dict[str, object] = {
        "name": "a",
        "command": ["python", "a.py", "{ps_hosts}"],
        "strategy": "plain",
        "roles": {"ps": {"count": 1, "serves": True}},
        "checkpoint": {"adopt": "/tmp/x"},
        "env": {"TF_CPP_MIN_LOG_LEVEL": "2", "A": "1"},
    }
    assert must_say(job) == ["`{ps_hosts}`", '`checkpoint.adopt: "/tmp/x"`', "`roles.ps.serves`", "`env.A`"]
