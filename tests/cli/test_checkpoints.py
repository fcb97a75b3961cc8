"""`supervisorctl checkpoints`, through the real command line, on a cluster with a program that saves."""

from __future__ import annotations

import os
import pty
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from chaos.bundles import bundle, plain
from supervisor.cli.checkpoints.list import _options_first
from supervisor.cli.local.cluster import LocalCluster
from tests.cli.saving import SavingShell
from tests.cli.shell import completed


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SavingShell]:
    """A job that has saved a few times and was stopped."""
    directory = tmp_path_factory.mktemp("checkpoints")
    with LocalCluster(directory / "state", nodes=1) as cluster:
        made = SavingShell(cluster, directory)
        made("submit", str(made.job))
        made.run_until_saved(3)
        made.stop()
        yield made


def test_options_may_stand_on_either_side_of_the_job() -> None:
    assert _options_first(["digits", "-o", "json"]) == ["-o", "json", "digits"]
    assert _options_first(["--state", "gc", "digits", "gc", "--dry-run"]) == [
        *("--state", "gc", "digits", "gc", "--dry-run"),
    ]
    assert _options_first(["digits", "--output=json", "verify", "-o", "json", "7"]) == [
        *("--output=json", "digits", "verify", "-o", "json", "7"),
    ]
    assert _options_first(["--", "digits"]) == ["--", "digits"]
    assert _options_first([]) == []


def test_the_list_tells_what_each_is_and_how_it_was_verified(shell: SavingShell, tmp_path: Path) -> None:
    found = shell.list()
    assert [each.ref for each in found] == sorted((each.ref for each in found), reverse=True)
    assert {(each.tensors, each.verified, each.pinned) for each in found} == {(2, "size", False)}
    lines = shell("checkpoints", "count").stdout.splitlines()
    assert lines[1].split() == [
        *("checkpoint", "step", "generation", "size", "tensors", "verified", "pinned", "state", "why", "age"),
    ]
    assert lines[2].split()[:3] == [str(found[0].ref), str(found[0].ref.step), "1"]
    assert "newest" in lines[2]
    program = f"supervisorctl --state {shell.cluster.layout.state}"
    for words in ("pin count", "checkpoints count unpin"):
        assert completed(tmp_path, f"{program} {words} g") == sorted(str(each.ref) for each in found)
    assert "no job 'gc'" in shell("checkpoints", "gc", code=3).stderr
    assert "did you mean 'verify'" in shell("checkpoints", "count", "verfy", code=2).stderr


