"""The decisions of a pool on Spark, without Spark: options, reasons, the keeper's command, places."""

from __future__ import annotations

import asyncio
import re
import signal
import sys
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Self, cast

import pytest

from supervisor.api.client import ControlClient
from supervisor.api.description import describe
from supervisor.api.views import shown_job
from supervisor.cli.pool.driver import (
    Progress,
    goes_on,
    is_there,
    plain_interrupts,
    require_free,
    stop_interrupted,
)
from supervisor.cli.pool.placed import keep_to_pool, name_data
from supervisor.contract import keys
from supervisor.contract.desired import JobPhase
from supervisor.contract.errors import Conflict, NotFound, UserError
from supervisor.contract.job.spec import JobIntent, JobSpec, Strategy
from supervisor.contract.views.description import Description
from supervisor.contract.views.jobs import ClusterStatus, JobView, SubmitMode, SubmitRequest
from supervisor.contract.views.nodes import NodeList, NodeView
from supervisor.control.decide.plan import put
from supervisor.engines.spark.command import AgentTask, argv_of, environment_of
from supervisor.engines.spark.nodes import PoolNodes
from supervisor.engines.spark.options import Wanted, completed, size_of
from supervisor.engines.spark.reasons import reason_of
from supervisor.engines.spark.records import make_room, put_in_place, record_of, write_partition
from supervisor.wire.tensorflow_example_pb2 import Example, Feature
from tests.control.leader import Leader, other_job
from tests.engines.tfrecords import read_records
from tests.support.builders import job_spec, resources, role

WANTED = Wanted(pool="p", agents=3, file="/shared/pool.yaml", cpus=0, memory=0, gpus=0)
LOST = """An error occurred while calling z:org.apache.spark.api.python.PythonRDD.collectAndServe.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 1.0 failed 4 \
times, most recent failure: Lost task 0.3 in stage 1.0 (TID 7) (10.0.0.7 executor 3): ExecutorLostFailure \
(executor 3 exited caused by one of the running tasks) Reason: Command exited with code 137
Driver stacktrace:
\tat org.apache.spark.scheduler.DAGScheduler.failJobAndIndependentStages(DAGScheduler.scala:2898)
"""
RAISED = """An error occurred while calling z:org.apache.spark.api.python.PythonRDD.collectAndServe.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 0.0 failed 4 \
times, most recent failure: Lost task 0.3 in stage 0.0 (TID 3) (10.0.0.7 executor 0): \
org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "/spark/pyspark.zip/pyspark/worker.py", line 1100, in main
    func, profiler, deserializer, serializer = read_command(pickleSer, infile)
  File "/spark/pyspark.zip/pyspark/serializers.py", line 472, in loads
    return cloudpickle.loads(obj, encoding=encoding)
%s

\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator.handlePythonException(PythonRunner.scala:572)
"""


@pytest.mark.parametrize(
    ("options", "local", "found"),
    [
        ({}, False, (1, 1 << 30, 0, True)),
        ({"spark.executor.cores": "4", "spark.executor.memory": "6g"}, False, (4, 6 << 30, 0, False)),
        ({"spark.executor.cores": "4", "spark.task.cpus": "4"}, False, (4, 1 << 30, 0, True)),
        ({"spark.executor.cores": "4"}, True, (1, 1 << 30, 0, True)),
        ({"spark.task.resource.gpu.amount": "2"}, False, (1, 1 << 30, 2, True)),
        ({"spark.task.resource.gpu.amount": "0.5"}, False, (1, 1 << 30, 0, True)),
    ],
)
def test_an_agent_has_what_its_executor_has(
    options: dict[str, str], local: bool, found: tuple[int, int, int, bool]
) -> None:
    full = completed(WANTED, options, local=local)
    assert (full.cpus, full.memory, full.gpus, full.plain) == found


