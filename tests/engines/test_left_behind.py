"""Agents that an engine has lost: which ones `supervisorctl pool` dismisses, and whose it leaves alone."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Self

import pytest
from click.testing import CliRunner

from supervisor.cli.main import cli
from supervisor.cli.options import Globals
from supervisor.cli.pool import commands, left_behind, tokens
from supervisor.contract.errors import Conflict, NotFound
from supervisor.contract.views.nodes import NodeView
from supervisor.engines import pools
from supervisor.engines.engine import Pool, PoolAgent, State
from tests.engines.fake_engine import FakeEngine

PROGRAM = (sys.executable, "-c", "import signal; signal.pause()")
HERE = FakeEngine().origin()
SPARK_ON_YARN = "application_1764000000000_0007_1_1_0"


def agent_of(ident: str, state: State, place: str = "") -> PoolAgent:
    return PoolAgent(id=ident, pool="p", state=state, word=state.value, place=place)


def node_of(ident: str, place: str, *, life: str = "life", pid: int = 7, origin: str = HERE) -> NodeView:
    labels = {"pool": "p", "agent": ident, "place": place, "origin": origin}
    return NodeView(f"p.{place}", "ready", life, "h", 1, 1.0, 1, 0, labels=labels, pid=pid)


@dataclass
class Cluster:
    """A cluster that ends agents as soon as it is told to. `before` is done right before a dismissal."""

    there: list[NodeView] = field(default_factory=list)
    dismissed: list[tuple[str, str]] = field(default_factory=list)
    before: Callable[[], object] | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    async def nodes(self) -> SimpleNamespace:
        return SimpleNamespace(nodes=list(self.there))

    async def dismiss(self, node: str, incarnation: str) -> None:
        before, self.before = self.before, None
        if before is not None:
            before()
        if incarnation not in {each.incarnation for each in self.there if each.node == node}:
            raise Conflict(f"node {node} changed at the same moment")
        self.dismissed.append((node, incarnation))
        self.there = [replace(each, pid=0) if each.node == node else each for each in self.there]


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    made = Cluster()
    target = SimpleNamespace(client=lambda: made, guard=SimpleNamespace(tls=None))
    monkeypatch.setattr(left_behind, "find_target", lambda _: target)
    monkeypatch.setattr(tokens, "find_any_target", lambda _: target)
    monkeypatch.setattr(left_behind, "LOOK_S", 0.01)
    monkeypatch.setattr(pools, "LOOK_S", 0.01)
    return made


@pytest.fixture
def engine() -> Iterator[FakeEngine]:
    made = FakeEngine("alice")
    yield made
    made.close()


@pytest.fixture(params=["another user", "another cluster"])
def another(engine: FakeEngine, request: pytest.FixtureRequest) -> Iterator[FakeEngine]:
    made = engine.of("bob") if request.param == "another user" else FakeEngine("alice", "another")
    yield made
    made.close()


def run(engine: FakeEngine, monkeypatch: pytest.MonkeyPatch, *words: str) -> str:
    monkeypatch.setattr(commands, "_engine", lambda _: engine)
    done = CliRunner().invoke(cli, ["pool", *words])
    if done.exception is not None:
        raise done.exception
    return done.stdout


def test_a_pools_nodes_have_its_name_and_its_label(cluster: Cluster) -> None:
    ours, others = node_of("1_0", "n1"), replace(node_of("1_0", "n1"), node="q.n1")
    cluster.there = [ours, others, replace(ours, labels={})]
    assert left_behind.nodes_of(Globals(), "p") == [ours]


@pytest.mark.parametrize(
    ("node", "lost"),
    [
        (node_of("41_0", "n1"), False),
        (node_of("41_0", "n2"), True),
        (node_of("41_0", "n2", pid=0), False),
        (node_of("41_1", "n1"), False),
        (node_of("41_2", "n2"), True),
        (node_of("41_2", "n2", origin="fake:another:alice"), False),
        (node_of("41_3", "n3"), False),
        (node_of("41_4", "n3"), True),
        (node_of("40_0", "n1"), False),
        (node_of("", "n1"), False),
        (node_of(SPARK_ON_YARN, "n1"), False),
        (node_of(SPARK_ON_YARN.rpartition("_1_1_0")[0], "n1"), True),
    ],
    ids=[
        "here",
        "elsewhere",
        "dead",
        "waits",
        "ended",
        "of another cluster",
        "leaves",
        "forgotten since",
        "never listed",
        "none",
        "of Spark on YARN",
        "of YARN",
    ],
)
def test_an_agent_is_lost_that_its_engine_has_elsewhere_or_has_ended(node: NodeView, lost: bool) -> None:
    agents = [
        agent_of("41_0", State.RUNNING, "n1"),
        agent_of("41_1", State.WAITING),
        agent_of("41_2", State.ENDED, "n2"),
        agent_of("41_3", State.LEAVING, "n3"),
        agent_of(SPARK_ON_YARN.rpartition("_1_1_0")[0], State.ENDED, "n1"),
    ]
    assert left_behind.among([node], agents, HERE, {"41_0", "41_4"}) == ([node] if lost else [])


def test_a_healthy_pool_of_another_is_never_dismissed(
    cluster: Cluster,
    engine: FakeEngine,
    another: FakeEngine,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    pool = Pool(name="p", command=PROGRAM, directory=str(tmp_path))
    engine.start(pool, 2)
    cluster.there = [node_of(each.id, each.place) for each in engine.agents("p")]
    there = "p.n1, p.n2 are there, and slurm does not list their agents as yours"
    with pytest.raises(Conflict, match=f"nothing of pool p has ended on slurm: {there}"):
        run(another, monkeypatch, "down", "p", "--now")
    for verb in (("status", "p"), ("scale", "p", "1")):
        with pytest.raises(NotFound, match="there is no pool p"):
            run(another, monkeypatch, *verb)
    # Nor by one who has a pool of this name, too, elsewhere and with the same numbers.
    another.start(pool, 1)
    assert " lost " not in run(another, monkeypatch, "status", "p")
    assert run(another, monkeypatch, "scale", "p", "1") == "pool p: it has 1 already\n"
    assert f"the engine has everything back; {there}" in run(another, monkeypatch, "down", "p", "--now")
    assert cluster.dismissed == []
    assert len(pools.live(engine, "p")) == 2


def test_the_agents_that_an_engine_has_lost_end_with_their_pool(
    cluster: Cluster, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    engine.start(Pool(name="p", command=PROGRAM, directory=str(tmp_path)), 2)
    here, elsewhere = engine.agents("p")
    cluster.there = [node_of(here.id, here.place), node_of(elsewhere.id, "n3")]
    assert " lost " in run(engine, monkeypatch, "status", "p")
    assert "1 more are ended, which the engine has lost" in run(engine, monkeypatch, "scale", "p", "2")
    assert cluster.dismissed == [("p.n3", "life")]
    # The engine forgets its jobs as soon as they have ended.
    cluster.there[1] = node_of(elsewhere.id, "n3", life="another")
    kept, end = list(engine.jobs), pools.end

    def ends(engine: FakeEngine, name: str, within_s: float, say: Callable[[str], None]) -> int:
        many = end(engine, name, within_s, say)
        engine.jobs.clear()
        return many

    monkeypatch.setattr(pools, "end", ends)
    assert "2 agents have ended that the engine had lost" in run(engine, monkeypatch, "down", "p", "--now")
    assert cluster.dismissed[1:] == [("p.n1", "life"), ("p.n3", "another")]
    engine.jobs += kept


def test_an_agent_that_takes_the_name_of_a_lost_one_lives(
    cluster: Cluster, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pool = Pool(name="p", command=PROGRAM, directory=str(tmp_path))
    engine.start(pool, 1)
    (old,) = engine.agents("p")
    cluster.there = [node_of(old.id, old.place)]

    def begins_anew() -> None:
        engine.start(pool, 1)
        (new,) = pools.live(engine, "p")
        cluster.there = [node_of(new.id, new.place, life="new")]

    cluster.before = begins_anew
    assert "1 agents have ended that the engine had lost" in run(engine, monkeypatch, "down", "p", "--now")
    assert cluster.dismissed == []
    assert len(pools.live(engine, "p")) == 1
