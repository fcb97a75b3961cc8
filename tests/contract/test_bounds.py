"""Values that end nobody: what a record, a job and a pattern may hold."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import fields, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.adapters.files.jobfile import load_job_file
from supervisor.contract import bounds, codec
from supervisor.contract.checkpoint import CheckpointRef
from supervisor.contract.errors import IncompatibleRecord, UserError
from supervisor.contract.job.bounds import NUMBERS, Number, filled_bytes, objections
from supervisor.contract.job.file_pattern import compile_pattern
from supervisor.contract.job.placeholders import fill, fill_earlier
from supervisor.contract.job.spec import (
    CheckpointSpec,
    CodeRef,
    JobRecord,
    JobSpec,
    Limits,
    ProgressSpec,
    RoleSpec,
    ServingSpec,
    SuccessPolicy,
)
from supervisor.contract.job.step_pattern import check_step_pattern, compile_step_pattern
from supervisor.contract.observed import Beat, TaskBeat
from supervisor.control.decide.jobs.admission import check_spec
from tests.support.builders import job_spec, role

HUGE = 10**400


def record_with(**limits: object) -> bytes:
    """A job's record as another client would write it."""
    body = json.loads(codec.encode(JobRecord(job_spec(), "u", 1)))
    body["spec"]["limits"] |= limits
    return json.dumps(body).encode()


@pytest.mark.parametrize("number", [HUGE, -HUGE, 2**63, -(2**63) - 1])
def test_a_number_beyond_64_bits_is_no_record(number: int) -> None:
    with pytest.raises(IncompatibleRecord, match=r"Limits\.startup_ms: a whole number beyond 64 bits"):
        codec.decode(JobRecord, record_with(startup_ms=number))


def test_numbers_of_64_bits_are_read() -> None:
    for number in (2**63 - 1, -(2**63)):
        assert codec.decode(JobRecord, record_with(startup_ms=number)).spec.limits.startup_ms == number


@pytest.mark.parametrize("number", ["Infinity", "-Infinity", "NaN", "1e999", str(HUGE)])
def test_a_number_that_cannot_be_written_is_not_read(number: str) -> None:
    raw = codec.encode(Beat(1, "n", "i", 1, (TaskBeat("a", rate=0.125),)))
    with pytest.raises(IncompatibleRecord, match=r"TaskBeat\.rate"):
        codec.decode(Beat, raw.replace(b"0.125", number.encode()))


def test_half_a_character_is_neither_read_nor_written() -> None:
    raw = codec.encode(Beat(1, "name", "i", 1))
    with pytest.raises(IncompatibleRecord, match=r"Beat\.node: half a character"):
        codec.decode(Beat, raw.replace(b"name", b"\\ud800"))
    written = codec.decode(Beat, codec.encode(Beat(1, "name\udcff", "i", 1)))
    assert written.node == "name\\udcff"


def test_a_number_that_no_reader_takes_is_not_written() -> None:
    with pytest.raises(ValueError, match="64 bits"):
        codec.encode(CheckpointRef(1, HUGE))


def with_number(number: Number, value: int) -> JobSpec:
    """A job in which this number has that value."""
    spec = replace(job_spec(), code=CodeRef("0" * 64, 1), serving=ServingSpec("m", "export/*", "chief"))
    if number.field == ("priority",):
        return replace(spec, priority=value)
    part = getattr(spec, number.field[0])
    for each in [each for each in fields(part) if "int" in str(each.type)]:
        changed = replace(spec, **{number.field[0]: replace(part, **{each.name: value})})
        if number.read(changed) == value:
            return changed
    raise AssertionError(f"no field of a job is {number.field}")


@pytest.mark.parametrize("number", NUMBERS, ids=lambda number: ".".join(number.field))
def test_each_number_of_a_job_is_held_to_its_bounds(number: Number) -> None:
    for value in (number.least, number.most):
        assert number.field not in [each.where for each in objections(with_number(number, value))]
    for value in (number.least - 1, number.most + 1, HUGE):
        assert number.field in [each.where for each in objections(with_number(number, value))]


@pytest.mark.parametrize("value", [HUGE, bounds.MAX_DURATION_MS + 1, -1])
def test_a_limit_out_of_bounds_is_refused_with_its_field(value: int) -> None:
    with pytest.raises(UserError, match="out of bounds") as refused:
        check_spec(replace(job_spec(), limits=Limits(startup_ms=value)))
    assert refused.value.field == ("limits", "startup")