def test_more_processors_than_an_executor_has_are_refused() -> None:
    wanted = Wanted(pool="p", agents=1, file="/f", cpus=8, memory=0, gpus=0)
    with pytest.raises(UserError, match=r"cpus=8: an executor of this application has 4"):
        completed(wanted, {"spark.executor.cores": "4"}, local=False)
    assert not completed(wanted, {}, local=False).plain


@pytest.mark.parametrize(
    ("text", "size"),
    [("1g", 1 << 30), ("512m", 512 << 20), ("2048", 2 << 30), ("4GB", 4 << 30), ("8k", 8192)],
)
def test_sizes_as_spark_writes_them(text: str, size: int) -> None:
    assert size_of(text) == size


def test_what_is_no_size_is_refused() -> None:
    with pytest.raises(
        UserError, match=r"spark.executor.memory is '1\.5g', which is no size; write it as 4g"
    ):
        size_of("1.5g")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (LOST, "Lost task 0.3 in stage 1.0 (TID 7) (10.0.0.7 executor 3): ExecutorLostFailure"),
        (RAISED % "ValueError: it is wrong", "ValueError: it is wrong"),
        (
            RAISED % "ModuleNotFoundError: No module named 'supervisor'",
            "ModuleNotFoundError: No module named 'supervisor'; install tf-supervisor in the Python of the",
        ),
        ("", "Spark gives no reason"),
        ("\x1b[31mred\nline", "\\x1b[31mred"),
    ],
)
def test_the_reason_of_a_failed_job_is_a_line(text: str, reason: str) -> None:
    assert reason_of(text).startswith(reason)
    assert "\n" not in reason_of(text)


def test_the_keeper_hears_of_the_task_by_a_leash_alone() -> None:
    task = AgentTask(pool="p", id="app-1_2_1", file="/shared/pool.yaml", cpus=4, memory=1 << 30)
    assert argv_of(task, "host", 3) == [
        *(sys.executable, "-P", "-m", "supervisor.engines.keeper", "--leash"),
        *("--pool", "p", "--place", "host", "--id", "app-1_2_1_3", "--agent-config", "/shared/pool.yaml"),
        *("--cpus", "4", "--memory", str(1 << 30)),
    ]


def test_agents_get_no_secret_of_spark_and_the_gpus_that_it_gave() -> None:
    given = {
        "PATH": "/bin",
        "_SPARK_AUTH_SECRET": "x",
        "PYTHON_WORKER_FACTORY_SECRET": "x",
        "SPARK_HOME": "/s",
        "HADOOP_TOKEN_FILE_LOCATION": "/t",
    }
    assert environment_of(given, ("0", "3")) == {"PATH": "/bin", "CUDA_VISIBLE_DEVICES": "0,3"}
    assert environment_of({"CUDA_VISIBLE_DEVICES": "0"}, ()) == {"CUDA_VISIBLE_DEVICES": ""}


def test_a_job_of_a_pool_goes_to_its_agents() -> None:
    roles = {
        "chief": {},
        "ps": {"resources": {"cpus": 1, "labels": {"rack": "r7"}}},
        "worker": {"resources": {"labels": {"pool": "other"}}},
        "wrong": 1,
        "wrong-too": {"resources": []},
    }
    job: dict[str, object] = {"roles": roles}
    keep_to_pool("p", job)
    assert roles == {
        "chief": {"resources": {"labels": {"pool": "p"}}},
        "ps": {"resources": {"cpus": 1, "labels": {"rack": "r7", "pool": "p"}}},
        "worker": {"resources": {"labels": {"pool": "other"}}},
        "wrong": 1,
        "wrong-too": {"resources": []},
    }
    keep_to_pool("p", {"roles": ["wrong"]})


