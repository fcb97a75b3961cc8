"""The record of a cordon: what a lift leaves in it, and how it goes with leaders of the release before."""

from __future__ import annotations

import json

from supervisor.api.nodes import node_list
from supervisor.contract import codec, keys
from supervisor.contract.boundaries import Put
from supervisor.contract.desired import Cordon, JobPhase
from supervisor.control.decide.nodes import cordons
from supervisor.control.decide.plan import put
from supervisor.control.decide.snapshot import NodeState
from tests.control.world import World

NODE, KEY, PARDON = "n1", keys.cordon("n1"), keys.pardon("n1")
OF_BEFORE = {
    KEY: b'{"cooldown_ms":0,"drain":true,"incarnation":"","node":"n1","place":"","reason":"fans",'
    b'"record":"Cordon","v":1}',
    PARDON: b'{"node":"n1","reason":"OOM three times","record":"Pardon","v":1}',
}
"""As the release before writes them."""


def node(world: World) -> NodeState:
    return world.snapshot().nodes[NODE]


def lift(world: World) -> None:
    held = node(world).cordon
    assert held is not None
    assert world.run(cordons.lift(world.snapshot(), held, "let go"))


def test_a_lift_stays_as_a_field_also_of_the_next_cordon() -> None:
    world = World().start()
    world.write(put(KEY, Cordon(NODE, "fans", drain=True)))
    known = world.snapshot().revision
    lift(world)
    after = world.snapshot().revision
    assert node(world).cordon is None
    assert world.snapshot().usable(node(world))
    assert (node(world).pardons(known), node(world).pardons(after)) == (True, False)
    asked = cordons.for_operator(node(world), "dust", drain=False)
    assert world.run(cordons.impose(node(world), asked))
    assert cordons.has(node(world), asked)
    assert (node(world).pardons(known), node(world).pardons(after)) == (True, False)
    assert not world.snapshot().usable(node(world))
    assert not world.store.read(PARDON)


def test_a_pardon_of_the_release_before_becomes_a_field_of_the_cordon() -> None:
    world = World().start()
    world.write(Put(PARDON, OF_BEFORE[PARDON]))
    (written,) = world.store.read(PARDON)
    for step in ("as it was written", "taken over"):
        found = node(world)
        assert found.pardons(written.mod_revision - 1), step
        assert not found.pardons(written.mod_revision), step
        assert found.cordon is None
        assert world.snapshot().usable(found)
        world.decide()
    assert not world.store.read(PARDON)
    assert node(world).lifted == written.mod_revision - 1


def test_a_cordon_of_the_release_before_is_in_force_and_takes_the_pardon_over_when_it_is_lifted() -> None:
    world = World().start()
    world.write(Put(PARDON, OF_BEFORE[PARDON]), Put(KEY, OF_BEFORE[KEY]))
    held = node(world).cordon
    assert held is not None
    assert held.value == Cordon(NODE, "fans", drain=True)
    world.decide()
    assert node(world).cordon == held
    assert world.store.read(PARDON)
    lift(world)
    assert not world.store.read(PARDON)
    assert node(world).pardons(held.mod_revision)


def test_a_leader_of_the_release_before_lifts_what_it_takes_for_a_cordon_at_its_first_look() -> None:
    """And drains nothing for it. It knows neither `in_force` nor `lifted`."""
    world = World().start()
    world.write(put(KEY, Cordon(NODE, "fans", drain=True)))
    lift(world)
    fields = json.loads(world.store.read(KEY)[0].value)
    seen = {name: value for name, value in fields.items() if name not in {"in_force", "lifted"}}
    assert seen.keys() == json.loads(OF_BEFORE[KEY]).keys()
    world.write(Put(KEY, json.dumps(seen).encode()))
    assert node(world).cordon is not None
    assert not codec.decode(Cordon, world.store.read(KEY)[0].value).drain
    world.tick()
    assert node(world).cordon is None
    assert world.switch().generation == 1
    assert world.switch().phase is JobPhase.RUNNING


def test_a_node_that_is_gone_is_not_shown_for_a_cordon_that_was_lifted() -> None:
    world = World().start()
    world.write(put(keys.cordon("n9"), Cordon("n9", "fans")))
    assert "n9" in {view.node for view in node_list(world.snapshot()).nodes}
    held = world.snapshot().nodes["n9"].cordon
    assert held is not None
    assert world.run(cordons.lift(world.snapshot(), held, "let go"))
    assert "n9" not in {view.node for view in node_list(world.snapshot()).nodes}