@pytest.mark.parametrize(
    ("pattern", "why"),
    [
        (r"(a{4294967296})", "at most 1000"),
        (r"(a{1,99999999999999999999})", "at most 1000"),
        (r"(?:(?:(?:w?){1000}){1000}){1000}(y)", "by counts inside counts; at most 1000"),
        (r"(?=x|(?:[a-z]{1,100}?){11})(\d)", "1100 times by counts inside counts"),
        (r"(a)(?(1)(?:b{900}){2}|c)", "1800 times by counts inside counts"),
        ("(a)" * 200, "at most 500"),
        ("(" * 400 + ")" * 400, "at most 500"),
        ("(" * 240 + ")" * 240, "groups"),
        (r"step (\d+", "not a regular expression"),
        ("step (\ud800)", "not a regular expression"),
        (r"step \d+", "exactly one"),
    ],
)
def test_a_pattern_that_is_too_much_is_refused_with_its_field(pattern: str, why: str) -> None:
    with pytest.raises(UserError, match=why) as refused:
        check_spec(replace(job_spec(), progress=ProgressSpec((r"step (\d+)", pattern))))
    assert refused.value.field == ("progress", "patterns", "1")


@pytest.mark.parametrize(
    "pattern",
    [
        "((?:" * 60 + "a{1000}" + "){1000})" * 60,
        "(" + "(?:a|b|c){1000}" * 30 + ")",
        "([" + "a-z" * 150 + "])",
        "(?i)(" + "[a-z]{0,1000}" * 30 + ")",
    ],
)
def test_what_is_within_bounds_compiles_at_once(pattern: str) -> None:
    began = time.process_time()
    with suppress(UserError):
        compile_step_pattern(pattern)
    assert time.process_time() - began < 0.1
    assert check_step_pattern(r"step (\d+)") == r"step (\d+)"
    assert check_step_pattern(r"(\d{1,3}(?:,\d{3}){0,300})")


def twenty(word: str) -> JobSpec:
    return replace(job_spec((RoleSpec("worker", 20, ("python", "t.py", word)),)), templated=True)


def test_a_command_is_measured_once_its_placeholders_are_filled_in() -> None:
    with pytest.raises(UserError, match="once its placeholders are filled in") as refused:
        check_spec(twenty("{worker_hosts}" * 3500))
    assert refused.value.field == ("roles", "worker", "command")
    spread = replace(twenty("x"), roles=(RoleSpec("worker", 20, ("python", *["{worker_hosts}"] * 3500)),))
    with pytest.raises(UserError, match="let the program read TF_CONFIG") as refused:
        check_spec(spread)
    assert refused.value.field == ("roles", "worker")
    check_spec(twenty("{worker_hosts}"))


@pytest.mark.parametrize("words", [("x" * 110_000, "x" * 20_000), ("x",) * 300_000])
def test_a_job_that_is_too_large_is_refused_at_once(words: tuple[str, ...]) -> None:
    began = time.thread_time()
    with pytest.raises(UserError, match=r"the job is \d+ KiB, more than 120 KiB; shorten"):
        check_spec(job_spec((RoleSpec("worker", 1, words),)))
    assert time.thread_time() - began < 0.5


def test_a_job_of_a_thousand_tasks_may_name_them_all() -> None:
    many = RoleSpec("worker", 999, ("python", "t.py", "--workers={worker_hosts}"))
    check_spec(replace(job_spec((many,)), templated=True))


def of_a_hundred_roles(env: dict[str, str]) -> JobSpec:
    """A job of 1,000 tasks. Each role gets these variables."""
    others = tuple(RoleSpec(f"r{at}", 1, ("python", "t.py")) for at in range(99))
    return replace(job_spec((RoleSpec("worker", 901, ("python", "t.py")), *others)), env=env, templated=True)


@pytest.mark.parametrize(
    ("env", "refused"),
    [
        ({"A": "{worker_hosts}" * 700}, True),
        ({"A": "{ps_hosts}" * 6_000}, False),
    ],
    ids=["long values", "empty values"],
)
def test_a_job_that_grows_when_it_is_filled_in_is_measured_in_little_time(
    env: dict[str, str], refused: bool
) -> None:
    spec = of_a_hundred_roles(env)
    began = time.process_time()
    assert any(objections(spec)) is refused
    assert time.process_time() - began < 1


def test_a_caller_that_takes_the_first_objection_does_not_wait_for_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def no_pattern(_pattern: str) -> str:
        raise AssertionError("a pattern is looked at")

    monkeypatch.setattr("supervisor.contract.job.bounds.check_step_pattern", no_pattern)
    with pytest.raises(UserError, match="out of bounds"):
        check_spec(replace(job_spec(), limits=Limits(startup_ms=-1)))


FILLERS = {"worker_hosts": "h" * 500, "task_index": "7", "ps_hosts": 'é"x\udcff', "host": ""}
PIECES = ("{", "}", "{{", "}}", "${host}", "{unknown}", "é", '"', "\udcff", "$", "a")


@pytest.mark.parametrize("replaced", [fill, fill_earlier])
@given(pieces=st.lists(st.sampled_from((*PIECES, *(f"{{{name}}}" for name in FILLERS))), max_size=30))
def test_the_measured_size_is_that_of_the_filled_text(
    replaced: Callable[[str, Mapping[str, str]], str], pieces: list[str]
) -> None:
    text = "".join(pieces)
    built = json.dumps(bounds.whole_text(replaced(text, FILLERS)))
    assert filled_bytes(FILLERS, replaced)(text) == len(built)


