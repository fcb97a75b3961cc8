"""A Spark application, as far as a pool needs it: the only module here that knows pyspark's driver.

Each agent is a Spark job of one task, in a job group of its own.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial

from py4j.protocol import Py4JError
from pyspark import RDD, InheritableThread, SparkContext
from pyspark.errors import PySparkException
from pyspark.resource import ResourceProfile, ResourceProfileBuilder, TaskResourceRequests
from pyspark.sql import SparkSession

from supervisor.contract.errors import Refused, Unreachable, UserError
from supervisor.engines.spark.command import GPU, AgentTask, Ended
from supervisor.engines.spark.options import Wanted
from supervisor.engines.spark.reasons import reason_of
from supervisor.engines.spark.task import keep

_FAILED = (Py4JError, PySparkException, OSError, AttributeError)
"""Errors of a job, and of an application that has ended: of such a one pyspark raises the last, too."""


def context_of(spark: SparkSession | SparkContext) -> SparkContext:
    """The context of a session. Raises UserError for a session of Spark Connect."""
    try:
        context = getattr(spark, "sparkContext", spark)
    except PySparkException:
        context = spark
    if not hasattr(context, "parallelize"):
        raise UserError(
            f"spark is a {type(spark).__module__}.{type(spark).__name__}: give the SparkSession or "
            "SparkContext of a driver; one of Spark Connect cannot run agents"
        )
    return context


class SparkApplication:
    """Implements `agents.Application` for the application of a driver."""

    def __init__(self, context: SparkContext, wanted: Wanted) -> None:
        self._context = context
        self._profile = _profile_of(wanted)
        self.id = str(context.applicationId)

    def thread(self, target: Callable[[], None], name: str) -> threading.Thread:
        """A thread with one of its own in the JVM, which knows the group of the thread's jobs."""
        found = InheritableThread(target=target, name=name, daemon=True)
        assert isinstance(found, threading.Thread)
        return found

    def run(self, group: str, text: str, task: AgentTask) -> Ended:
        """Run an agent's job to its end."""
        try:
            # A cancelled task goes on until Spark has killed its Python worker. With interruptOnCancel its
            # processor could be given to another task before.
            self._context.setJobGroup(group, text, interruptOnCancel=False)
            ended: Ended
            (ended,) = self._place().mapPartitions(partial(keep, task)).collect()
        except _FAILED as error:
            if self._context._jsc is None:
                raise Unreachable("the Spark application has ended") from error
            raise Refused(reason_of(str(error))) from error
        return ended

    def cancel(self, group: str) -> None:
        """Have Spark end the job of a group, if there is one."""
        try:
            self._context.cancelJobGroup(group)
        except _FAILED as error:
            raise Unreachable("the Spark application has ended") from error

    def runs(self, group: str) -> bool:
        """Whether the task of a group runs; else it waits for room."""
        try:
            return self._stage(group) is not None
        except _FAILED:
            return False

    def is_decommissioned(self, group: str) -> bool:
        """Whether the executor of a group's task is to end."""
        try:
            stage = self._stage(group)
            if stage is None:
                return False
            java = self._context._jsc.sc()
            tasks = java.statusStore().taskList(*stage, 100)
            found = [tasks.apply(each) for each in range(tasks.size())]
            executors = [each.executorId() for each in found if each.status() == "RUNNING"]
            return not all(java.schedulerBackend().isExecutorActive(each) for each in executors)
        except _FAILED:
            return False

    def has_room_beside(self, cpus: int) -> bool:
        """Whether agents that hold so many processors leave one for another job."""
        options = self._context.getConf()
        if options.get("spark.dynamicAllocation.enabled") == "true":
            return True
        executors = self._context._jsc.sc().statusStore().executorList(True)
        cores = sum(executors.apply(each).totalCores() for each in range(executors.size()))
        return bool(cores - cpus >= int(options.get("spark.task.cpus", "1")))

    def _place(self) -> RDD:
        """One partition, with what an agent needs of Spark."""
        rdd = self._context.parallelize([0], 1)
        return rdd if self._profile is None else rdd.withResources(self._profile)

    def _stage(self, group: str) -> tuple[int, int] | None:
        """The stage, and its attempt, that runs a group's task now; None while it waits."""
        tracker = self._context.statusTracker()
        for job in tracker.getJobIdsForGroup(group):
            info = tracker.getJobInfo(job)
            for each in info.stageIds if info is not None else ():
                stage = tracker.getStageInfo(each)
                if stage is not None and stage.numActiveTasks:
                    return each, stage.currentAttemptId
        return None


def _profile_of(wanted: Wanted) -> ResourceProfile | None:
    """The resource profile of all agents; None if they are tasks like any other.

    With dynamic allocation each profile gets executors of its own, however equal another one is.
    """
    if wanted.plain:
        return None
    needs = TaskResourceRequests().cpus(wanted.cpus)
    if wanted.gpus:
        needs = needs.resource(GPU, wanted.gpus)
    return ResourceProfileBuilder().require(needs).build
