"""TFJobs: every field of the v1 API has a row; texts, quantities and conditions are those of Kubernetes."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.adapters.files.quantities import size_bytes
from supervisor.contract.desired import JobPhase
from supervisor.contract.incident import Outcome
from supervisor.contract.job.placeholders import fill, known_words, problems
from supervisor.contract.job.spec import Strategy
from supervisor.contract.job.tfjob.conditions import as_tfjob
from supervisor.contract.job.tfjob.convert import choose
from supervisor.contract.job.tfjob.fields import FIELDS, FieldType, Node, Treatment, parts, tree
from supervisor.contract.job.tfjob.texts import expand, literal, quantity, referenced, size
from supervisor.contract.views.jobs import EventView, Explanation, IncidentView, JobView, TaskView
from tests.contract.tfjob import page

CRD = dict(line.split() for line in (Path(__file__).parent / "tfjob/v1.txt").read_text().splitlines())
TYPES = {
    "string": {FieldType.TEXT},
    "integer": {FieldType.WHOLE},
    "boolean": {FieldType.FLAG},
    "quantity": {FieldType.QUANTITY},
    "array": {FieldType.LIST, FieldType.TEXTS},
    "object": {FieldType.OBJECT, FieldType.MAP},
}


def row_of(path: str) -> Node:
    """The place in the tree that stands for a field of the API."""
    node = tree()
    for part in parts(path):
        if not node.below:
            return node  # stands for all below it
        assert part in node.below, f"{path} has no row in supervisor/contract/job/tfjob/fields.py"
        node = node.below[part]
    return node


def test_every_field_of_the_api_has_a_row() -> None:
    assert len(CRD) > 150
    assert [path for path in CRD if row_of(path).row is None and not path.endswith("[]")] == []


def test_every_row_is_a_field_of_the_api_with_its_type() -> None:
    ours = [row for row in FIELDS if not row.path.startswith("metadata.")]
    assert [row.path for row in ours if row.path not in CRD] == []
    typed = [row for row in ours if row.type is not FieldType.ANY]
    assert [(row.path, CRD[row.path]) for row in typed if row.type not in TYPES[CRD[row.path]]] == []


def test_no_field_has_two_rows_and_none_is_without_a_word() -> None:
    assert len({row.path for row in FIELDS}) == len(FIELDS)
    silent = [row.path for row in FIELDS if not row.text and not row_of(row.path).below]
    assert silent == []
    opaque = [row for row in FIELDS if row.treatment is not Treatment.HONOURED]
    assert [row.path for row in opaque if row_of(row.path).below] == []


def test_the_page_has_the_tables() -> None:
    told = page.PAGE.read_text()
    assert told == page.filled(told), "run: python -m tests.contract.tfjob.page"


@pytest.mark.parametrize(
    ("text", "expanded"),
    [
        ("$(A)/$(B)", "1/two"),
        ("$$(A) $$$$ $", "$(A) $$ $"),
        ("$(NONE) $A ${A} $(A", "$(NONE) $A ${A} $(A"),
        ("$($(A))", "$($(A))"),
        ("$()", "$()"),
    ],
)
def test_variables_are_expanded_as_kubernetes_does_it(text: str, expanded: str) -> None:
    assert expand(text, {"A": "1", "B": "two"}) == expanded


def test_the_variables_of_a_text() -> None:
    assert referenced("$(A) $$(B) $(C) $D") == {"A", "C"}


BRACES = st.text(alphabet="{}$ab_1. ", max_size=12) | st.sampled_from(["${ps_hosts}", "{task_index}", "{{}}"])


@given(st.lists(BRACES, max_size=3).map("".join))
def test_a_text_reaches_the_program_as_it_is_written(text: str) -> None:
    written = literal(text)
    known = known_words(["a", "b"])
    assert list(problems(written, known)) == []
    assert fill(written, dict.fromkeys(known | {"a", "b", "ab"}, "FILLED")) == text


@pytest.mark.parametrize("text", ['{"a": 1}', "${HOME}", "plain", "{print $1}"])
def test_a_text_without_placeholders_stays_readable(text: str) -> None:
    assert fill(literal(text), {}) == text
    assert literal("plain") == "plain"


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("500m", Fraction(1, 2)),
        ("4Gi", 4 << 30),
        ("1.5G", 1_500_000_000),
        (".5", Fraction(1, 2)),
        ("2.", 2),
        ("1e3", 1000),
        ("12E-1", Fraction(6, 5)),
        ("1E", 10**18),
        ("+2k", 2000),
        (3, 3),
        (0.5, Fraction(1, 2)),
        ("100u", Fraction(1, 10_000)),
        ("-1", None),
        ("1KiB", None),
        ("1 Gi", None),
        ("", None),
        ("Gi", None),
        (True, None),
        (None, None),
        (float("inf"), None),
    ],
)
def test_quantities(text: object, number: Fraction | int | None) -> None:
    assert quantity(text) == number


@given(st.integers(0, 10**15 - 1))
def test_a_size_is_read_as_it_was_written(count: int) -> None:
    assert size_bytes(size(Fraction(count))) == count


def test_a_size_is_rounded_up() -> None:
    assert size(Fraction(1, 2)) == "1B"
    assert size(Fraction(3 << 29)) == "1536MiB"


@pytest.mark.parametrize(
    ("roles", "dynamic", "chosen"),
    [
        ({"ps": 1, "worker": 2}, False, Strategy.SYNC),
        ({"ps": 1, "worker": 2, "chief": 1}, False, Strategy.SYNC),
        ({"ps": 1, "worker": 2}, True, Strategy.ASYNC),
        ({"ps": 1, "chief": 1}, False, Strategy.PLAIN),
        ({"worker": 2}, False, Strategy.MULTIWORKER),
        ({"chief": 1, "worker": 1, "evaluator": 1}, False, Strategy.MULTIWORKER),
        ({"worker": 1, "evaluator": 1}, False, Strategy.PLAIN),
        ({"master": 1, "worker": 2}, False, Strategy.PLAIN),
    ],
)
def test_the_strategy_is_the_one_that_is_right_for_any_program(
    roles: dict[str, int], dynamic: bool, chosen: Strategy
) -> None:
    assert choose(roles, dynamic=dynamic)[0] is chosen


def task(role: str, index: int, state: str, detail: str = "") -> TaskView:
    return TaskView(f"a/{role}:{index}", role, index, "n", state, 1, 1, "", 3, 0.0, detail)


def job(phase: JobPhase, *tasks: TaskView, generation: int = 1, reason: str = "") -> JobView:
    return JobView(
        *("a", "uuid", "sync", phase, generation, 3, 0.0, None, None, 0, 0, 0, 3, reason, "", 1000),
        tasks=tasks,
    )


def incident(outcome: Outcome, wall_ms: int, cause: str = "killed") -> IncidentView:
    return IncidentView(
        "i", "a", cause, "a/worker:1", "n", "sync.worker.all", "all", "", 3, 3, {}, 0, outcome, 1, wall_ms
    )


def shown(job: JobView, *incidents: IncidentView, ended: str = "") -> dict[str, object]:
    events = [
        EventView(1, 2000, "flip", "a", ""),
        EventView(2, 9000, ended, "a", ""),
        EventView(3, 1, "flip", "b", ""),
    ]
    document = as_tfjob(Explanation(job, incidents), events, lambda wall_ms: f"T{wall_ms}")
    assert document["metadata"] == {"name": "a", "uid": "uuid", "creationTimestamp": "T1000"}
    status = document["status"]
    assert isinstance(status, dict)
    return status


def holding(status: dict[str, object]) -> list[tuple[str, str, str]]:
    conditions = status["conditions"]
    assert isinstance(conditions, list)
    for each in conditions:
        assert each["reason"] == f"TFJob{each['type']}"
        assert each["lastUpdateTime"] == each["lastTransitionTime"]
    return [(each["type"], each["status"], each["lastTransitionTime"]) for each in conditions]


RUNS = (task("worker", 0, "running"), task("worker", 1, "running"), task("ps", 0, "running"))
CREATED = ("Created", "True", "T1000")


def test_a_job_that_waits_is_created() -> None:
    status = shown(job(JobPhase.WAITING, task("worker", 0, "waiting"), generation=0))
    assert holding(status) == [CREATED]
    assert status["replicaStatuses"] == {"Worker": {}}
    assert status["startTime"] == "T1000"


def test_a_job_that_runs() -> None:
    status = shown(job(JobPhase.RUNNING, *RUNS), incident(Outcome.OPEN, 5, "submitted"))
    assert holding(status) == [CREATED, ("Running", "True", "T2000")]
    assert status["replicaStatuses"] == {"Worker": {"active": 2}, "PS": {"active": 1}}
    assert "completionTime" not in status


def test_a_job_that_recovers_is_restarting() -> None:
    status = shown(job(JobPhase.RUNNING, *RUNS), incident(Outcome.RECOVERED, 5), incident(Outcome.OPEN, 3000))
    assert holding(status) == [CREATED, ("Restarting", "True", "T3000")]
    healed = shown(job(JobPhase.RUNNING, *RUNS), incident(Outcome.RECOVERED, 3000))
    assert holding(healed) == [CREATED, ("Running", "True", "T2000")]


def test_a_job_that_has_succeeded() -> None:
    done = (task("worker", 0, "exited", "exit code 0"), task("ps", 0, "exited", "signal 9: was stopped"))
    status = shown(job(JobPhase.SUCCEEDED, *done), ended="succeeded")
    assert holding(status) == [CREATED, ("Running", "False", "T9000"), ("Succeeded", "True", "T9000")]
    assert status["replicaStatuses"] == {"Worker": {"succeeded": 1}, "PS": {}}
    assert status["completionTime"] == "T9000"


def test_a_job_that_has_failed_names_the_task() -> None:
    tasks = (task("worker", 0, "exited", "signal 9"), task("worker", 1, "exited", "exit code 1"))
    view = job(JobPhase.FAILED, *tasks, reason="it broke")
    status = shown(view, incident(Outcome.FAILED, 5), ended="job_failed")
    assert holding(status) == [CREATED, ("Running", "False", "T9000"), ("Failed", "True", "T9000")]
    assert status["replicaStatuses"] == {"Worker": {"failed": 1}}
    conditions = status["conditions"]
    assert isinstance(conditions, list)
    assert conditions[-1]["message"] == "it broke"


@pytest.mark.parametrize("phase", [JobPhase.STOPPED, JobPhase.PARKED])
def test_a_job_that_somebody_has_to_start_is_suspended(phase: JobPhase) -> None:
    kind = "stopped" if phase is JobPhase.STOPPED else "parked"
    held = shown(job(phase, generation=0), ended=kind)
    assert holding(held) == [CREATED, ("Suspended", "True", "T9000")]
    assert "startTime" not in held
    ran = shown(replace(job(phase), generation=2), ended=kind)
    assert holding(ran) == [CREATED, ("Running", "False", "T9000"), ("Suspended", "True", "T9000")]
    assert "completionTime" not in ran
