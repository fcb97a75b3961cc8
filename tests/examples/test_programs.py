"""Every example survives the loss of its tasks, restarts as much as it must, and is right at the end."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from chaos.container_image import USER_ID
from tests.examples.cases import CASES, Case
from tests.examples.harness import Cluster
from tests.examples.run import run_case


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("case", [case for case in CASES if case.quick], ids=lambda case: case.name)
def test_one_kill(cluster: Cluster, case: Case, tmp_path: Path) -> None:
    run_case(cluster, case, case.victims[:1], tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_each_role_killed_in_turn(cluster: Cluster, case: Case, tmp_path: Path) -> None:
    run_case(cluster, case, case.victims, tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_one_kill_in_containers(contained: Cluster, case: Case, scratches: Path) -> None:
    scratch = scratches / case.name
    scratch.mkdir()
    os.chown(scratch, USER_ID, USER_ID)
    run_case(contained, case, case.victims[:1], scratch)
