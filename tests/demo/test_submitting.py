"""The benchmark of submits: code in a store leaves etcd small, however many jobs ship it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import submitting


@pytest.mark.slow
def test_etcd_stays_small_while_programs_go_to_a_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(submitting, "STATE", tmp_path / "bench")
    assert submitting.main(["--jobs", "60", "--mib", "4"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["store_mib"] == pytest.approx(240, rel=0.01)
    assert told["etcd_largest_mib"] < 24, "a tenth of what was shipped"