@pytest.mark.parametrize(
    ("job", "root"),
    [
        ({"name": "digits"}, "file:///store/digits-data"),
        ({"name": "digits", "checkpoint": {"uri": "hdfs://ns1/jobs/d"}}, "hdfs://ns1/jobs/d-data"),
    ],
)
def test_data_lies_beside_the_checkpoints(job: dict[str, object], root: str) -> None:
    job["data"] = {"train": "file:///elsewhere", "other": "file:///nfs/other"}
    name_data(("train", "test"), "file:///store/", job)
    assert job["data"] == {
        "train": f"{root}/train",
        "test": f"{root}/test",
        "other": "file:///nfs/other",
    }
    bare: dict[str, object] = {"name": "digits"}
    name_data((), None, bare)
    assert bare == {"name": "digits"}


def test_values_become_features() -> None:
    row = {
        "whole": True,
        "number": 2.5,
        "mixed": [1, 2.5],
        "text": "é",
        "raw": [b"a", bytearray(b"b")],
        "array": SimpleNamespace(tolist=lambda: [1, 2]),
        "vector": SimpleNamespace(toArray=lambda: SimpleNamespace(tolist=lambda: [0.5])),
        "price": Decimal("1.5"),
        "none": None,
    }
    made = Example.FromString(record_of(row)).features.feature
    assert {name: (each.WhichOneof("kind"), values(each)) for name, each in made.items()} == {
        "whole": ("int64_list", [1]),
        "number": ("float_list", [2.5]),
        "mixed": ("float_list", [1.0, 2.5]),
        "text": ("bytes_list", ["é".encode()]),
        "raw": ("bytes_list", [b"a", b"b"]),
        "array": ("int64_list", [1, 2]),
        "vector": ("float_list", [0.5]),
        "price": ("float_list", [1.5]),
        "none": (None, []),
    }
    assert record_of(SimpleNamespace(asDict=lambda: {"digit": 1})) == record_of({"digit": 1})
    assert record_of(b"as it is") == b"as it is"


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ((1, 2), "a row is a tuple: give a DataFrame, or an RDD of dictionaries, or of records as bytes"),
        ({"tags": {"a": 1}}, "column tags has values of dict: a feature is a number"),
        ({"pair": [1, "a"]}, "column pair has values of bytes, int"),
        ({"gap": [1, None]}, "column gap has values of NoneType, int"),
        ({"large": 1 << 63}, "column large: "),
        (
            {"large": [0.5, -1e39]},
            "column large: -1e+39 is too large for a feature, whose floats have 32 bits",
        ),
        ({"large": [0.5, 10**400]}, "is too large for a feature"),
        ({"text": "\ud800"}, "column text: 'utf-8' codec can't encode"),
    ],
)
def test_rows_that_are_no_records_are_refused(row: object, why: str) -> None:
    with pytest.raises(UserError, match=re.escape(why)):
        record_of(row)


def test_numbers_that_are_none_stay_so() -> None:
    found = Example.FromString(record_of({"a": [float("inf"), -float("inf"), float("nan"), 3.4028234e38]}))
    assert [str(each) for each in values(found.features.feature["a"])][:3] == ["inf", "-inf", "nan"]


def test_partitions_become_files_of_a_directory_that_takes_its_name_at_the_end(tmp_path: Path) -> None:
    uri = f"file://{tmp_path}/store"
    for content in (b"first", b"second"):
        fresh = asyncio.run(make_room(uri, "train"))
        rows: list[list[object]] = [[content, b""], [], [content * 3]]
        counts = [sum(write_partition(uri, fresh, index, part)) for index, part in enumerate(rows)]
        assert counts == [2, 0, 1]
        # Another attempt of a task finds the file of the first.
        assert list(write_partition(uri, fresh, 0, [b"other"])) == [1]
        asyncio.run(put_in_place(uri, fresh, "train", counts))
        files = sorted((tmp_path / "store" / "train").iterdir())
        assert [each.name for each in files] == ["part-00000.tfrecord", "part-00002.tfrecord"]
        assert [read_records(each) for each in files] == [[content, b""], [content * 3]]
    assert sorted(each.name for each in (tmp_path / "store").iterdir()) == [".tfsup-store", "train"]


