"""Fence devices, for real: programs that are called as those of `fence-agents` are."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from supervisor.adapters.fence_devices import FenceDevice, FenceDevices
from supervisor.contract.errors import Refused

PLUG = """#!/bin/sh
while IFS='=' read -r name value; do
  [ "$name" = action ] && action=$value
  [ -n "$name" ] && echo "$name=$value" >>"$0.$$"
done
mv "$0.$$" "$0.$action"
"""
"""Keeps what it was told in a file for each action."""
WORKS = 'case "$action" in off) exit 0;; status) exit 2;; esac\n'


def program(directory: Path, ends: str) -> Path:
    path = directory / "fence_test"
    path.write_text(PLUG + ends)
    path.chmod(0o700)
    return path


def devices(path: Path, *, options_file: str = "") -> FenceDevices:
    options = {"ip": "{node}.ipmi", "lanplus": "1"}
    device = FenceDevice((str(path),), options, options_file, frozenset({"n0", "n1"}), {})
    return FenceDevices([device])


async def test_a_device_is_told_the_options_the_node_and_the_action_on_its_standard_input(
    tmp_path: Path,
) -> None:
    password = tmp_path / "password"
    password.write_text("passwd=secret-of-n1\n")
    path = program(tmp_path, WORKS)
    await devices(path, options_file=str(password)).switch_off("n1", {})
    told = {"ip=n1.ipmi", "lanplus=1", "passwd=secret-of-n1"}
    for action in ("off", "status"):
        lines = set(path.with_suffix(f".{action}").read_text().splitlines())
        assert lines == told | {f"action={action}"}


@pytest.mark.parametrize(
    ("ends", "why"),
    [
        ("exit 1\n", "`action=off` has ended with code 1"),
        ("exit 0\n", "`action=status` says that the machine is on"),
        ('case "$action" in off) exit 0;; status) exit 1;; esac\n', "`action=status` has ended with code 1"),
    ],
)
async def test_a_machine_is_off_only_if_the_device_says_so_twice(tmp_path: Path, ends: str, why: str) -> None:
    with pytest.raises(Refused, match=why):
        await devices(program(tmp_path, ends)).switch_off("n0", {})


async def test_a_device_that_is_given_up_is_killed_with_what_it_started(tmp_path: Path) -> None:
    path = program(tmp_path, f"echo $$ >{tmp_path}/pid\nsleep 100\n")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.5):
            await devices(path).switch_off("n0", {})
    pid = int((tmp_path / "pid").read_text())
    for _ in range(500):
        try:
            os.killpg(pid, 0)
        except ProcessLookupError:
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it lives")


async def test_a_device_that_cannot_be_run_is_no_error_of_the_supervisor(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="is not on this machine"):
        await devices(tmp_path / "none").switch_off("n0", {})
    with pytest.raises(Refused, match="cannot be run"):
        await devices(program(tmp_path, WORKS), options_file=str(tmp_path / "none")).switch_off("n0", {})


async def test_the_first_device_that_serves_a_node_is_its_device(tmp_path: Path) -> None:
    named = FenceDevice(("/x/fence_a",), {}, "", frozenset({"n0"}), {})
    labelled = FenceDevice(("/x/fence_b",), {}, "", frozenset(), {"rack": "a", "room": "1"})
    both = FenceDevices([named, labelled])
    assert both.device("n0", {"rack": "a", "room": "1"}) == "fence_a"
    assert both.device("n1", {"rack": "a", "room": "1"}) == "fence_b"
    assert not both.device("n1", {"rack": "a"})
    with pytest.raises(Refused, match="no fence device"):
        await both.switch_off("n1", {})
