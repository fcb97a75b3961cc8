"""Looks at any moment of a save, and kills: what is taken is a save, whole, and the order stays."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from chaos.bundles import bundle, plain
from recovery.commit.bundle_outbox import CheckpointWatcher
from recovery.commit.outbox import SavingJob, TakenCheckpoint, generation_directory
from recovery.commit.verify import verify_files
from recovery.families.watch_rule import Idle, Unfinished
from recovery.formats.tf_files import render_state
from supervisor.adapters.clock import BootClock
from tests.checkpoints.world import JOB, NODE, UINT8, UUID, InlineExecutor

NAMES = ("mlp.ckpt", "ckpt-{n}", "run/ckpt_{n}", "a/b/model")
Operation = Callable[[], object]


def operations(directory: Path, name: str, n: int, *, stateless: bool) -> Iterator[Operation]:
    """One save, as TensorFlow makes it: each operation is seen by a look or not at all."""
    path = directory / name.format(n=n)
    body = f"save {n:03d}".encode()
    files = bundle(path.name, [{b"weights": plain(UINT8, [len(body)], body)}])
    data, index = path.with_name(f"{path.name}.data-00000-of-00001"), path.with_name(f"{path.name}.index")
    part, state = path.with_name("part.tempstate"), path.with_name("checkpoint.tmp")
    yield lambda: path.parent.mkdir(parents=True, exist_ok=True)
    yield lambda: part.write_bytes(files[data.name])
    yield lambda: part.rename(data)
    yield lambda: index.write_bytes(files[index.name][:30])
    yield lambda: index.write_bytes(files[index.name])
    if not stateless:
        yield lambda: state.write_bytes(render_state(path.name))
        yield lambda: state.rename(path.with_name("checkpoint"))


def saved_in(taken: TakenCheckpoint) -> int:
    """The number of the save that was taken, all of whose files are whole."""
    names = [file.name for file in taken.manifest.files]
    found = verify_files(taken.directory, "", names)
    assert found.files == taken.manifest.files
    (data,) = (name for name in names if ".data-" in name)
    return int((taken.directory / data).read_bytes().removeprefix(b"save "))


@settings(max_examples=60, deadline=None)
@given(
    name=st.sampled_from(NAMES),
    stateless=st.booleans(),
    saves=st.integers(1, 4),
    pauses=st.lists(st.integers(0, 3), max_size=28),
    killed_after=st.integers(0, 28),
)
def test_whenever_one_looks_and_whenever_it_is_killed(
    name: str, stateless: bool, saves: int, pauses: list[int], killed_after: int
) -> None:
    """`pauses`: so many looks after each operation."""

    async def run(parent: Path) -> None:
        directory = generation_directory(parent, 1)
        directory.mkdir()
        watcher = CheckpointWatcher(
            parent, SavingJob(UUID, JOB, NODE, "i1"), 1, None, BootClock(), InlineExecutor()
        )
        taken: list[TakenCheckpoint] = []

        async def look(*, final: bool = False) -> bool:
            seen = await watcher.look(final=final)
            taken.extend([seen] if isinstance(seen, TakenCheckpoint) else [])
            return not isinstance(seen, Idle)

        done = begun = -1
        todo = [
            (n, at, each)
            for n in range(saves)
            for at, each in enumerate(operations(directory, name, n, stateless=stateless))
        ]
        last = max(at for _, at, _ in todo)
        for count, (n, at, operation) in enumerate(todo[:killed_after]):
            operation()
            begun, done = (n if at >= 2 else begun), (n if at == last else done)
            for _ in range(pauses[count] if count < len(pauses) else 0):
                await look()
        while await look(final=True):
            pass
        numbers = [saved_in(each) for each in taken]
        assert numbers == sorted(set(numbers)), "each save once, in their order"
        steps = [each.manifest.ref.step for each in taken]
        assert steps == sorted(set(steps))
        if done >= 0 and begun == done:
            assert numbers[-1] == done, "the last finished save"
        assert not isinstance(await watcher.look(final=True), Unfinished)

    with tempfile.TemporaryDirectory() as parent:
        asyncio.run(run(Path(parent)))