def test_an_interrupt_is_python_s_own_while_a_job_is_followed() -> None:
    heard: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _frame: heard.append(number))
    try:
        with pytest.raises(KeyboardInterrupt), plain_interrupts():
            signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)
    assert heard == [signal.SIGINT]


def test_progress_is_told_when_it_is_new() -> None:
    lines: list[str] = []
    progress = Progress(lines.append)
    view = JobView("digits", "", "async", JobPhase.WAITING, 0, -1, 0, None, None, -1, 0, 0, 0, "", "nodes", 0)
    for each in (
        view,
        replace(view, rate=1.0),
        replace(view, phase=JobPhase.RUNNING, generation=1, step=7, waiting_for=""),
        replace(view, phase=JobPhase.RUNNING, generation=1, step=8, waiting_for=""),
    ):
        progress.show(each)
    assert lines == [
        "digits: waiting, generation 0, waiting for nodes",
        "digits: running, generation 1, step 7",
    ]


def test_runs_that_write_the_same_data_mix_no_files(tmp_path: Path) -> None:
    uri = f"file://{tmp_path}/store"
    first = asyncio.run(make_room(uri, "train"))
    assert sum(write_partition(uri, first, 0, [b"first"])) == 1
    second = asyncio.run(make_room(uri, "train"))
    # A task of the first run ends late. The second has removed what was there of it.
    assert sum(write_partition(uri, first, 1, [b"late"])) == 1
    assert sum(write_partition(uri, second, 1, [b"second"])) == 1
    with pytest.raises(Conflict, match=r"another run writes file:///.*/store/train at the same time"):
        asyncio.run(put_in_place(uri, first, "train", [1, 1]))
    asyncio.run(put_in_place(uri, second, "train", [0, 1]))
    (file,) = (tmp_path / "store" / "train").iterdir()
    assert read_records(file) == [b"second"]
    asyncio.run(make_room(uri, "train"))
    assert sorted(each.name for each in (tmp_path / "store").iterdir()) == [".tfsup-store", "train"]


async def test_data_of_a_job_that_the_cluster_would_refuse_is_not_replaced() -> None:
    leader = Leader()

    async def status(job: str) -> ClusterStatus:
        raise NotFound(f"there is no job {job}")

    client = cast(
        ControlClient, SimpleNamespace(validate=leader.job_service.submissions.validate, status=status)
    )
    theirs = other_job(leader.world.spec.checkpoint.uri)
    with pytest.raises(Conflict, match="belongs to job digits"):
        await require_free(client, SubmitRequest(theirs))
    # A leader looks at the store last.
    with pytest.raises(UserError, match="there is no target 'opps'"):
        await require_free(client, SubmitRequest(replace(theirs, notify=("opps",))))
    # The nodes of the pool are not there yet.
    waiting = job_spec((role("worker", need=resources(labels={"pool": "p"})),), Strategy.PLAIN, name="fresh")
    await require_free(client, SubmitRequest(waiting))


class Asked:
    """A cluster as a driver sees it. The job `digits` stops as soon as it is told to."""

    def __init__(self, *nodes: NodeView) -> None:
        self.leader = Leader()
        self.there = nodes
        self.stopped: list[tuple[str, bool]] = []

    def client(self) -> ControlClient:
        return cast(ControlClient, self)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    async def status(self, job: str) -> ClusterStatus:
        return ClusterStatus("c", "fast", 1, (), (shown_job(self.leader.world.snapshot(), job),))

    async def describe(self, job: str) -> Description:
        return describe(self.leader.world.snapshot(), job)

    async def nodes(self) -> NodeList:
        return NodeList(self.there)

    async def stop(self, job: str, *, save: bool) -> None:
        self.stopped.append((job, save))
        self.leader.end(JobPhase.STOPPED)

    def written(self, spec: JobSpec) -> None:
        """The job there has this file."""
        record = self.leader.record("digits")
        assert record is not None
        self.leader.world.write(put(keys.job_record("digits"), replace(record, spec=spec)))


