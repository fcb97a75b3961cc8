"""Digits on agents in a real Spark: whatever ends, training goes on, and nothing outlives the driver."""

from __future__ import annotations

import signal
import sys

import psutil
import pytest

from tests.cli.saving import SavingShell
from tests.cli.shell import ROOT
from tests.engines.pool_shell import JOB, ours
from tests.engines.spark_shell import SparkShell

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
COUNTS = f"""
name: counts
command: [{sys.executable}, -c, "print('step 1')"]
strategy: plain
roles: {{worker: {{count: 3}}}}
preload: []
restart: {{max: 0}}
"""
RECORDS = f"""
name: records
command: [{sys.executable}, train.py, --records, "{{data.train}}/*.tfrecord", --steps, "60"]
code: {{dir: {ROOT}/examples/digits_records}}
strategy: plain
roles: {{worker: {{count: 1}}}}
preload: [tensorflow]
env: {{TF_CPP_MIN_LOG_LEVEL: "2", TF_ENABLE_ONEDNN_OPTS: "0"}}
"""
FAILS = COUNTS.replace("counts", "fails").replace("print('step 1')", "raise ValueError('it is wrong')")


def test_training_survives_what_spark_does_and_nothing_outlives_the_driver(shell: SparkShell) -> None:
    driver = shell.drive(JOB)
    try:
        shell.wait(shell.all_ready, "three agents join")
        shell.wait(lambda: shell.works("status", "digits"), "the job is there")
        shell.trains_on("the beginning")
        assert {str(each["node"]).partition(".")[0] for each in shell.tasks().values()} == {"p"}
        for task in ("worker:0", "ps:0"):
            attempt = psutil.Process(int(str(shell.tasks()[task]["pid"])))
            shell.survives(task, attempt.kill)

        # An executor dies with its agent's leash: the keeper ends the node, and D is not waited for.
        node = str(shell.tasks()["ps:0"]["node"])
        lost = shell.there()[node]["incarnation"]
        shell.survives("executor", shell.executor_of(node).kill)
        shell.wait(shell.all_ready, "another agent has come")
        assert lost not in {each["incarnation"] for each in shell.there().values()}

        # Spark says beforehand that this one will go.
        node = str(shell.tasks()["ps:0"]["node"])
        leaving = shell.there()[node]["incarnation"]
        step = int(str(shell.job()["step"]))
        shell.executor_of(node).send_signal(signal.SIGPWR)
        shell.wait(lambda: shell.tasks()["ps:0"]["node"] != node, "the parameter server has moved")
        moved = shell.moved("digits")
        assert shell.base_of(moved) >= step, "it was saved after Spark's word"
        shell.trains_on("decommissioned")
        shell.wait(shell.all_ready, "its agent has moved")
        assert leaving not in {each["incarnation"] for each in shell.there().values()}

        driver.kill()
        driver.wait()
        shell.wait(lambda: ours(shell.directory) == [], "no process of the pool is left")
        shell.all_given_back()
    finally:
        driver.kill()
        driver.wait()


def test_a_driver_gets_the_end_of_its_jobs_and_leaves_nothing(shell: SparkShell) -> None:
    driver = shell.drive(RECORDS, RECORDS, COUNTS, FAILS, JOB)
    try:
        shell.wait(lambda: shell.works("status", "digits"), "the third job is there")
        shell.trains_on("the beginning")
        driver.send_signal(signal.SIGINT)
        shell.ended(driver)
    finally:
        driver.kill()
        driver.wait()
    shell.all_given_back()
    told = shell.told()
    assert "/records-data/train has 1797 records" in told
    assert "ended: records succeeded at step 60" in told
    assert "not done: Conflict: there is a job records, which is succeeded, so its data is not" in told
    assert "ended: counts succeeded" in told
    assert "not done: JobNotDone: fails is failed" in told
    assert "| ValueError: it is wrong" in told
    assert "digits has stopped; with resume=True it goes on from step" in told
    assert told.index("interrupted") < told.index("pool p has ended; Spark has everything back")
    assert told.splitlines()[-1] == "left"


def test_a_job_saves_before_spark_takes_its_executor_and_before_its_driver_is_interrupted(
    shell: SparkShell,
) -> None:
    saving = SavingShell(shell.cluster, shell.directory)
    saving.save_when_asked()
    driver = shell.drive(saving.job.read_text(), options=("--agents", "2"))
    try:
        shell.wait(lambda: len(shell.there()) == 2, "two agents join")
        shell.wait(lambda: shell.works("status", "count") and saving.step() > 20, "it makes steps")
        assert saving.list() == ()
        before, node = saving.step(), saving.nodes().pop()
        shell.executor_of(node).send_signal(signal.SIGPWR)
        shell.wait(lambda: saving.base() != "", "it went on from a checkpoint")
        moved = shell.moved("count")
        assert shell.base_of(moved) >= before, "it was saved after Spark's word"
        assert saving.nodes() != {node}

        shell.wait(lambda: saving.step() > shell.base_of(moved) + 20, "it makes new steps")
        before = saving.step()
        driver.send_signal(signal.SIGINT)
        shell.ended(driver)
    finally:
        driver.kill()
        driver.wait()
    saved = max(each.ref.step for each in saving.list())
    assert saved >= before
    assert f"count has stopped; with resume=True it goes on from step {saved}" in shell.told()
    shell.all_given_back()


def test_a_driver_alone_is_an_executor_too_and_learns_why_no_agent_comes(idle: SparkShell) -> None:
    driver = idle.drive(COUNTS, master="local[2]", options=("--agents", "1"))
    try:
        idle.ended(driver)
        assert "ended: counts succeeded" in idle.told()
        idle.wait(lambda: ours(idle.directory) == [], "no process of the pool is left")
        limited = ("--agents", "1", "--option", "spark.executor.pyspark.memory=1g")
        driver = idle.drive(COUNTS, master="local[2]", options=limited)
        idle.ended(driver)
    finally:
        driver.kill()
        driver.wait()
    assert "not done: NotFound: pool p has no agent: its keeper on" in idle.told()
    assert "spark.executor.pyspark.memory limits the address space" in idle.told()
