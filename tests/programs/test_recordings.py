"""Real output of programs, read by the real agent's code and judged by the leader's rule.

The clock is virtual. A recording goes on for as long as a test needs it: the part that shows progress is
played again and again at the recorded pace, as by a program that trains for longer.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass, field, replace
from itertools import chain, count, pairwise
from pathlib import Path

import pytest

from agent.host.processes import Usage
from agent.logs.patterns import Matcher
from agent.logs.steps import MEASURE_MS, Followed
from recovery.policy.hangs import IDLE_MS, Judgement, Running, bounds_of, judge
from recovery.policy.roles import RoleKind, kind_of
from supervisor.adapters.files.jobfile import load_job_file
from supervisor.contract.ids import AttemptId, TaskId
from supervisor.contract.job.spec import DEFAULT_STEP_PATTERNS, JobSpec
from supervisor.contract.observed import TaskBeat
from tests.control.world import World
from tests.programs.recordings import Line, Recorder, Tape, read, trimmed, write
from tests.programs.shapes import SHAPES
from tests.support.sinks import ListSink
from tests.support.tapes import Tape as Output

TURN_MS = 2_500
QUIET_MS = 600_000
STEPS_LEARNT_MS, OUTPUT_LEARNT_MS = 300_000, 660_000
NAMES = [shape.name for shape in SHAPES if read(shape.name)]
TRAINED = 1.0
"""Processors that a program uses while it trains; a recording does not have them."""


@dataclass(slots=True)
class Player:
    """One task: its recording, and the agent's view of it."""

    task: TaskId
    lines: Iterator[Line]
    output: Output
    followed: Followed
    used_s: float = 0.0
    _next: Line | None = None

    def play(self, until_s: float) -> None:
        """Print what is due."""
        while True:
            self._next = self._next or next(self.lines, None)
            if self._next is None or self._next.at_s > until_s:
                return
            self.output.waiting += self._next.data
            self._next = None

    def change(self, lines: Iterator[Line]) -> None:
        """From now on it prints these."""
        self.lines, self._next = lines, None


@dataclass(slots=True)
class Rehearsal:
    """A job whose tasks play their recordings."""

    spec: JobSpec
    players: list[Player]
    processors: float = 0.0
    now_ms: int = 0
    worst: set[str] = field(default_factory=set)

    def turn(self) -> Judgement:
        """The next turn of the clock."""
        self.now_ms += TURN_MS
        tasks = []
        for player in self.players:
            player.play(self.now_ms / 1000)
            player.used_s += self.processors * TURN_MS / 1000
            player.followed.look(self.now_ms)
            if self.now_ms % MEASURE_MS == 0:
                player.followed.measure(self.now_ms, Usage(player.used_s, runnable=False), None)
            trains = kind_of(self.spec, player.task.role) is RoleKind.TRAINING
            beat = self.beat(player)
            tasks.append(Running(player.task, beat.signs if trains else (), beat.silent_ms))
        bounds = bounds_of(tasks, self.spec.progress, self.spec.limits.startup_ms, hung_before=0)
        judged = judge(tuple(tasks), bounds)
        self.worst |= {"suspected"} if judged.suspected else set()
        self.worst |= {"hang"} if judged.hang is not None else set()
        return judged

    def run(self, lasts_ms: int) -> set[str]:
        """Turn for so long; which verdicts there were."""
        self.worst = set()
        until_ms = self.now_ms + lasts_ms
        while self.now_ms < until_ms:
            self.turn()
        return self.worst

    def beat(self, player: Player, attempt: str = "") -> TaskBeat:
        beat = player.followed.beat(AttemptId(player.task, 1, 1), self.now_ms)
        return replace(beat, attempt=attempt or beat.attempt)


