"""Job files: what a good one becomes, and the exact message, with its line, for each way to get one wrong."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.adapters.files.jobfile import load_job_file
from supervisor.adapters.files.yaml_file import MAX_BYTES
from supervisor.contract.checkpoint import Verify
from supervisor.contract.errors import NotFound, TfSupervisorError, UserError
from supervisor.contract.ids import TaskId
from supervisor.contract.job.serving import model_base
from supervisor.contract.job.spec import (
    CheckpointSpec,
    JobSpec,
    ModelCheck,
    PsRecovery,
    Scope,
    ServingSpec,
    Strategy,
)

BASE = "file:///state/checkpoints"
GOOD = """\
name: digits
command: [python, train.py, --steps, 3000, --rate, 1e-3, "{ps_hosts}"]
strategy: async
roles:
  chief: {count: 1}
  ps: {count: 1, resources: {cpus: 1, memory: 2GiB}}
  worker: {count: 2, env: {A: x}, resources: {gpus: 1, labels: {gpu: h200}}}
  evaluator: {count: 1, command: [./eval]}
env: {STEP_LOG: /tmp/steps, N: 0x10}
restart: {max: 7, retry_from: 128, backoff: 1500ms, backoff_max: 2m, degraded_limit: 1h, scope: {worker: all}}
progress: {patterns: ['it=(\\d+)']}
"""


def load(directory: Path, text: str, name: str | None = None) -> JobSpec:
    path = directory / "job.yaml"
    path.write_text(text)
    return load_job_file(path, checkpoint_base=BASE, name=name).spec


def test_a_good_file(tmp_path: Path) -> None:
    spec = load(tmp_path, GOOD)
    assert spec.name == "digits"
    assert spec.strategy is Strategy.ASYNC
    assert spec.role("chief").command == (
        *("python", "train.py", "--steps", "3000", "--rate", "1e-3"),
        "{ps_hosts}",
    )
    assert spec.role("ps").resources.memory_bytes == 2 << 30
    assert spec.role("worker").resources.labels == {"gpu": "h200"}
    assert spec.role("evaluator").follow
    assert not spec.role("worker").follow
    assert spec.role("evaluator").command == ("./eval",)
    assert spec.env == {"STEP_LOG": "/tmp/steps", "N": "0x10"}
    assert spec.restart.retry_from == 128
    assert spec.restart.backoff_ms == 1500
    assert spec.restart.backoff_max_ms == 120_000
    assert spec.restart.degraded_limit_ms == 3_600_000
    assert spec.restart.scope == {"worker": Scope.ALL}
    assert spec.progress.patterns == (r"it=(\d+)",)
    assert spec.checkpoint.uri == f"{BASE}/digits"
    assert spec.workdir == str(tmp_path)
    assert spec.preload == ("tensorflow",)


def test_a_lost_ps_may_be_restored_by_itself(tmp_path: Path) -> None:
    assert load(tmp_path, GOOD).restart.ps_recovery is PsRecovery.FULL
    partial = load(tmp_path, GOOD.replace("restart: {", "restart: {ps_recovery: partial, "))
    assert partial.restart.ps_recovery is PsRecovery.PARTIAL


def test_the_worker_of_a_coordinator_serves_unless_it_says_otherwise(tmp_path: Path) -> None:
    coordinated = GOOD.replace("strategy: async", "strategy: coordinator")
    assert load(tmp_path, GOOD).role("worker").serves is None
    assert load(tmp_path, coordinated).role("worker").serves is True
    trains = coordinated.replace("worker: {count: 2", "worker: {serves: false, count: 2")
    assert load(tmp_path, trains).role("worker").serves is False


def test_an_elastic_role_begins_with_the_most(tmp_path: Path) -> None:
    worker = load(tmp_path, GOOD.replace("worker: {count: 2", "worker: {min: 1, max: 4")).role("worker")
    assert (worker.count, worker.least, worker.most) == (4, 1, 4)
    fixed = load(tmp_path, GOOD).role("worker")
    assert (fixed.count, fixed.least, fixed.most) == (2, 0, 0)


def test_a_new_job_has_placeholders_in_its_environment(tmp_path: Path) -> None:
    spec = load(tmp_path, GOOD.replace("env: {A: x}", "env: {A: '{ps_hosts} {{x}}'}"))
    assert spec.templated
    assert spec.role("worker").env == {"A": "{ps_hosts} {{x}}"}


def test_a_variable_may_be_a_secret_of_the_job_or_of_a_role(tmp_path: Path) -> None:
    text = GOOD.replace("env: {A: x}", "env: {A: {secret: hf.token}}").replace("N: 0x10", "N: {secret: n}")
    spec = load(tmp_path, text)
    assert (spec.env, spec.secrets) == ({"STEP_LOG": "/tmp/steps"}, {"N": "n"})
    assert (spec.role("worker").env, spec.role("worker").secrets) == ({}, {"A": "hf.token"})
    assert spec.role("ps").secrets == {}


def test_a_master_is_the_chief_of_the_job(tmp_path: Path) -> None:
    spec = load(tmp_path, GOOD.replace("chief:", "master:").replace("{ps_hosts}", "{chief_hosts}"))
    assert spec.saver == TaskId("digits", "master", 0)


@pytest.mark.parametrize(
    ("given", "patterns"),
    [
        ("a/b.h5", ("a/b.h5",)),
        ("[backup/*.h5, 'm-{step}.json']", ("backup/*.h5", "m-{step}.json")),
    ],
)
def test_files_of_a_save(tmp_path: Path, given: str, patterns: tuple[str, ...]) -> None:
    spec = load(tmp_path, GOOD + f"checkpoint: {{pattern: {given}}}\n")
    assert spec.checkpoint.patterns == patterns


def test_a_pattern_that_can_name_no_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r":12: checkpoint\.pattern\[1\]: .* must be a path below"):
        load(tmp_path, GOOD + "checkpoint: {pattern: [ok.h5, /tmp/x.h5]}\n")


def test_a_name_given_beside_the_file_wins(tmp_path: Path) -> None:
    spec = load(tmp_path, GOOD, name="other")
    assert (spec.name, spec.checkpoint.uri) == ("other", f"{BASE}/other")


@pytest.mark.parametrize(
    ("command", "preload"),
    [
        ("[python3.11, x]", ("tensorflow",)),
        ("[/opt/venv/bin/python, x]", ("tensorflow",)),
        ("[sh, -c, 'set -e; exec python train.py']", ("tensorflow",)),
        ("[/usr/bin/env, X=1, python3.11, train.py]", ("tensorflow",)),
        ("[bash, run.sh]", ("tensorflow",)),
        ("[./run.sh]", ("tensorflow",)),
        ("[bash, other.sh]", ()),
        ("[bash, missing.sh]", ()),
        ("[sh, -c, pythonic && ./my-python]", ()),
        ("[./train, --engine, python]", ()),
        ("[./train]", ()),
        ("[pythonic]", ()),
    ],
)
def test_python_programs_and_wrappers_that_name_one_start_warm(
    tmp_path: Path, command: str, preload: tuple[str, ...]
) -> None:
    (tmp_path / "run.sh").write_text("#!/bin/sh\nset -e\nexec python train.py\n")
    (tmp_path / "other.sh").write_text("#!/bin/sh\n# no python here\n./train\n")
    text = f"name: a\nstrategy: plain\ncommand: {command}\nroles: {{worker: {{count: 1}}}}\n"
    assert load(tmp_path, text).preload == preload


def test_the_directory_of_the_program_is_relative_to_the_file(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    assert load(tmp_path, GOOD + "code: {dir: src}\n").workdir == str(tmp_path / "src")


HEAD = "name: a\nstrategy: plain\ncommand: [./x]\n"
ROLES = "roles: {worker: {count: 1}}\n"
ASYNC = "name: a\ncommand: [./x]\nstrategy: async\n"
NAME_RULE = "use 1 to 63 letters, digits, '_', '.' or '-', beginning with a letter or digit"

BAD = [
    (
        HEAD + ROLES + "env: {T: {}}\n",
        ["5: env.T.secret: missing; add `secret: NAME`, one of those that the"],
    ),
    (HEAD + ROLES + "env: {T: {secret: a b}}\n", ["5: env.T.secret: the name 'a b' is not a valid name"]),
    (HEAD + ROLES + "env: {T: {secret: [a]}}\n", ["5: env.T.secret: must be text, found a list"]),
    (
        HEAD + ROLES + "env: {T: {secret: a, file: b}}\n",
        ["5: env.T.file: unknown key; known here: secret"],
    ),
    (HEAD + ROLES + "env: {T: [a]}\n", ["5: env.T: must be text, found a list; put it in quotes"]),
    (
        HEAD + "roles: {worker: {count: 1, env: {T: {secrt: a}}}}\n",
        ["4: roles.worker.env.T.secrt: unknown key; did you mean"],
    ),
    *(
        (text, ["1: the file is empty; it must be a mapping of `key: value` lines", "1: name: missing; add"])
        for text in ("", "# a comment\n", "\ufeff", "---\n# a comment\n", "~\n")
    ),
    ("# a list\n- a\n", ["2: the file is a list; it must be a mapping of `key: value` lines"]),
    ("a\n", ["1: the file is one text; it must be a mapping of `key: value` lines"]),
    ("a: [\n", ["2: not valid YAML: expected the node content, but found '<stream end>'"]),
    (
        "name: a\n\tb: c\n",
        ["2: not valid YAML: found character '\\t' that cannot start any token; indent with spaces"],
    ),
    ("name: \x07\n", ["1: character 7 is not allowed; remove it"]),
    ("--- {a: 1}\n--- {b: 1}\n", ["2: a second document begins here; put each into a file of its own"]),
    (HEAD + ROLES + "comand: [x]\n", ["5: comand: unknown key; did you mean 'command'?"]),
    (
        HEAD + ROLES + "zzz: 1\n",
        ["5: zzz: unknown key; known here: checkpoint, code, command, container, data, env, environment,"],
    ),
    (
        HEAD.replace("name: a", "name: a/b") + ROLES,
        [f"1: name: the name 'a/b' is not a valid name: {NAME_RULE}"],
    ),
    (
        HEAD.replace("plain", "asink") + ROLES,
        ["2: strategy: 'asink' is not a strategy; use one of async, sync,"],
    ),
    (
        HEAD.replace("[./x]", "python x.py 'a b' 3") + ROLES,
        ['3: command: must be a list of words, not one string; write: [python, x.py, "a b", "3"]'],
    ),
    (HEAD.replace("[./x]", "[]") + ROLES, ["3: command: is empty; name the program"]),
    (
        HEAD.replace("[./x]", "[a, ~]") + ROLES,
        ["3: command[1]: must be text, found nothing; put it in quotes"],
    ),
    (
        "name: a\nstrategy: plain\n" + ROLES,
        ["3: roles.worker: has no command; add `command: [python, train.py]` to this role or to the job"],
    ),
    (
        "name: a\nstrategy: plain\nroles:\n  worker:\n    count: 1\n    command:\n",
        ["4: roles.worker: has no command; add `command: [python, train.py]` to this role or to the job"],
    ),
    (
        HEAD + "roles: {}\n",
        ["4: roles: there is no role, so nothing would run; add for example worker: {count: 1}"],
    ),
    (HEAD, ["1: roles: missing; add `roles:` with at least one role"]),
    (
        HEAD + "roles: {worker: {count: 1, after: [pss]}, ps: {count: 1}}\n",
        ["4: roles.worker.after[0]: no such role; did you mean 'ps'?"],
    ),
    (
        HEAD
        + "roles: {a: {count: 1, after: [b]}, b: {count: 1, after: [c]}, "
        + "c: {count: 1, after: [a]}}\n",
        ["these roles wait for each other: a after b after c after a; remove one `after`"],
    ),
    (
        HEAD + ROLES + "restart: {rules: {hangs: fail}}\n",
        ["5: restart.rules.hangs: no such cause; did you mean 'hang'?"],
    ),
    (
        HEAD + ROLES + "restart: {rules: {hang: stop}}\n",
        ["5: restart.rules.hang: must be one of restart, elsewhere, fail, ignore"],
    ),
    (HEAD + ROLES + "protocol: http\n", ["5: protocol: 'http' is not a TensorFlow server protocol"]),
    (HEAD + "roles: {worker: {}}\n", ["4: roles.worker.count: missing; add `count: 1`"]),
    (
        HEAD + "roles: {worker: {count: 1, min: 1, max: 2}}\n",
        ["4: roles.worker.count: a role has a count, or `min` and `max`; remove one of them"],
    ),
    (
        HEAD + "roles: {worker: {min: 1}}\n",
        ["4: roles.worker: has no max; add it, or write `count`"],
    ),
    (HEAD + "roles: {worker: {min: 3, max: 2}}\n", ["4: roles.worker.min: is more than max, 2"]),
    (
        HEAD + "roles: {chief: {min: 1, max: 1}}\n",
        ["4: roles.chief.min: a job has one chief; its count cannot change; write `count`"],
    ),
    (HEAD + "roles: {worker: {count: 0}}\n", ["4: roles.worker.count: must be at least 1"]),
    (
        HEAD + "roles: {worker: {count: two}}\n",
        ["4: roles.worker.count: must be a whole number, without quotes"],
    ),
    (
        HEAD + "roles: {worker: {count: 1.5}}\n",
        ["4: roles.worker.count: must be a whole number, without quotes"],
    ),
    (
        HEAD + "roles: {worker: {count: true}}\n",
        ["4: roles.worker.count: must be a whole number, without quotes"],
    ),
    (HEAD + "roles: {worker: 2}\n", ["4: roles.worker: must be a mapping of `key: value` lines"]),
    (
        HEAD + "roles:\n  worker: {count: 1}\n  worker: {count: 2}\n",
        ["6: roles.worker: given twice, first in line 5; keep one of the two"],
    ),
    (HEAD + "roles: {a/b: {count: 1}}\n", [f"4: roles.a/b: role 'a/b' is not a valid name: {NAME_RULE}"]),
    (
        HEAD + "roles: {w: {count: 1, resources: {memory: 2}}}\n",
        ["4: roles.w.resources.memory: 2 is not a size; write a number and a unit: 512MiB, 2GiB or 1.5GB"],
    ),
    (
        HEAD + "roles: {w: {count: 1, resources: {gpu: 1}}}\n",
        ["4: roles.w.resources.gpu: unknown key; did you mean 'gpus'?"],
    ),
    (
        HEAD + "roles: {w: {count: 1, resources: {cpus: -1}}}\n",
        ["4: roles.w.resources.cpus: must be at least 0"],
    ),
    (HEAD + "roles: {w: {count: 1, resources: {cpus: .inf}}}\n", ["4: roles.w.resources.cpus: must be a"]),
    (
        HEAD + "roles: {w: {count: 700}, v: {count: 700}}\n",
        ["4: roles: 1400 tasks in all; at most 1000 are possible"],
    ),
    (
        HEAD + "roles: {evaluator: {count: 1}}\n",
        ["4: roles: every role follows, so nobody trains; set follow: false for one of them"],
    ),
    (
        ASYNC + "roles: {worker: {count: 1}}\n",
        ["3: strategy: async needs the roles ps and worker; add ps: {count: 1} to roles"],
    ),
    (
        ASYNC.replace("async", "coordinator") + "roles: {ps: {count: 1}, worker: {count: 1}}\n",
        ["3: strategy: coordinator needs a chief, which runs the program; add chief: {count: 1} to roles"],
    ),
    (
        ASYNC.replace("async", "multiworker") + "roles: {ps: {count: 1}, worker: {count: 1}}\n",
        ["4: roles.ps: multiworker has no parameter servers; remove this role"],
    ),
    (
        ASYNC + "roles: {chief: {count: 2}, ps: {count: 1}, worker: {count: 1}}\n",
        ["4: roles.chief.count: there are 2 chiefs; set it to 1"],
    ),
    (
        ASYNC + "roles: {master: {count: 2}, ps: {count: 1}, worker: {count: 1}}\n",
        ["4: roles.master.count: there are 2 masters; set it to 1"],
    ),
    (
        ASYNC + "roles: {chief: {count: 1}, master: {count: 1}, ps: {count: 1}, worker: {count: 1}}\n",
        ["4: roles.master: a job has a chief or a master, not both; remove one of them"],
    ),
    (
        ASYNC.replace("async", "coordinator")
        + "roles: {master: {count: 1}, ps: {count: 1}, worker: {count: 1}}\n",
        ["4: roles.master: the TensorFlow strategy of coordinator takes no task named master; rename"],
    ),
    (
        ASYNC.replace("async", "multiworker") + "roles: {master: {count: 1}, worker: {count: 1}}\n",
        ["4: roles.master: the TensorFlow strategy of multiworker takes no task named master; rename"],
    ),
    (
        HEAD + ROLES + "env: {A: true, 'B C': x, TF_CONFIG: x, TFSUP_X: y}\n",
        [
            "5: env.A: must be text, found true; put it in quotes",
            "5: env.B C: 'B C' cannot be the name of a variable; use letters, digits and '_'",
            "5: env.TF_CONFIG: TF_CONFIG is set by tf-supervisor for each task",
            "5: env.TFSUP_X: TFSUP_X is set by tf-supervisor",
        ],
    ),
    (
        HEAD + ROLES + "checkpoint:\n  mode: native\n  keep: 1\n  verify: md5\n  keep_every: -1\n"
        "  keep_for: 3\n  lag_bound: soon\n  cadence: often\n  max_overhead: 0\n",
        [
            "6: checkpoint.mode: 'native' needs a TensorFlow that speaks hdfs:// itself, and no current",
            "7: checkpoint.keep: must be at least 2",
            "8: checkpoint.verify: must be one of size, crc, readback",
            "9: checkpoint.keep_every: must be at least 0",
            "10: checkpoint.keep_for: 3 is not a duration; write a number and a unit",
            "11: checkpoint.lag_bound: 'soon' is not a duration",
            "12: checkpoint.cadence: must be one of auto, off",
            "13: checkpoint.max_overhead: must be at least 0.01",
        ],
    ),
    *(
        (HEAD + ROLES + f"checkpoint: {{uri: '{uri}'}}\n", [f"5: checkpoint.uri: '{uri}'{said}"])
        for uri, said in (
            ("file:///a/../b", " must name an absolute directory, without '..'"),
            ("file://host/a", " names a host; write file:///DIR, with three slashes"),
            ("s3://a/b", ": its scheme is not understood; use hdfs://NAMESERVICE/DIR"),
            ("jobs/digits", ": its scheme is not understood"),
            ("hdfs:///a", " names no cluster; write hdfs://NAMESERVICE/DIR"),
            ("hdfs://nn:99999/a", ": 99999 is no port"),
            ("hdfs://nn/a/../b", " must name an absolute directory"),
            ("hdfs://nn/a%2e%2e/b", " has a '%' escape"),
            ("hdfs://me@nn/a", " names a user"),
            ("hdfs://nn/", " names the root; use a directory of its own"),
            ("hdfs://nn/a?b", " has a query"),
        )
    ),
    (
        HEAD + ROLES + "code: {dir: nowhere}\n",
        ["nowhere does not exist; name the directory of the program"],
    ),
    (HEAD + ROLES + "code: {dir: job.yaml}\n", ["5: code.dir: ", "job.yaml is not a directory; name"]),
    (HEAD + ROLES + "code: {dir: /}\n", ["5: code.dir: / is the root of the file system, far more"]),
    (HEAD + ROLES + "code: {dir: ~/}\n", ["5: code.dir: "]),
    (HEAD + ROLES + "code:\n", ["5: code: is empty; write for example {dir: .}"]),
    (HEAD + ROLES + "code: {dri: .}\n", ["5: code.dri: unknown key; did you mean 'dir'?"]),
    (
        HEAD + ROLES + "restart: {backoff: 3, scope: {wroker: task, worker: some}}\n",
        [
            "5: restart.backoff: 3 is not a duration; write a number and a unit: 500ms, 30s, 5m or 2h",
            "5: restart.scope.wroker: no such role; did you mean 'worker'?",
            "5: restart.scope.worker: must be task or all",
        ],
    ),
    (
        HEAD + ROLES + "restart: {ps_recovery: some}\n",
        ["5: restart.ps_recovery: must be one of full, partial"],
    ),
    (
        HEAD + ROLES + "restart: {ps_recovery: partial}\n",
        ["5: restart.ps_recovery: partial needs strategy async; with plain all variables must be of one"],
    ),
    (
        ASYNC + "roles: {ps: {count: 2}, worker: {count: 2}}\n"
        "restart: {ps_recovery: partial, scope: {ps: all}}\n",
        ["5: restart.ps_recovery: partial restarts a lost ps alone, and scope.ps says all; remove one"],
    ),
    (
        HEAD + ROLES + "progress: {patterns: ['(', 'x', '(a)(b)']}\n",
        [
            "5: progress.patterns[0]: not a regular expression: missing ), unterminated subpattern",
            "5: progress.patterns[1]: has 0 groups; it needs exactly one, around the step",
            "5: progress.patterns[2]: has 2 groups",
        ],
    ),
    (HEAD + ROLES + 'env: {A: "x\\ud800"}\n', ["5: env.A: must not contain half a character"]),
    (HEAD + ROLES + "preload: [a-b]\n", ["5: preload[0]: 'a-b' is not a Python module name"]),
    (
        HEAD.replace("[./x]", "[x, '{task_idx}', '{print}', '{foo_hosts}']") + ROLES,
        [
            "3: command[1]: unknown placeholder {task_idx}; did you mean {task_index}? Known are",
            "3: command[2]: unknown placeholder {print}; known are address, all_outputs, checkpoint_dir",
            "3: command[3]: unknown placeholder {foo_hosts}",
        ],
    ),
    (
        HEAD
        + "roles:\n  worker:\n    count: 1\n    env:\n      A: '{tsak_index}'\n"
        + "env: {B: '{x}', C: '${ps_hosts}'}\n",
        [
            "8: roles.worker.env.A: unknown placeholder {tsak_index}; did you mean {task_index}?",
            "9: env.B: unknown placeholder {x}; known are address, all_outputs, checkpoint_dir, chief_hosts,",
            "9: env.C: ${ps_hosts} would be a variable of the shell; write {ps_hosts}",
        ],
    ),
    (HEAD + ROLES + "env: !!python/object:os.system {A: x}\n", []),
    (
        HEAD + ROLES + "env: {A: !mine x}\n",
        ["5: env.A: cannot read 'x' with the tag '!mine'; remove the tag"],
    ),
    (HEAD + ROLES + "? [a]\n: b\n", ["a key must be one word; lists and mappings cannot be keys"]),
]


@pytest.mark.parametrize(("text", "expected"), BAD)
def test_each_mistake_has_one_clear_message(tmp_path: Path, text: str, expected: list[str]) -> None:
    if not expected:
        load(tmp_path, text)
        return
    with pytest.raises(UserError) as caught:
        load(tmp_path, text)
    lines = str(caught.value).splitlines()
    for part in expected:
        hits = [line for line in lines if part in line and line.startswith(f"{tmp_path}/job.yaml:")]
        assert len(hits) == 1, (part, lines)


def test_all_mistakes_come_at_once_in_the_order_of_the_file(tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        load(tmp_path, "nam: a\nstrategy: 3\ncommand: x\nroles: {w: {count: x}}\n")
    lines = str(caught.value).splitlines()
    numbers = [int(line.removeprefix(f"{tmp_path}/job.yaml:").split(":")[0]) for line in lines]
    assert numbers == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("name: a\nstrategy: plain\ncomand: [./x]\n" + ROLES, "comand: unknown key; did you mean 'command'?"),
        (
            "name: a\nstrategy: plain\nroles: {worker: {count: 1, comand: [x]}}\n",
            "roles.worker.comand: unknown key; did you mean 'command'?",
        ),
        ("nam: a\nstrategy: plain\ncommand: [./x]\n" + ROLES, "nam: unknown key; did you mean 'name'?"),
        (HEAD + "roles: {worker: {cout: 1}}\n", "roles.worker.cout: unknown key; did you mean 'count'?"),
        (
            HEAD + "roles: {worker: {min: 1, maxx: 2}}\n",
            "roles.worker.maxx: unknown key; did you mean 'max'?",
        ),
    ],
)
def test_a_key_that_is_misspelt_is_not_said_to_be_missing(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(UserError) as caught:
        load(tmp_path, text)
    (line,) = str(caught.value).splitlines()
    assert line.endswith(said)


def test_bombs_are_refused(tmp_path: Path) -> None:
    levels = "\n".join(f"l{n}: &l{n} [{', '.join([f'*l{n - 1}'] * 10)}]" for n in range(1, 9))
    with pytest.raises(UserError, match="more than 20000 values"):
        load(tmp_path, f"l0: &l0 [x]\n{levels}\n")
    with pytest.raises(UserError, match="nested more than 32 deep"):
        load(tmp_path, "a: " + "[" * 200 + "]" * 200)
    with pytest.raises(UserError, match="nested more than 32 deep"):
        load(tmp_path, "a: " + "[" * 5000)
    with pytest.raises(UserError, match="nested more than 32 deep"):
        load(tmp_path, "a: &a [*a]\n")
    with pytest.raises(UserError, match="larger than 256 KiB"):
        load(tmp_path, "#" * (MAX_BYTES + 1))


def test_files_that_are_no_job_file(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="no such file"):
        load_job_file(tmp_path / "none.yaml", checkpoint_base=BASE)
    with pytest.raises(UserError, match="a directory; name the file in it"):
        load_job_file(tmp_path, checkpoint_base=BASE)
    (tmp_path / "latin.yaml").write_bytes(b"name: a\nx: \xe9\n")
    with pytest.raises(UserError, match=r"latin.yaml:2: not UTF-8 text"):
        load_job_file(tmp_path / "latin.yaml", checkpoint_base=BASE)


KEYS = st.sampled_from(
    [
        "name",
        "strategy",
        "command",
        "roles",
        "worker",
        "ps",
        "chief",
        "count",
        "env",
        "resources",
        "memory",
        "cpus",
        "gpus",
        "labels",
        "checkpoint",
        "uri",
        "mode",
        "keep",
        "keep_for",
        "verify",
        "code",
        "dir",
        "restart",
        "backoff",
        "scope",
        "progress",
        "patterns",
        "preload",
        "follow",
        "max",
    ]
)
SCALARS = st.one_of(
    st.sampled_from(
        ["1", "a", "async", "~", "true", "2GiB", "30s", "-1", "1e400", ".nan", "0x1F", "'q'", '"{ps_hosts}"']
    ),
    st.from_regex(r"[ -~]{0,12}", fullmatch=True).map(repr),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4).map(lambda items: f"[{', '.join(items)}]"),
        st.dictionaries(KEYS, inner, max_size=4).map(
            lambda body: "{" + ", ".join(f"{key}: {value}" for key, value in body.items()) + "}"
        ),
    ),
    max_leaves=12,
)


def test_checkpoints_are_kept_and_verified_as_the_file_says(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(HEAD + ROLES)
    assert load_job_file(path, checkpoint_base=BASE).spec.checkpoint == CheckpointSpec(f"{BASE}/a")
    path.write_text(
        HEAD + ROLES + "checkpoint: {uri: 'hdfs://NameNode:08020//jobs/./digits/', verify: crc, keep: 3, "
        "keep_every: 1000, keep_for: 2d, lag_bound: 10m, fallback_after: 1h, adopt: /tmp/./work/, "
        "cadence: off, max_overhead: 0.5}\n"
    )
    assert load_job_file(path, checkpoint_base=BASE).spec.checkpoint == CheckpointSpec(
        "hdfs://namenode:8020/jobs/digits",
        keep=3,
        fallback_after_ms=3_600_000,
        verify=Verify.CRC,
        keep_every=1000,
        keep_for_ms=2 * 86_400_000,
        lag_bound_ms=600_000,
        adopt="/tmp/work",
        cadence="off",
        max_overhead=0.5,
    )
    path.write_text(HEAD + ROLES + "checkpoint: {uri: /jobs/digits, lag_bound: 0}\n")
    plain = load_job_file(path, checkpoint_base=None).spec.checkpoint
    assert (plain.uri, plain.lag_bound_ms) == ("file:///jobs/digits", None)


def refusal(path: Path) -> str:
    """The message of the refusal; that of the path itself when there is none."""
    try:
        load_job_file(path, checkpoint_base=BASE)
    except TfSupervisorError as error:
        return str(error)
    return str(path)


@given(body=st.dictionaries(KEYS, VALUES, max_size=6))
def test_no_document_gives_a_traceback(
    tmp_path_factory: pytest.TempPathFactory, body: dict[str, str]
) -> None:
    path = tmp_path_factory.mktemp("fuzz") / "job.yaml"
    path.write_text("".join(f"{key}: {value}\n" for key, value in body.items()))
    assert refusal(path).startswith(str(path))


@given(text=st.text(max_size=60))
def test_no_text_gives_a_traceback(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    path = tmp_path_factory.mktemp("fuzz") / "job.yaml"
    path.write_bytes(text.encode("utf-8", errors="surrogatepass"))
    assert refusal(path).startswith(str(path))


SERVING = """\
name: digits
strategy: plain
command: [python, train.py, "{output_dir}"]
roles: {worker: {count: 2}, exporter: {count: 1}}
serving: {%s}
"""


def test_serving_has_defaults_of_the_job(tmp_path: Path) -> None:
    spec = load(tmp_path, SERVING % "export: export/*").serving
    assert spec == ServingSpec("digits", "export/*", "worker")
    text = "model: net, export: 'a/b-*', role: exporter, check: call, keep: 1, servers: ['h:8500']"
    spec = load(tmp_path, SERVING % text).serving
    assert spec == ServingSpec("net", "a/b-*", "exporter", ModelCheck.CALL, 1, ("h:8500",))


@pytest.mark.parametrize(
    ("serving", "wrong"),
    [
        ("keep: 3", "serving.export: missing; add `export: export/*`"),
        ("export: /tmp/x", "serving.export: '/tmp/x' must be a path below {output_dir}: export/*"),
        ("export: 'export/{step}'", "write * where the number is"),
        ("export: '{checkpoint_dir}/e*/x'", "the first directory below {checkpoint_dir} must be a name"),
        ("export: '{checkpoint_dir}/../x'", "must be a path below {output_dir}: export/*"),
        ("export: e, check: run", "serving.check: must be one of checksums, load, call"),
        ("export: e, keep: 0", "serving.keep:"),
        ("export: e, role: chief", "serving.role: there is no role 'chief'; the roles are worker, exporter"),
        ("export: e, servers: [nowhere]", "'nowhere' is not an address"),
        ("export: e, servers: ['h:0']", "'h:0' has port 0; write the port"),
        ("export: e, model: a/b", "serving.model: the name 'a/b' is not a valid name"),
        ("export: e, base: /x", "serving.base"),
    ],
)
def test_wrong_values_of_serving_are_named(tmp_path: Path, serving: str, wrong: str) -> None:
    with pytest.raises(UserError) as caught:
        load(tmp_path, SERVING % serving)
    assert wrong in str(caught.value)
    assert "job.yaml:5" in str(caught.value)


def test_a_role_may_serve_the_model_that_the_job_publishes(tmp_path: Path) -> None:
    text = SERVING.replace("exporter: {count: 1}", 'exporter: {count: 1, command: [serve, "{model_base}"]}')
    spec = load(tmp_path, text % "export: e, model: net")
    assert spec.role("exporter").command == ("serve", "{model_base}")
    assert model_base(spec) == "/state/checkpoints/digits/models/net"
    with pytest.raises(UserError, match="model_base"):
        load(tmp_path, text.replace("serving: {%s}\n", ""))


def test_models_are_not_loaded_in_containers(tmp_path: Path) -> None:
    with pytest.raises(
        UserError, match=r"serving.check: load is not possible in containers; write check: checksums"
    ):
        load(tmp_path, SERVING % "export: e" + "container: {}\n")
    assert load(tmp_path, SERVING % "export: e, check: checksums" + "container: {}\n").serving is not None
