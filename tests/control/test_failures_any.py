"""For any sequence of failures: the scope is what the table says, and one root failure is one incident."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from recovery.policy.scope import scope_of
from supervisor.contract.desired import JobPhase
from supervisor.contract.ids import TaskId
from supervisor.contract.incident import Cause, Incident, Outcome
from supervisor.contract.job.spec import JobSpec, RestartPolicy, Scope, Strategy
from supervisor.contract.observed import Exit, ExitReason
from tests.control.world import World
from tests.support.builders import job_spec

JOBS: dict[tuple[str, ...], dict[str, int]] = {
    ("chief.0", "ps.0", "worker.0", "worker.1"): {"chief": 1, "ps": 1, "worker": 2},
    ("worker.0", "ps.0", "worker.1", "worker.2"): {"ps": 1, "worker": 3},
}
"""Members, the one that saves first, and the roles of their job."""
SEATS = range(4)
ERRORS = "tensorflow.python.framework.errors_impl"
HEADING = 'Traceback (most recent call last):\n  File "t.py", line 3, in <module>\n'
TAILS = {
    Cause.KILLED: "step 12",
    Cause.PROGRAM_EXIT: f"{HEADING}ValueError: wrong\n",
    Cause.PORT_CLASH: f"{HEADING}{ERRORS}.UnknownError: Could not start gRPC server\n",
    Cause.OUT_OF_RANGE: f"{HEADING}{ERRORS}.OutOfRangeError: End of sequence\n",
    Cause.PEER_LOST: f"{HEADING}{ERRORS}.UnavailableError: Socket closed\n",
}
ROOTS = tuple(cause for cause in TAILS if cause is not Cause.PEER_LOST)


@dataclass(frozen=True)
class Blow:
    """One root failure, and the peers that die of it: some before it shows, some in the same moment.

    Members by their place in JOBS.
    """

    root: int
    cause: Cause
    early: frozenset[int]
    late: frozenset[int]
    ticks: int


PEERS = st.frozensets(st.sampled_from(SEATS), min_size=1, max_size=3)
NOBODY = st.just(frozenset[int]())
BLOWS = st.one_of(
    st.builds(Blow, st.sampled_from(SEATS), st.sampled_from(ROOTS), PEERS, NOBODY, st.integers(1, 20)),
    st.builds(Blow, st.sampled_from(SEATS), st.sampled_from(ROOTS), NOBODY, PEERS | NOBODY, st.just(0)),
)


def end(world: World, member: str, cause: Cause) -> None:
    killed = cause is Cause.KILLED
    code, signal = (None, 9) if killed else (1, None)
    world._exited(world.running()[member], Exit(ExitReason.EXIT, code, signal, 10, True, tail=TAILS[cause]))


def strike(world: World, blow: Blow, seats: tuple[str, ...]) -> set[str]:
    """Let it happen; returns who died."""
    early = blow.early - {blow.root}
    for seat in sorted(early):
        end(world, seats[seat], Cause.PEER_LOST)
    for _ in range(blow.ticks if early else 0):
        world.tick()
    late = blow.late - {blow.root} - early
    for seat in sorted(late):
        end(world, seats[seat], Cause.PEER_LOST)
    end(world, seats[blow.root], blow.cause)
    return {seats[seat] for seat in (blow.root, *early, *late)}


def table_scope(spec: JobSpec, cause: Cause, died: set[str]) -> Scope:
    """The largest scope that the table names for one that died; a taken port needs others for all."""
    scopes = {scope_of(spec, TaskId.from_member(spec.name, member))[0] for member in died}
    return Scope.ALL if Scope.ALL in scopes or cause is Cause.PORT_CLASH else Scope.TASK


def all_run(world: World) -> bool:
    return len(world.running()) == len(SEATS) and all(
        incident.outcome is not Outcome.OPEN for incident in world.incidents().values()
    )


@settings(max_examples=40)
@given(
    strategy=st.sampled_from([Strategy.ASYNC, Strategy.COORDINATOR, Strategy.SYNC]),
    seats=st.sampled_from(sorted(JOBS)),
    blows=st.lists(BLOWS, min_size=2, max_size=4),
    leaders=st.booleans(),
)
def test_scope_and_incidents_of_any_sequence_of_failures(
    strategy: Strategy, seats: tuple[str, ...], blows: list[Blow], *, leaders: bool
) -> None:
    spec = job_spec(JOBS[seats], strategy, restart=RestartPolicy())
    assert spec.saver.member == seats[0]
    world = World(spec).start()
    program = 0
    for number, blow in enumerate(blows, 1):
        world.commit(world.switch().generation, 100 * number)
        before, known = world.running(), set(world.incidents())
        generation = world.switch().generation
        died = strike(world, blow, seats)
        if leaders:
            world.new_leader()
        world.until(lambda known=known: bool(set(world.incidents()) - known) and all_run(world))
        _check(world, blow, seats[blow.root], known, table_scope(spec, blow.cause, died))
        program += blow.cause.program_fault
        grown = world.switch().generation - generation
        assert seats[0] not in died or grown == 1, "the chief never comes back alone"
        if table_scope(spec, blow.cause, died) is Scope.TASK:
            assert grown == 0
            survivors = set(before) - died
            assert {m: world.running()[m] for m in survivors} == {m: before[m] for m in survivors}
        else:
            assert grown == 1
    assert world.switch().phase is JobPhase.RUNNING
    assert world.switch().ledger.program == program


def _check(world: World, blow: Blow, root: str, known: set[str], scope: Scope) -> None:
    new: list[Incident] = [each for each in world.incidents().values() if each.id not in known]
    assert len(new) == 1, [(each.id, each.cause, each.detail) for each in new]
    (incident,) = new
    assert incident.cause is blow.cause
    assert incident.member == root
    assert incident.scope is scope
    assert incident.outcome is Outcome.RECOVERED