def rehearse(name: str, processors: float = 0.0, *, once: bool = False) -> Rehearsal:
    shape = next(shape for shape in SHAPES if shape.name == name)
    spec = load_job_file(shape.file, checkpoint_base="file:///unused").spec
    players = []
    for task, tape in read(name).items():
        role, _, index = task.partition(":")
        output = Output(Path("/nowhere"), Matcher(DEFAULT_STEP_PATTERNS, ListSink()))
        lines = iter(tape) if once else on_and_on(tape)
        players.append(Player(TaskId(name, role, int(index)), lines, output, Followed(output, 0)))
    return Rehearsal(spec, players, processors)


def on_and_on(tape: Tape) -> Iterator[Line]:
    """A recording whose training goes on for ever at the recorded pace; losses differ each time."""
    part = training_part(tape)
    if not part:
        return iter(())
    began, ended = tape[part.start], tape[part.stop - 1]
    lasts_s = (ended.at_s - began.at_s) * len(part) / max(1, len(part) - 1) or 1.0
    again = (
        Line(tape[at].at_s + number * lasts_s, _with_other_fractions(tape[at].data, number))
        for number in count(1)
        for at in part
    )
    return chain(tape[: part.stop], again)


def training_part(tape: Tape) -> range:
    """From the first line that shows progress to the last.

    Of a program whose progress is not read, all lines but those of its end.
    """
    output = Output(Path("/nowhere"), Matcher(DEFAULT_STEP_PATTERNS, ListSink()))
    shown = []
    for at, line in enumerate(tape):
        before = output.matcher.reports
        output.waiting = line.data
        output.read()
        shown += [at] if output.matcher.reports > before else []
    if len(shown) > 1:
        return range(shown[0], shown[-1] + 1)
    return range(shown[0] if shown else max(0, len(tape) - 1))


def _with_other_fractions(data: bytes, number: int) -> bytes:
    def other(found: re.Match[bytes]) -> bytes:
        digits = len(found[1])
        return b".%0*d" % (digits, (int(found[1]) + 7_919 * number) % 10**digits)

    return re.sub(rb"\.(\d+)", other, data)


