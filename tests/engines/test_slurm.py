"""A real Slurm holds the contract of all engines."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from chaos.slurm import WITH_GPUS, SlurmCluster
from supervisor.contract.errors import Refused
from supervisor.engines import pools
from supervisor.engines.engine import Engine, Pool, State
from supervisor.engines.slurm import Slurm
from tests.engines.suite import EngineSuite, running
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow


class TestSlurm(EngineSuite):
    @pytest.fixture
    def engine(self, slurm_cluster: SlurmCluster) -> Iterator[Slurm]:
        found = Slurm(slurm_cluster.environment)
        yield found
        for name in {each.pool for each in pools.live(found)}:
            pools.end(found, name, 0)

    def origin(self) -> str:
        return f"slurm:tfsup:{os.geteuid()}"

    def no_such_queue(self) -> str:
        return "Invalid partition name specified"

    def test_a_step_that_slurm_kills_ends_its_agent_alone(
        self, engine: Engine, pool: Pool, slurm_cluster: SlurmCluster
    ) -> None:
        pools.start(engine, pool, 2)
        there = running(engine, 2)
        slurm_cluster.run("scancel", "--batch", "--signal=KILL", there[0].id)
        wait_until(lambda: [each.id for each in pools.live(engine)] == [there[1].id], "one has ended")
        ended = next(each for each in engine.agents("digits") if each.id == there[0].id)
        assert (ended.state, ended.word) == (State.ENDED, "FAILED")
        assert ended.reason

    def test_agents_are_on_machines_that_have_what_they_need(self, engine: Engine, pool: Pool) -> None:
        with pytest.raises(Refused, match="Invalid feature specification"):
            pools.start(engine, replace(pool, constraint="nowhere"), 1)
        pools.start(engine, replace(pool, constraint="on-n2|on-n3"), 1)
        pools.scale(engine, "digits", 3)
        assert {each.place for each in running(engine, 2)} == {"n2", "n3"}
        [waiting] = [each for each in pools.live(engine) if each.state is State.WAITING]
        wait_until(
            lambda: any(each.reason for each in engine.agents() if each.id == waiting.id), "it says why"
        )

    def test_agents_with_gpus_are_where_gpus_are_and_no_more_of_them(
        self, engine: Engine, pool: Pool, tmp_path: Path
    ) -> None:
        told = tmp_path / "gpus"
        program = f"""
import os, signal
with open("{told}", "a") as file:
    print(os.environ.get("CUDA_VISIBLE_DEVICES"), file=file)
signal.pause()
"""
        wanted = replace(pool, command=("python3", "-c", program))
        for gpus in ("3", "h100:1"):
            with pytest.raises(Refused, match="Requested node configuration is not available"):
                pools.start(engine, replace(wanted, gpus=gpus), 1)
        pools.start(engine, replace(wanted, gpus="1"), 1)
        wait_until(told.exists, "one has begun")
        [agent] = running(engine, 1)
        assert agent.place == WITH_GPUS
        pools.scale(engine, "digits", 2)
        wait_until(
            lambda: (
                {(each.state, each.reason) for each in pools.live(engine)}
                == {(State.RUNNING, ""), (State.WAITING, "Resources")}
            ),
            "one waits, and two machines have room and no GPU",
        )
        engine.notify([agent.id])
        wait_until(lambda: told.read_text().split() == ["0"] * 2, "the other has the GPU now")
        for gpus, given in (("a100:2", "0,1"), ("", "None")):
            pools.end(engine, "digits", 0)
            told.unlink()
            pools.start(engine, replace(wanted, gpus=gpus, constraint=f"on-{WITH_GPUS}"), 1)
            wait_until(lambda: told.exists() and told.read_text() != "", "the next one has begun")
            assert told.read_text().split() == [given]

    def test_another_users_job_is_no_agent(self, engine: Engine, slurm_cluster: SlurmCluster) -> None:
        line = "9999|RUNNING|n1|N/A|(null)|/tmp|tfsup:digits|None"
        subprocess.run(
            [
                *("setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", "sbatch"),
                *("--begin=now+1hour", "--chdir=/", "--job-name=tfsup:digits", f"--comment=x\n{line}"),
                *("--output=/dev/null", "--wrap=true"),
            ],
            env=slurm_cluster.environment,
            check=True,
        )
        assert "9999|RUNNING" in slurm_cluster.run("squeue", "--noheader", "--format=%k")
        assert pools.live(engine) == pools.live(engine, "digits") == []
        slurm_cluster.run("scancel", "--name=tfsup:digits")

    def test_an_agent_that_is_to_leave_is_not_queued_again(
        self, engine: Engine, tmp_path: Path, slurm_cluster: SlurmCluster
    ) -> None:
        stays = ("sh", "-c", "trap '' USR2; exec sleep 600")
        pools.start(engine, Pool(name="digits", command=stays, directory=str(tmp_path)), 1)
        [agent] = running(engine, 1)
        engine.notify([agent.id])
        assert "Requeue=0" in slurm_cluster.run("scontrol", "show", "job", agent.id)
