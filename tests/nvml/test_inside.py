"""The look at GPUs from inside an attempt: one that vanishes there alone ends it; a hung driver does not."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from agent.inside import protocol
from agent.inside.launcher import devices
from chaos.nvml import LIBRARY, FakeNvml
from tests.launcher.harness import Agent, Rig, launcher, of, wait_for

Scripted = Callable[..., FakeNvml]
FOREVER = "import time; print('runs', flush=True); time.sleep(1000)"


@contextmanager
def rigged(visible: Path) -> Iterator[tuple[Rig, Agent]]:
    with (
        launcher(env={"FAKE_NVML_VISIBLE": str(visible), **os.environ}) as rig,
        Agent(rig.socket_path) as agent,
    ):
        agent.expect(protocol.Warm)
        yield rig, agent


def start(rig: Rig, agent: Agent, nvml: FakeNvml, program: str = FOREVER) -> str:
    return rig.start(
        agent,
        sys.executable,
        "-c",
        program,
        devices=list(nvml.uuids),
        devices_ms=50,
        nvml=str(nvml.library),
    )


def looker(rig: Rig) -> psutil.Process | None:
    for child in psutil.Process(rig.process.pid).children():
        with suppress(psutil.NoSuchProcess):  # it has just ended, and nobody has asked how
            if "--devices" in child.cmdline():
                return child
    return None


def test_a_gpu_that_vanishes_only_inside_ends_the_attempt_and_its_launcher(
    scripted: Scripted, tmp_path: Path
) -> None:
    nvml, visible = scripted(), tmp_path / "visible"
    visible.write_text("\n".join(nvml.uuids))
    with rigged(visible) as (rig, agent):
        attempt = start(rig, agent, nvml)
        rig.logged("runs")
        wait_for("look", lambda: looker(rig))
        assert not agent.all(protocol.Exited)
        visible.write_text(nvml.uuids[0])
        exited = agent.expect(protocol.Exited, of(attempt))
        assert exited.reason == "devices_lost"
        assert nvml.uuids[1] in exited.detail
        assert exited.confirmed_dead
        assert rig.process.wait(10) == 0


def test_without_the_gpu_from_the_start(scripted: Scripted, tmp_path: Path) -> None:
    nvml, visible = scripted(), tmp_path / "visible"
    visible.write_text("none")
    with rigged(visible) as (rig, agent):
        exited = agent.expect(protocol.Exited, of(start(rig, agent, nvml)))
        assert (exited.reason, exited.signal) == ("devices_lost", signal.SIGKILL)
        assert nvml.uuids[0] in exited.detail


def test_a_driver_that_hangs_inside_ends_nothing_and_keeps_nothing_alive(
    scripted: Scripted, tmp_path: Path
) -> None:
    nvml = scripted()
    nvml.rule("hang nvmlInitWithFlags")
    with rigged(tmp_path / "all") as (rig, agent):
        attempt = start(rig, agent, nvml)
        rig.logged("runs")
        process = wait_for("look", lambda: looker(rig))
        agent.send(protocol.Kill(attempt))
        exited = agent.expect(protocol.Exited, of(attempt))
        assert (exited.reason, exited.confirmed_dead) == ("killed", True)
        assert not process.is_running()
        assert rig.process.poll() is None


def test_a_program_that_ends_takes_the_look_along(scripted: Scripted, tmp_path: Path) -> None:
    nvml = scripted()
    with rigged(tmp_path / "all") as (rig, agent):
        for _ in range(3):
            attempt = start(rig, agent, nvml, "import time; time.sleep(0.3)")
            exited = agent.expect(protocol.Exited, of(attempt))
            assert (exited.reason, exited.code, exited.confirmed_dead) == ("exit", 0, True)
            agent.send(protocol.AckExit(attempt))
        assert looker(rig) is None


def test_a_look_that_crashes_ends_nothing(scripted: Scripted, tmp_path: Path) -> None:
    nvml = scripted()
    nvml.rule("crash nvmlDeviceGetHandleByUUID")
    with rigged(tmp_path / "all") as (rig, agent):
        program = "import os, time\nwhile not os.path.exists('go'): time.sleep(0.01)"
        attempt = start(rig, agent, nvml, program)
        wait_for("look", lambda: looker(rig), 30)
        wait_for("its end", lambda: looker(rig) is None, 30)
        (rig.root / "go").touch()
        exited = agent.expect(protocol.Exited, of(attempt))
        assert (exited.reason, exited.code, exited.confirmed_dead) == ("exit", 0, True)


def test_an_image_without_the_library_is_judged_by_its_device_nodes(tmp_path: Path) -> None:
    assert devices.look(str(tmp_path / "libnvidia-ml.so.1"), []) == ""
    missing = devices.look(str(tmp_path / "libnvidia-ml.so.1"), ["GPU-x"] * 99)
    assert missing.endswith("of 99 GPUs have a device node here")


DENIED, ABSENT = "/proc/sys/kernel/ostype", "/dev/nvidia-nowhere"


@pytest.mark.parametrize(
    ("nodes", "said"),
    [((ABSENT, DENIED), f"{DENIED} cannot be opened: Permission denied"), ((ABSENT, "/dev/full"), "")],
)
def test_a_node_that_may_not_be_opened_is_a_loss_though_nvml_does_without_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nodes: tuple[str, ...], said: str
) -> None:
    """CUDA needs /dev/nvidia-uvm, which NVML never opens. The kernel lets nobody write to DENIED."""
    uuids = FakeNvml(tmp_path).uuids
    monkeypatch.setattr(devices, "_SHARED", nodes)
    assert devices.look(str(tmp_path / LIBRARY), list(uuids)) == said


@pytest.mark.parametrize("symbol", ["nvmlInitWithFlags", "nvmlDeviceGetHandleByUUID"])
@pytest.mark.parametrize("code", [1, 2, 8, 12, 17, 18, 19, 23, 999])
def test_an_error_that_says_nothing_of_the_devices_is_no_loss(
    scripted: Scripted, symbol: str, code: int
) -> None:
    """18: the driver on the host was upgraded, and the one that is loaded still serves what runs."""
    nvml = scripted()
    nvml.rule(f"fail {symbol} {code}")
    assert devices.look(str(nvml.library), list(nvml.uuids)) == ""


@pytest.mark.parametrize("symbol", ["nvmlInitWithFlags", "nvmlDeviceGetHandleByUUID"])
@pytest.mark.parametrize("code", [4, 6, 9, 15])
def test_an_error_that_speaks_of_the_devices_is_one(scripted: Scripted, symbol: str, code: int) -> None:
    nvml = scripted()
    nvml.rule(f"fail {symbol} {code}")
    assert f"error {code})" in devices.look(str(nvml.library), list(nvml.uuids))


def test_one_that_nothing_is_known_of_hides_no_loss_of_another(scripted: Scripted) -> None:
    nvml = scripted()
    nvml.set(0, error=18)
    nvml.set(1, error=15)
    assert devices.look(str(nvml.library), list(nvml.uuids)).startswith(nvml.uuids[1])


def test_a_driver_that_is_upgraded_under_an_attempt_ends_nothing(scripted: Scripted, tmp_path: Path) -> None:
    nvml = scripted()
    with rigged(tmp_path / "all") as (rig, agent):
        program = (
            "import os, time\nprint('runs', flush=True)\nwhile not os.path.exists('go'): time.sleep(0.01)"
        )
        attempt = start(rig, agent, nvml, program)
        rig.logged("runs")
        looks = wait_for("look", lambda: looker(rig), 30)
        nvml.rule("fail nvmlInitWithFlags 18")
        # Each look asks for the processor again: so many that some of them have met the error.
        switches = looks.num_ctx_switches().voluntary
        wait_for("looks", lambda: looks.num_ctx_switches().voluntary > switches + 20, 30)
        (rig.root / "go").touch()
        exited = agent.expect(protocol.Exited, of(attempt))
        assert (exited.reason, exited.code, exited.confirmed_dead) == ("exit", 0, True)