async def test_the_job_to_resume_is_there_while_it_is_not_over_and_its_file_is_the_same() -> None:
    asked = Asked()
    client, spec = asked.client(), asked.leader.world.spec
    request = SubmitRequest(spec, SubmitMode.RESUME)
    assert await is_there(client, request)
    assert not await is_there(client, replace(request, mode=SubmitMode.NEW))
    assert not await is_there(client, replace(request, spec=replace(spec, name="other")))
    with pytest.raises(
        Conflict, match=r"job digits is \w+, and .* differ: env, env.LR. Stop it \(`supervisorctl stop dig"
    ):
        await is_there(client, replace(request, spec=replace(spec, env={"LR": "0.2"})))
    asked.leader.world.write(put(keys.intent("digits"), JobIntent(sizes={"worker": 3})))
    assert await is_there(client, request)
    asked.leader.end()
    assert not await is_there(client, replace(request, spec=replace(spec, env={"LR": "0.2"})))


async def test_a_job_with_values_that_no_client_can_compare_is_not_followed() -> None:
    """What is hidden may have changed, though it is hidden in both files."""
    asked = Asked()
    spec = asked.leader.world.spec
    hides = replace(spec, env={"PRIVATE_EPSILON": "4"}, secrets={"TOKEN": "hub"})
    asked.written(hides)
    with pytest.raises(
        Conflict, match=r"may be another one than this: these are hidden: env.PRIVATE_EPSILON\. S"
    ):
        await is_there(asked.client(), SubmitRequest(hides, SubmitMode.RESUME))
    named = replace(spec, secrets={"TOKEN": "hub"})
    asked.written(named)
    assert await is_there(asked.client(), SubmitRequest(named, SubmitMode.RESUME))


def test_a_driver_that_goes_on_with_a_job_says_which_data_it_does_not_write() -> None:
    data = {"train": "file:///store/digits-data/train", "other": "file:///nfs/other"}
    spec = replace(job_spec(), data=data)
    assert goes_on(spec, ()) == "digits is not over, and goes on"
    assert goes_on(spec, ("train",)) == (
        "digits is not over, and goes on. Its data stays, and `data=` is not written: "
        "file:///store/digits-data/train"
    )


@pytest.mark.parametrize(
    ("agent", "state", "submitted", "stops"),
    [
        ("app-1_7_1_1", "ready", False, False),
        ("app-1_7_1_1", "suspected", False, False),
        ("app-1_7_1_1", "lost", False, True),
        ("app-2_8_1_1", "ready", False, True),
        ("app-1_7_1_1", "ready", True, True),
    ],
)
async def test_an_interrupt_stops_no_job_of_a_driver_that_is_there(
    agent: str, state: str, submitted: bool, stops: bool
) -> None:
    labels = {"pool": "p", "agent": agent}
    views = [NodeView(name, state, "i", "h", 1, 1.0, 1, 0, labels=labels) for name in ("p.h", "other.h")]
    asked = Asked(*views)
    ours = PoolNodes(asked.client, "p", ["app-2_8_1_"])
    told = await stop_interrupted(asked.client, ours, "digits", submitted=submitted)
    assert asked.stopped == ([("digits", True)] if stops else [])
    assert told == (
        "digits has stopped; with resume=True it goes on from the beginning"
        if stops
        else "digits is not stopped, as it may be another driver's, which has agents in this pool (p.h): "
        "`supervisorctl stop digits` stops it"
    )


def values(feature: Feature) -> list[object]:
    """The values of a feature, of whichever kind."""
    kind = feature.WhichOneof("kind")
    return list(getattr(feature, kind).value) if kind else []