READ: dict[tuple[str, str], tuple[int, bool, str]] = {
    ("tf1_supervisor", "worker:0"): (301, False, "step 301"),
    ("tf1_supervisor", "worker:1"): (300, False, "step 300"),
    ("tf1_monitored_master", "master:0"): (282, False, "step 282"),
    ("tf1_monitored_master", "worker:0"): (299, False, "step 299"),
    ("tf1_scaffold_evaluator", "chief:0"): (249, False, "step 249"),
    ("tf1_scaffold_evaluator", "evaluator:0"): (250, False, "step 250"),
    ("tf1_scaffold_evaluator", "worker:0"): (250, False, "step 250"),
    ("tf1_queue_runners", "worker:0"): (151, True, "step 151"),
    ("tf1_sync_replicas", "worker:0"): (145, False, "step 145"),
    ("tf1_sync_replicas", "worker:1"): (150, False, "step 150"),
    ("tf1_in_graph", "client:0"): (150, True, "step 150"),
    ("tf1_best_model", "worker:0"): (150, False, "step 150"),
    ("tf1_thread_saver", "worker:0"): (161, True, "step 161"),
    ("keras_model_checkpoint", "worker:0"): (-1, False, "epoch 16, batch 10"),
    ("keras_weights_only", "worker:0"): (-1, False, "epoch 16"),
    ("keras_best_only", "worker:0"): (-1, False, "epoch 18, batch 10"),
    ("keras_backup_restore", "worker:0"): (-1, False, "epoch 8, batch 20"),
    ("tfkeras_ckpt_epoch", "worker:0"): (-1, False, "epoch 12, batch 10"),
    ("tfkeras_ckpt_epoch", "worker:1"): (-1, False, "epoch 12, batch 10"),
    ("loop_epoch_step", "worker:0"): (-1, False, "epoch 4, step 40"),
    ("loop_progress_bar", "worker:0"): (-1, False, "step 160"),
    ("loop_json_lines", "worker:0"): (160, False, "step 160"),
    ("loop_absl_subdir", "worker:0"): (1600, True, "step 1600"),
    ("loop_two_families", "worker:0"): (160, True, "step 160"),
    ("loop_elsewhere", "worker:0"): (160, True, "step 160"),
    ("loop_chdir", "worker:0"): (160, True, "step 160"),
    ("loop_sigterm", "worker:0"): (160, True, "step 160"),
    ("loop_export", "worker:0"): (160, True, "step 160"),
    ("loop_no_step_name", "worker:0"): (160, True, "step 160"),
    ("loop_log_file", "worker:0"): (160, True, "step 160"),
    ("data_service", "worker:0"): (200, True, "step 200"),
    ("coordinator_extra_fields", "chief:0"): (160, True, "step 160"),
    ("mirrored_loop", "worker:0"): (160, True, "step 160"),
    ("mirrored_loop", "worker:1"): (160, True, "step 160"),
    ("mirrored_fit_backup", "chief:0"): (-1, False, "epoch 8, batch 20"),
    ("mirrored_fit_backup", "worker:0"): (-1, False, "epoch 8, batch 20"),
    ("checkpoint_guide", "worker:0"): (200, True, "step 200"),
    ("multi_worker_ctl", "worker:0"): (-1, False, "epoch 2"),
    ("multi_worker_ctl", "worker:1"): (-1, False, "epoch 2"),
    ("multi_worker_fit", "worker:0"): (-1, False, "epoch 10, batch 15"),
    ("multi_worker_fit", "worker:1"): (-1, False, "epoch 10, batch 15"),
    ("parameter_server_loop", "chief:0"): (-1, False, "epoch 16"),
    ("save_and_load", "worker:0"): (-1, False, "epoch 50"),
    ("dcgan", "worker:0"): (-1, False, "epoch 24"),
    ("custom_training", "worker:0"): (-1, False, "epoch 12"),
    ("transformer", "worker:0"): (-1, False, "epoch 8"),
    ("training_loop", "worker:0"): (-1, False, "epoch 2, step 40"),
}
"""By program and task: the step, whether it is one of its own, and where the program says that it is."""
STEPS = {name for name, _ in READ} - {"loop_no_step_name"}
"""Programs that show steps while they train; that one names its last step only."""
LIVES, SUSPECTED, HANG = set[str](), {"suspected"}, {"suspected", "hang"}


@pytest.mark.parametrize("name", NAMES)
def test_the_step_is_read_that_the_program_has_printed(name: str) -> None:
    job = rehearse(name, once=True)
    job.run(int(1000 * max(tape[-1].at_s for tape in read(name).values() if tape)) + 2 * TURN_MS)
    beats = {player.task: job.beat(player) for player in job.players}
    found = {
        (name, f"{task.role}:{task.index}"): (beat.step, beat.is_local, beat.said)
        for task, beat in beats.items()
        if beat.said
    }
    assert found == {key: row for key, row in READ.items() if key[0] == name}


def test_all_programs_are_recorded_with_all_their_tasks() -> None:
    assert [shape.name for shape in SHAPES] == NAMES
    for name in NAMES:
        job = rehearse(name)
        assert {player.task for player in job.players} == {
            TaskId(name, role.name, index) for role in job.spec.roles for index in range(role.count)
        }


