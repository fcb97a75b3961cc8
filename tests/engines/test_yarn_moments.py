"""Moments of YARN's client and of an ApplicationMaster that a real YARN has too seldom: `Moments.java`."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from supervisor.engines.yarn.java import HERE, SOURCES

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[2]
ATTEMPT = "1795705473932_0001"
ENDS = ("01_000001=0", "01_000001=1", "01_000002=0", "01_000002=1", "02_000001=0")
"""Attempt, number and exit code of containers. The ApplicationMaster that hears of them is of attempt 02."""
SURE = ("null", "null", "SUCCEEDED", "FAILED", "null")
"""What becomes of the application after each of `ENDS` in the first epoch; `null`: it goes on."""


@pytest.fixture(scope="module")
def happened(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, str], str]:
    """What each moment came to, and what the programs said."""
    java, javac = (_said(str(ROOT / "deploy" / "get-java.sh"), each).strip() for each in ("java", "javac"))
    jars = _said(str(ROOT / "deploy" / "hdfs" / "get-jars.sh"), "yarn").strip()
    made, classpath = tmp_path_factory.mktemp("classes"), f"{jars}/lib/*"
    sources = [*(str(HERE / each) for each in SOURCES), str(Path(__file__).with_name("Moments.java"))]
    _said(javac, "-nowarn", "-proc:none", "-cp", classpath, "-d", str(made), *sources)
    ends = [f"container_{epoch}{ATTEMPT}_{end}" for epoch in ("", "e02_") for end in ENDS]
    done = subprocess.run(
        [java, "-cp", f"{made}:{classpath}", "tfsup.yarn.Moments", *ends],
        env={"CONTAINER_ID": f"container_e02_{ATTEMPT}_02_000001", "TFSUP_ORDER_JSON": "hdfs://n/o 1 1"},
        capture_output=True,
        text=True,
        check=True,
    )
    lines = (line.partition(" ") for line in done.stdout.splitlines())
    return {what.removeprefix("container_"): came for what, _, came in lines}, done.stderr


def _said(*command: str) -> str:
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout


@pytest.mark.parametrize(("verb", "came"), [("notify", "0 [2]"), ("cancel", "0 [2]"), ("list", "2 [2]")])
def test_an_agent_that_ends_between_a_look_and_a_word_keeps_no_word_from_the_next(
    happened: tuple[dict[str, str], str], verb: str, came: str
) -> None:
    assert happened[0][verb] == came


def test_the_end_of_an_earlier_attempts_container_is_the_agents_unless_it_may_be_its_masters(
    happened: tuple[dict[str, str], str],
) -> None:
    came = {what: how for what, how in happened[0].items() if "=" in what}
    first = {f"{ATTEMPT}_{end}": how for end, how in zip(ENDS, SURE, strict=True)}
    # After a ResourceManager has begun anew the agent's container may have the number 1, too.
    later = {f"e02_{each}": how for each, how in first.items()} | {f"e02_{ATTEMPT}_01_000001=0": "SUCCEEDED"}
    assert came == first | later


def test_an_agent_that_could_not_be_told_is_told_at_the_next_notice(
    happened: tuple[dict[str, str], str],
) -> None:
    assert happened[1].count("the agent is told to move: YARN wants its container back") == 2