def test_a_checkpoint_is_restored_for_tensorflow(shell: SavingShell, tmp_path: Path) -> None:
    newest = shell.list()[0]
    target = tmp_path / "new" / "here"
    found = shell.json("checkpoints", "count", "restore", str(newest.ref.step), "--to", str(target))
    assert (found["checkpoint"], found["tensors"], found["size"]) == (str(newest.ref), 2, newest.size)
    prefix = f"model.ckpt-{newest.ref.step}"
    stored = shell.stored(str(newest.ref))
    assert {path.name: path.read_bytes() for path in target.iterdir()} == {
        path.name: path.read_bytes() for path in stored.iterdir() if path.name != "manifest.json"
    }
    assert f'model_checkpoint_path: "{prefix}"' in (target / "checkpoint").read_text()
    again = shell("checkpoints", "count", "restore", str(newest.ref), "--to", str(target), code=4)
    assert "is not an empty directory; give another --to" in again.stderr
    (tmp_path / "empty").mkdir()
    said = shell("checkpoints", "count", "restore", str(newest.ref), "--to", str(tmp_path / "empty")).stdout
    assert f"{newest.ref} is in {tmp_path / 'empty'}, verified" in said
    missing = shell("checkpoints", "count", "restore", "7", "--to", str(tmp_path / "x"), code=3).stderr
    assert "no checkpoint of step 7; it has those of the steps" in missing
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_a_store_that_this_machine_cannot_reach_is_told_of(shell: SavingShell, tmp_path: Path) -> None:
    newest = shell.list()[0]
    store = shell.stored(str(newest.ref)).parent
    away = store.rename(store.with_name("away"))
    try:
        done = shell("checkpoints", "count", "restore", str(newest.ref), "--to", str(tmp_path / "x"), code=5)
        assert "is its file system mounted?" in done.stderr
        assert f"which needs the directory mounted: file://{store}" in done.stderr
        found = shell("checkpoints", "count", "verify", str(newest.ref), code=5)
        assert "unknown" in found.stdout
    finally:
        away.rename(store)
    assert {each.state.value for each in shell.list()} == {"committed"}
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_checkpoint_is_neither_restored_nor_left_in_use(shell: SavingShell, tmp_path: Path) -> None:
    oldest = shell.list()[-1]
    data = next(shell.stored(str(oldest.ref)).glob("*.data-*"))
    before = data.read_bytes()
    data.write_bytes(before[:-1] + b"!")
    done = shell("checkpoints", "count", "restore", str(oldest.ref), "--to", str(tmp_path / "bad"), code=14)
    assert "has a wrong size or checksum" in done.stderr
    assert list(tmp_path.iterdir()) == []
    found = shell.json("checkpoints", "count", "verify", code=14)["checkpoints"]
    assert isinstance(found, list)
    assert [each["finding"] for each in found] == [*["good"] * (len(found) - 1), "bad"]
    listed = {each.ref: each for each in shell.list()}
    assert listed[oldest.ref].state.value == "quarantined"
    assert "failed verification" in listed[oldest.ref].reason
    assert {each.verified for ref, each in listed.items() if ref != oldest.ref} == {"readback"}
    assert f"checkpoint {oldest.ref} is bad and will not be restored" in shell("events", "count").stdout
    data.write_bytes(before)
    said = shell("checkpoints", "count", "verify", str(oldest.ref)).stdout
    assert "it can be restored again; it was quarantined: failed verification" in said
    assert {each.state.value for each in shell.list()} == {"committed"}
    assert f"checkpoint {oldest.ref} was read back and is whole" in shell("events", "count").stdout


def test_a_terminal_shows_how_far_it_is(shell: SavingShell) -> None:
    ours, theirs = pty.openpty()
    try:
        argv = [*shell.argv, "checkpoints", "count", "verify"]
        done = subprocess.run(
            argv, env=shell.env, stdout=subprocess.PIPE, stderr=theirs, timeout=60, check=False
        )
        assert done.returncode == 0
        shown = os.read(ours, 1 << 16).decode()
    finally:
        os.close(ours)
        os.close(theirs)
    count = len(shell.list())
    assert f"\r\x1b[Kverifying {count} of {count} [####################]" in shown
    assert shown.endswith("\r\x1b[K"), "nothing of it is left"


def test_what_is_kept_is_told_with_the_reason(shell: SavingShell) -> None:
    newest = shell.list()[0]
    shell("checkpoints", "count", "pin", str(newest.ref))
    lines = shell("checkpoints", "count", "gc", "--dry-run").stdout.splitlines()
    (pinned,) = [line for line in lines if str(newest.ref) in line]
    assert "stays  it is pinned" in pinned
    assert "0 of" in lines[-1]
    assert "would be removed" in lines[-1]
    shell("checkpoints", "count", "unpin", str(newest.ref))
    told = shell("events", "count").stdout
    assert f"checkpoint {newest.ref} be pinned" in told
    assert f"checkpoint {newest.ref} be not pinned" in told
    leftover = shell.stored(str(newest.ref)).parent / ".staging" / "g00000-s0000000005.left"
    leftover.mkdir(parents=True)
    report = shell.json("checkpoints", "count", "gc")
    assert not leftover.exists()
    items = report["items"]
    assert isinstance(items, list)
    assert [(item["path"], item["goes"]) for item in items if item["thing"] == "staging"] == [
        (".staging/g00000-s0000000005.left", True)
    ]