@pytest.mark.parametrize("name", NAMES)
def test_in_ten_quiet_minutes_no_program_is_taken_to_hang(name: str) -> None:
    """Not even one that uses no processor at all; such a one may be suspected where it prints nothing."""
    job = rehearse(name)
    assert job.run(QUIET_MS + 60_000) <= (SUSPECTED if name in QUIET else LIVES)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_in_ten_quiet_minutes_the_leader_restarts_nothing(name: str) -> None:
    """All of the leader's rules look at the beats that the agent's code makes of the recordings.

    What prints nothing has to use a processor: beside a peer that makes steps it is late otherwise.
    """
    job = rehearse(name, TRAINED if name in QUIET else 0.0)
    world = World(replace(job.spec, name="digits"))
    players = {player.task.member: player for player in job.players}

    def tell(beat: TaskBeat) -> TaskBeat:
        return job.beat(players[AttemptId.parse(beat.attempt).task.member], beat.attempt)

    for agent in world.agents.values():
        agent.steps = False
    world.start()
    for report in world.running().values():
        world.agents[report.node].tells[str(report.attempt)] = tell
    until_ms = world.now_ms + QUIET_MS + 60_000
    while world.now_ms < until_ms:
        job.turn()
        for _ in range(TURN_MS // 500):
            world.tick(500)
    assert set(world.incidents()) == {"submit"}


QUIET = {"loop_silent", "tf1_scaffold_evaluator", "tf1_sync_replicas", "tf1_trainer_guide"}
"""Programs with a training task that prints nothing while it trains."""


def lines_of(text: bytes, began_ms: int) -> Iterator[Line]:
    for number in count():
        yield Line(began_ms / 1000 + 5 * number, text % number)


TABLE = {
    "it stops": (0.0, b"", HANG, HANG, SUSPECTED),
    "it waits, and says so": (0.0, b"retrying connection, attempt %d\n", HANG, HANG, SUSPECTED),
    "it works in silence": (TRAINED, b"", SUSPECTED, SUSPECTED, LIVES),
    "a thread prints figures": (0.0, b"memory in use: %d MB\n", SUSPECTED, LIVES, LIVES),
}
"""Processors, output, and verdicts: where steps are read, where output alone is, where nothing is printed."""


@pytest.mark.parametrize("name", NAMES)
def test_the_truth_table(name: str) -> None:
    """After a while of training all tasks of the program do the same."""
    kind = 0 if name in STEPS else 2 if name == "loop_silent" else 1
    learnt = rehearse(name, TRAINED)
    learnt.run(STEPS_LEARNT_MS if kind == 0 else OUTPUT_LEARNT_MS)
    for player in learnt.players:
        player.change(iter(()))
    found = {}
    for what, (processors, text, *_) in TABLE.items():
        job = deepcopy(learnt)
        job.processors = processors
        for player in job.players:
            player.change(lines_of(text, job.now_ms) if text else iter(()))
        found[what] = job.run(IDLE_MS + 60_000)
    assert found == {what: verdicts[kind] for what, (_, _, *verdicts) in TABLE.items()}


def test_what_is_recorded_is_what_was_printed_without_what_is_of_the_machine(tmp_path: Path) -> None:
    path = tmp_path / "agent-0" / "attempts" / "uuid" / "worker.0-g1.1" / "output.log"
    path.parent.mkdir(parents=True)
    recorder = Recorder(tmp_path, "uuid")
    for text in ("\x1b[1m1/9\x1b[0m\r2/9\r", "saved /home/me/ck/m-1 \\r\nhal", "f\nhttps://a.b/c/d\n"):
        with path.open("a", newline="") as file:
            file.write(text)
        recorder.look()
    write("program", recorder.tapes(), tmp_path)
    (tape,) = read("program", tmp_path).values()
    lines = [b"\x1b[1m1/9\x1b[0m\r", b"2/9\r", b"saved /m-1 \\r\n", b"half\n", b"https://a.b/c/d\n"]
    assert [line.data for line in tape] == lines
    assert all(before.at_s <= after.at_s for before, after in pairwise(tape))


def test_a_long_recording_keeps_its_pace_where_it_is_trimmed() -> None:
    tape = tuple(Line(2.0 * number, b"%d\n" % number) for number in range(1_000))
    short = trimmed(tape)
    assert (short[0].data, short[-1].data) == (b"0\n", b"999\n")
    assert {after.at_s - before.at_s for before, after in pairwise(short)} == {2.0}