def test_tasks_without_number_are_counted_without_making_them() -> None:
    began = time.process_time()
    with pytest.raises(UserError, match="tasks; at most 1000") as refused:
        check_spec(job_spec((RoleSpec("worker", 10**18, ("python", "t.py")),)))
    assert refused.value.field == ("roles",)
    assert time.process_time() - began < 1


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        (replace(job_spec(), env={"A": "nul\0"}), ("env", "A")),
        (replace(job_spec(), env={"A": "half\ud800"}), ("env", "A")),
        (replace(job_spec(), workdir="/half\udcff"), ("workdir",)),
        (replace(job_spec(), workdir="/proc"), ("workdir",)),
        (replace(job_spec(), workdir="//sys/fs"), ("workdir",)),
        (replace(job_spec(), workdir="/data/../dev/shm"), ("workdir",)),
        (replace(job_spec(), preload=("os; import this",)), ("preload",)),
        (replace(job_spec(), protocol="grpc" + "+a" * 10_000), ("protocol",)),
        (replace(job_spec(), checkpoint=CheckpointSpec("file:///c", mode="none")), ("checkpoint", "mode")),
        (
            replace(job_spec(), checkpoint=CheckpointSpec("file:///c", patterns=("/a",))),
            ("checkpoint", "pattern"),
        ),
        (replace(job_spec(), env={f"A{each}": "" for each in range(1001)}), ("env",)),
    ],
)
def test_what_no_task_could_start_with_is_refused_with_its_field(
    spec: JobSpec, field: tuple[str, ...]
) -> None:
    with pytest.raises(UserError) as refused:
        check_spec(spec)
    assert refused.value.field == field


@pytest.mark.parametrize("pattern", ["*a" * 60 + "b", "*?" * 120 + "b", "*a?{step}*a*a*a*b/" * 4 + "x"])
def test_a_file_pattern_takes_no_time_for_any_name(pattern: str) -> None:
    compiled = compile_pattern(pattern.replace("{step}", "", pattern.count("{step}") - 1))
    name = "/".join(["a" * 250] * (pattern.count("/") + 1))
    began = time.process_time()
    assert compiled.fullmatch(name) is None
    assert time.process_time() - began < 0.1


@pytest.mark.parametrize(
    ("pattern", "name", "step"),
    [
        ("ckpt-{step}.keras", "ckpt-12.keras", "12"),
        ("*-{step}.h5", "a-1-22.h5", "22"),
        ("*/{step}/*.h5", "run/7/w.h5", "7"),
        ("*a*-{step}-*b*", "xaya-3-zbz", "3"),
        ("m*d?l-{step}*", "model-10-final", "10"),
        ("*.h5", "x.h5.h5", None),
        ("a*b*c", "abbcbc", None),
    ],
)
def test_a_file_pattern_finds_what_a_shell_would(pattern: str, name: str, step: str | None) -> None:
    found = compile_pattern(pattern).fullmatch(name)
    assert found is not None
    assert found.groups() == ((step,) if step is not None else ())


def test_the_file_of_a_job_is_held_to_the_same_bounds(tmp_path: Path) -> None:
    text = yaml_with("{worker_hosts}" * 3500, patterns="['step (\\d+)', '(a{4294967296})']")
    file = tmp_path / "job.yaml"
    file.write_text(text)
    with pytest.raises(UserError, match=r"job\.yaml:4: progress\.patterns\[1\]: repeats something"):
        load_job_file(file, checkpoint_base="file:///c")
    file.write_text(yaml_with("{worker_hosts}" * 3500))
    with pytest.raises(UserError, match=r"job\.yaml:3: roles\.worker\.command: takes \d+ bytes once"):
        load_job_file(file, checkpoint_base="file:///c")


def yaml_with(word: str, patterns: str = "['step (\\d+)']") -> str:
    return (
        "name: digits\nstrategy: plain\n"
        f"roles: {{worker: {{count: 20, command: [python, t.py, '{word}']}}}}\n"
        f"progress: {{patterns: {patterns}}}\n"
    )


@pytest.mark.parametrize(("serves", "follow"), [(None, False), (True, False), (None, True)])
def test_worker_0_can_decide_only_if_it_ends_by_itself(*, serves: bool | None, follow: bool) -> None:
    worker = replace(role("worker", 2), serves=serves, follow=follow)
    spec = replace(job_spec((worker, role("trainer"))), success_policy=SuccessPolicy.WORKER_0)
    found = [each.text for each in objections(spec) if each.where == ("success_policy",)]
    assert len(found) == bool(serves or follow)
    assert all("no role worker whose tasks end by themselves" in text for text in found)
    led = replace(job_spec(), success_policy=SuccessPolicy.WORKER_0)
    assert ("success_policy",) in [each.where for each in objections(led)]
