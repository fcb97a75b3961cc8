"""Agents in an application whose executors come and go as its tasks need them, on a real Spark."""

from __future__ import annotations

import time

import pytest

from tests.engines.spark_shell import SparkShell

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
IDLE_S = 3
DYNAMIC = {
    "enabled": "true",
    "shuffleTracking.enabled": "true",
    "minExecutors": "0",
    "executorIdleTimeout": f"{IDLE_S}s",
    "schedulerBacklogTimeout": "1s",
}
OPTIONS = tuple(
    word
    for name, value in DYNAMIC.items()
    for word in ("--option", f"spark.dynamicAllocation.{name}={value}")
)


def test_executors_come_for_agents_stay_while_they_train_and_go_after_them(shell: SparkShell) -> None:
    leave = shell.directory / "leave"
    driver = shell.drive(shell.counting(), options=(*OPTIONS, "--rows", "100", "--stay", str(leave)))
    try:
        # The rows have an executor of their own, which holds the room of the third agent until it is idle.
        shell.wait(shell.all_ready, "three agents join")
        assert "/count-data/train has 100 records" in shell.told()
        executors = {name: shell.executor_of(name).pid for name in shell.there()}
        shell.wait(lambda: shell.executors() == set(executors.values()), "no other executor is left")
        agents = shell.incarnations()

        began = time.monotonic()
        shell.wait(lambda: shell.view("count").step >= 0, "the job makes steps")
        shell.wait(lambda: time.monotonic() > began + 3 * IDLE_S, "executors would be idle by now")
        step = shell.view("count").step
        shell.wait(lambda: shell.view("count").step > step + 20, "it trains on")
        assert (shell.executors(), shell.incarnations()) == (set(executors.values()), agents)

        # An agent that ends by itself comes again on its executor: there is room for no other.
        node = next(iter(shell.there().keys() - {each.node for each in shell.view("count").tasks}))
        shell.keeper_of(node).terminate()
        shell.wait(lambda: shell.all_ready() and shell.incarnations() != agents, "its agent comes again")
        assert shell.executors() == set(executors.values())

        agents = shell.incarnations()
        (node,) = {each.node for each in shell.view("count").tasks}
        shell.executor_of(node).kill()
        shell.wait(
            lambda: shell.all_ready() and shell.incarnations() != agents,
            "another executor has come",
        )
        step = shell.view("count").step
        shell.wait(lambda: shell.view("count").step > step + 20, "it trains on")

        shell("stop", "count")
        shell.wait(lambda: "pool p has ended" in shell.told(), "the block ends")
        shell.wait(lambda: shell.executors() == set(), "all executors are given back")
        assert len(shell.spark.told()["activeapps"]) == 1
        leave.touch()
        shell.ended(driver)
    finally:
        driver.kill()
        driver.wait()
    shell.all_given_back()
