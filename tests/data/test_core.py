"""A job's data is brought to a node while a plan is prepared, and its tasks are told where it is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from agent.core.code import AGAIN_MS
from agent.core.compose import start_message
from agent.core.desired import recipe_of
from agent.core.events import BroughtIn, Joined, Observed
from agent.core.instructions import BringIn, Instruction, KeepData, Launch, OutputDirs, Recipe, Spawn
from agent.core.state import AgentState
from agent.core.step import step
from agent.host.task_users import OneUser
from agent.logs.steps import FILES, WAITING_MS, reading
from agent.runtimes.docker_mounts import Bind, binds
from agent.runtimes.docker_node import DockerNode
from recovery.policy.hangs import LEAST_WORK_MS, WAITS, Hang, Running, bounds_of, describe, judge
from supervisor.adapters.files.jobfile import load_job_file
from supervisor.contract import codec
from supervisor.contract.bounds import MAX_PATH_LENGTH
from supervisor.contract.desired import Assignment, ClusterSpec, JobPhase, JobSwitch, RoleAddresses
from supervisor.contract.errors import IncompatibleRecord, UserError
from supervisor.contract.ids import TaskId
from supervisor.contract.job.bounds import objections
from supervisor.contract.job.data import as_user
from supervisor.contract.job.spec import JobRecord, JobSpec, ProgressSpec
from supervisor.contract.observed import NodeResources, Sign, TaskBeat
from supervisor.contract.timing import FAST
from supervisor.control.decide.nodes.offers import grouped
from supervisor.control.decide.nodes.placement import Before, place
from tests.agent.core import ME, SETTINGS
from tests.support.builders import job_spec, offer

DATA = {"train": "hdfs://ns1/data/digits", "eval_2": "file:///data/eval"}
ORDER = Assignment(
    *("job", "u", "worker", 0, 1, "p1", "n1", "life1", 1, ("python", "x.py", "{data.train}/a"), "/w"),
    data=DATA,
    env={"EVAL": "{data.eval_2}"},
    templated=True,
)
SWITCH = JobSwitch("job", "u", JobPhase.WAITING, 0)
USED = frozenset({("u", DATA["train"]), ("u", DATA["eval_2"])})
FILE = """\
name: digits
command: [python, train.py, "{data.train}"]
strategy: plain
roles: {worker: {count: 1}}
"""


class Core:
    """The core of an agent with one task to prepare."""

    def __init__(self, order: Assignment = ORDER) -> None:
        self.state = AgentState(SETTINGS, "life1", "boot", FAST.d_ms)
        self.now_ms = 1000
        self.give(Joined(ME, 1000, adopt=False, d_ms=FAST.d_ms))
        self.out = self.give(Observed((order,), (SWITCH,), self.now_ms))

    def give(self, event: Joined | Observed | BroughtIn, after_ms: int = 0) -> list[Instruction]:
        self.now_ms += after_ms
        self.state, out = step(self.state, [event], self.now_ms)
        return list(out)


def load(directory: Path, text: str) -> JobSpec:
    path = directory / "job.yaml"
    path.write_text(text)
    return load_job_file(path, checkpoint_base="file:///state").spec


def test_a_launcher_is_made_when_the_data_is_there_and_it_is_asked_for_until_then() -> None:
    core = Core()
    wanted = BringIn("p1", None, data=DATA, job="job", job_uuid="u")
    assert wanted in core.out
    assert KeepData(USED) in core.out
    assert not [each for each in core.out if isinstance(each, Spawn)]
    core.give(BroughtIn("p1", "HDFS is away", unknown=True))
    again = core.give(Observed((ORDER,), (SWITCH,), core.now_ms), after_ms=AGAIN_MS)
    assert wanted in again
    assert [each for each in core.give(BroughtIn("p1")) if isinstance(each, Spawn)]


def test_data_of_a_job_that_has_ended_may_go() -> None:
    core = Core()
    over = replace(SWITCH, phase=JobPhase.STOPPED)
    assert KeepData(frozenset()) in core.give(Observed((ORDER,), (over,), core.now_ms))


def test_a_task_is_told_by_placeholders_and_by_variables() -> None:
    spec = ClusterSpec("job", 1, "p1", (RoleAddresses("worker", ("h:1",)),))
    launch = Launch("l", ORDER, spec, None, "r", warm=True, address="h:1")
    there = OutputDirs(data={"train": "/ckpt/.data/x/data", "eval_2": "/data/eval"})
    message = start_message(launch, "life1", "/a", "/c", outputs=there)
    assert message.argv == ("python", "x.py", "/ckpt/.data/x/data/a")
    assert message.env["EVAL"] == "/data/eval"
    assert message.env["TFSUP_DATA_TRAIN"] == "/ckpt/.data/x/data"
    assert message.env["TFSUP_DATA_EVAL_2"] == "/data/eval"


def test_only_a_container_is_made_anew_for_other_data() -> None:
    other = replace(ORDER, data={})
    assert recipe_of(ORDER, "process") == recipe_of(other, "process")
    assert recipe_of(ORDER, "docker") != recipe_of(other, "docker")


def test_a_container_shows_its_data_at_the_same_paths_and_for_reading_alone(tmp_path: Path) -> None:
    homes, tasks, attempts, checkpoints, locks = (tmp_path / each for each in "htacl")
    socket, user = str(tmp_path / "none"), OneUser(1, 1)
    node = DockerNode("c", "n", socket, "", user, homes, tasks, attempts, checkpoints, locks)
    mounted, plain = node.checkpoints / ".data" / "x", tmp_path / "plain"
    for each in (mounted, plain, node.checkpoints / "u", node.attempts / "u", tmp_path / "w"):
        each.mkdir(parents=True)
    recipe = Recipe("job", "u", "/", "python", data={"a": str(mounted), "b": str(plain)})
    found = {each.target: each for each in binds("l", recipe, node)}
    assert found[str(plain)] == Bind(str(plain), str(plain))
    assert replace(found[str(mounted)], slave=False) == Bind(str(mounted), str(mounted))
    with pytest.raises(UserError, match="No such file"):
        binds("l", replace(recipe, data={"a": str(tmp_path / "none")}), node)


def test_a_task_that_waits_for_its_data_works() -> None:
    late = TaskBeat("job/worker:0@1.1", signs=(Sign("step", 90_000, 100), Sign(FILES, 90_000)))
    told = (Sign("step", 90_000, 100), Sign(FILES, 12_000), Sign("data", 12_000))
    assert reading(late, 12_000).signs == told
    assert reading(late, -1) == reading(late, LEAST_WORK_MS) == late
    unknown = TaskBeat("job/worker:0@1.1")
    assert reading(unknown, 0) == unknown


def test_all_waits_for_data_together_count_as_work_for_a_bounded_time() -> None:
    """A NameNode is away, and a program tries for ever: one call waits for 30 s, later ones for 1 s."""
    task = TaskId("job", "worker", 0)

    def hang_after(now_ms: int) -> Hang | None:
        waited_ms = max(0, now_ms % 40_000 - 28_000)
        signs = (Sign("step", now_ms, 100), Sign("cpu", now_ms, 0), Sign(FILES, now_ms))
        running = Running(task, reading(TaskBeat("job/worker:0@1.1", signs=signs), waited_ms).signs)
        assert WAITS in describe(running)
        return judge((running,), bounds_of((running,), ProgressSpec(), None, hung_before=0)).hang

    hung_ms = next(now_ms for now_ms in range(0, 3_600_000, 500) if hang_after(now_ms) is not None)
    assert hung_ms == WAITING_MS


def test_only_nodes_that_can_show_it_take_the_job() -> None:
    spec = replace(job_spec({"worker": 1}), data={"a": DATA["train"]})
    files = replace(spec, data={"a": DATA["eval_2"]})

    def placed(spec: JobSpec, *has: tuple[str, ...]) -> tuple[list[str], str]:
        offers = []
        for index, kinds in enumerate(has):
            one = offer(f"n{index}")
            offers.append(one._replace(resources=replace(one.resources, data=kinds)))
        result = place(spec, grouped(offers), Before())
        return [each.node for each in result.placements.values()], result.waiting_for

    assert placed(spec, (), ("file",), ("file", "hdfs")) == (["n2"], "")
    assert placed(files, (), ("file",)) == (["n1"], "")
    nodes, why = placed(spec, (), ("file",))
    assert nodes == []
    assert "needs a node that can show `data`" in why
    assert NodeResources(1, 1).data == ()


def test_an_earlier_release_refuses_the_record() -> None:
    raw = codec.encode(ORDER)
    assert b"Assignment+data" in raw
    raw = raw.replace(b"Assignment+data", b"Assignment+newer")
    with pytest.raises(IncompatibleRecord):
        codec.decode(Assignment, raw)
    assert b"+data" not in codec.encode(replace(ORDER, data={}))


def test_a_job_file_names_its_data(tmp_path: Path) -> None:
    text = FILE + "data: {train: 'hdfs://ns1/data/digits/', other: /data/x}\n"
    spec = load(tmp_path, text)
    assert spec.data == {"train": "hdfs://ns1/data/digits", "other": "file:///data/x"}


@pytest.mark.parametrize(
    ("data", "says"),
    [
        ("{Train: /d}", "'Train' is no name of data"),
        ("{train: s3://a/b}", "its scheme is not understood"),
        ("{train: 'hdfs://ann@ns1/d'}", "names a user"),
        ("{train: data/x}", "its scheme is not understood"),
        ("{tran: /d}", "did you mean {data.tran}?"),
        ("{train: 1}", "train"),
    ],
)
def test_what_is_wrong_with_it_is_told_with_its_line(tmp_path: Path, data: str, says: str) -> None:
    with pytest.raises(UserError) as error:
        load(tmp_path, f"{FILE}data: {data}\n")
    assert says in str(error.value)
    assert "job.yaml:" in str(error.value)


def test_a_user_of_hdfs_is_named_in_places_of_hdfs_alone() -> None:
    assert as_user(DATA, "ann") == {**DATA, "train": "hdfs://ann@ns1/data/digits"}
    record = JobRecord(replace(job_spec(), data=DATA), "u", 0, hdfs_user="ann")
    assert record.store_uri == "file:///checkpoints/digits"
    assert record.hdfs_uri == "hdfs://ann@ns1/data/digits"
    assert JobRecord(job_spec(), "u", 0).hdfs_uri == ""


def test_a_leader_holds_other_clients_to_the_bounds() -> None:
    many = {f"n{number}": "file:///d" for number in range(17)}
    for wrong in (many, {"A": "file:///d"}, {"a": "file:///" + "d" * MAX_PATH_LENGTH}):
        assert [each.where[0] for each in objections(replace(job_spec(), data=wrong))] == ["data"]
