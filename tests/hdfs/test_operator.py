"""`supervisorctl checkpoints` on a real HDFS: what it finds there, and what becomes of that."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from chaos.bundles import bundle, plain
from chaos.hdfs import HdfsCluster
from supervisor.cli.local.cluster import LocalCluster
from tests.cli.saving import SavingShell


@pytest.fixture
def shell(hdfs: HdfsCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SavingShell]:
    """A job that has saved into HDFS a few times and was stopped."""
    monkeypatch.setenv("HADOOP_CONF_DIR", str(hdfs.conf_dir))
    with LocalCluster(tmp_path / "state", nodes=1) as cluster:
        made = SavingShell(cluster, tmp_path, hdfs.fresh_uri("operator"))
        made("submit", str(made.job))
        made.run_until_saved(3)
        made.stop()
        yield made


def test_checkpoints_in_hdfs_are_read_back_restored_imported_and_recorded_again(
    hdfs: HdfsCluster, shell: SavingShell, tmp_path: Path
) -> None:
    newest, second, *_ = shell.list()
    uri = str(shell.json("checkpoints", "count")["uri"])
    root = uri.removeprefix(hdfs.uri)
    listing = hdfs.script("dfs", "-ls", f"{root}/{newest.path}")
    assert {line.split("/")[-1] for line in listing.splitlines() if newest.path in line} == {
        "checkpoint",
        "manifest.json",
        f"model.ckpt-{newest.ref.step}.index",
        f"model.ckpt-{newest.ref.step}.data-00000-of-00001",
    }
    shell("checkpoints", "count", "restore", str(newest.ref), "--to", str(tmp_path / "here"))
    assert f'"model.ckpt-{newest.ref.step}"' in (tmp_path / "here" / "checkpoint").read_text()
    # The same directory, written in another way.
    other = tmp_path / "other.yaml"
    spelt = uri.replace("/operator", "//./operator") + "/"
    other.write_text(shell.job.read_text().replace("name: count", "name: other").replace(uri, spelt))
    assert "belongs to job count; two jobs cannot share one" in shell("submit", str(other), code=4).stderr
    data = f"{root}/{second.path}/model.ckpt-{second.ref.step}.data-00000-of-00001"
    _damage_and_verify(hdfs, shell, str(second.ref), data)
    made = tmp_path / "made"
    made.mkdir()
    for name, content in bundle("model.ckpt-9000", [{b"w": plain(1, [2], b"12345678")}]).items():
        (made / name).write_bytes(content)
    imported = str(shell.json("checkpoints", "count", "import", str(made))["checkpoint"])
    shell.lose_etcd()
    shell("submit", "--resume", str(shell.job))
    shell("checkpoints", "count", "rebuild")
    assert str(shell.list()[0].ref) == imported
    shell("start", "count")
    shell("wait", "count", "--for", "step=9001", "--timeout", "60")
    assert shell.base() == imported


def _damage_and_verify(hdfs: HdfsCluster, shell: SavingShell, bad: str, data: str) -> None:
    """HDFS itself finds a flipped byte, which is unreadable; a file of other bytes is bad."""
    hdfs.flip_byte(data)
    done = shell("checkpoints", "count", "verify", bad, code=5)
    assert "unknown" in done.stdout
    assert {each.state.value for each in shell.list()} == {"committed"}
    replaced = shell.directory / "replaced"
    replaced.write_bytes(b"other bytes")
    hdfs.script("dfs", "-put", "-f", str(replaced), data)
    shell("checkpoints", "count", "verify", bad, code=14)
    (found,) = [each for each in shell.list() if str(each.ref) == bad]
    assert found.state.value == "quarantined"
    assert "has 11 bytes instead of" in found.reason