def test_an_import_is_what_the_job_goes_on_from(shell: SavingShell, tmp_path: Path) -> None:
    for name, data in bundle("mine-7000", [{b"w": plain(1, [2], b"12345678")}]).items():
        (tmp_path / name).write_bytes(data)
    found = shell.json("checkpoints", "count", "import", str(tmp_path))
    assert str(found["checkpoint"]).endswith("-s7000")
    assert "the next start of count begins from" in str(found["end"])
    newest = shell.list()[0]
    assert (str(newest.ref), newest.tensors, newest.verified) == (found["checkpoint"], 1, "readback")
    assert "off the lineage" in shell("checkpoints", "count").stdout, "what the job had saved"
    assert f"checkpoint {newest.ref} was imported" in shell("events", "count").stdout
    shell("start", "count")
    shell("wait", "count", "--for", "running", "--timeout", "60")
    assert shell.base() == found["checkpoint"]
    assert (
        "is running; `import` works on a job that does not run"
        in shell("checkpoints", "count", "import", str(tmp_path), code=4).stderr
    )
    shell.stop()


def test_an_import_that_is_no_checkpoint_is_refused(shell: SavingShell, tmp_path: Path) -> None:
    def refused(*arguments: str, code: int = 2) -> str:
        return shell("checkpoints", "count", "import", str(tmp_path), *arguments, code=code).stderr

    assert "has no checkpoint of TensorFlow; name the files of another kind with --file" in refused()
    for prefix in ("a-1", "b"):
        for name, data in bundle(prefix, [{b"w": plain(1, [2], b"12345678")}]).items():
            (tmp_path / name).write_bytes(data)
    assert "has 2 checkpoints of TensorFlow; name one with --prefix" in refused()
    assert "nothing tells the step of this checkpoint; give it with --step" in refused("--prefix", "b")
    assert "has no file 'nothing'" in refused("--file", "nothing", "--step", "3")
    shard = tmp_path / "a-1.data-00000-of-00001"
    shard.write_bytes(b"12345679")
    assert "a-1.data-00000-of-00001" in refused("--prefix", "a-1", code=14)
    shard.unlink()
    assert "has no complete checkpoint 'a-1'" in refused("--prefix", "a-1")
    before = len(shell.list())
    assert len(shell.list()) == before


def test_a_lost_etcd_is_made_good_from_the_store(shell: SavingShell) -> None:
    kept = {str(each.ref): each for each in shell.list()}
    shell.lose_etcd()
    said = shell("submit", str(shell.job), code=4).stderr
    assert "--resume takes them up, if this cluster has lost its etcd" in said
    said = shell("submit", "--resume", str(shell.job)).stdout
    assert "run `supervisorctl checkpoints count rebuild`" in said
    assert "its records were lost" in shell("start", "count", code=4).stderr
    found = shell.json("checkpoints", "count", "rebuild")["checkpoints"]
    assert isinstance(found, list)
    assert {each["ref"]["step"] for each in found} == {each.ref.step for each in kept.values()}
    # The base is another one now, so that the oldest may be one too many.
    listed = [str(each.ref) for each in shell.list()]
    assert set(listed) <= set(kept)
    newest = listed[0]
    assert newest == str(max(each.ref for each in kept.values()))
    assert "checkpoints were recorded again from the store" in shell("events", "count").stdout
    assert "has its records" in shell("checkpoints", "count", "rebuild", code=4).stderr
    shell("start", "count")
    shell("wait", "count", "--for", "running", "--timeout", "60")
    assert shell.base() == newest
    shell.stop()


def test_a_job_on_hold_waits_for_its_first_checkpoint(shell: SavingShell, tmp_path: Path) -> None:
    held = tmp_path / "held.yaml"
    held.write_text(shell.job.read_text().replace("name: count", "name: held"))
    shutil.copy(shell.directory / "count.py", tmp_path)
    assert "on hold: `supervisorctl start held` starts it" in shell("submit", "--hold", str(held)).stdout
    saved = tmp_path / "saved"
    saved.mkdir()
    for name, data in bundle("model.ckpt-300", [{b"w": plain(1, [2], b"12345678")}]).items():
        (saved / name).write_bytes(data)
    assert "g1-s300 is imported" in shell("checkpoints", "held", "import", str(saved)).stdout
    shell("start", "held")
    shell("wait", "held", "--for", "step=301", "--timeout", "60")
    assert "began at 300" in shell("tail", "held/worker:0").stdout
    shell("stop", "held")
    shell("wait", "held", "--for", "ended", "--timeout", "60")
