"""nvidia-docker over scripted GPUs, by the runtime and by the hook: a container sees what it was given."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from chaos.container_image import IMAGE
from chaos.dockerd import Dockerd
from chaos.nvidia_docker import hook_env, runtime_settings, see
from chaos.nvml import FakeNvml

LIST = """
import ctypes
nvml = ctypes.CDLL("libnvidia-ml.so.1")
assert nvml.nvmlInit_v2() == 0
count = ctypes.c_uint()
nvml.nvmlDeviceGetCount_v2(ctypes.byref(count))
for index in range(count.value):
    device, uuid = ctypes.c_void_p(), ctypes.create_string_buffer(96)
    nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(device))
    nvml.nvmlDeviceGetUUID(device, uuid, 96)
    print(uuid.value.decode())
"""


@pytest.fixture(scope="module")
def nvml(tmp_path_factory: pytest.TempPathFactory) -> FakeNvml:
    return FakeNvml(tmp_path_factory.mktemp("nvml"), 4)


@pytest.fixture(scope="module")
def nvidia_docker(nvml: FakeNvml) -> Iterator[Dockerd]:
    env = hook_env(nvml, f"/usr/sbin:/usr/bin:/sbin:/bin:{os.environ['PATH']}")
    with Dockerd(settings=runtime_settings(nvml), env=env) as daemon:
        yield daemon


def run(daemon: Dockerd, *options: str, program: str = LIST) -> list[str]:
    hardened = ("--rm", "--network=none", "--read-only", "--user=1000", "--cap-drop=ALL")
    return daemon.cli("run", *hardened, *options, IMAGE, "python3", "-c", program).split()


def test_by_the_runtime(nvml: FakeNvml, nvidia_docker: Dockerd) -> None:
    given = f"NVIDIA_VISIBLE_DEVICES={nvml.uuids[2]},{nvml.uuids[0]}"
    assert run(nvidia_docker, "--runtime=nvidia", "-e", given) == [nvml.uuids[0], nvml.uuids[2]]
    assert run(nvidia_docker, "--runtime=nvidia", "-e", "NVIDIA_VISIBLE_DEVICES=3") == [nvml.uuids[3]]


def test_by_a_device_request(nvml: FakeNvml, nvidia_docker: Dockerd) -> None:
    assert run(nvidia_docker, "--gpus", f"device={nvml.uuids[1]}") == [nvml.uuids[1]]
    assert run(nvidia_docker, "--gpus", "all") == list(nvml.uuids)


def test_without_gpus_there_is_no_library(nvidia_docker: Dockerd) -> None:
    program = "import os; print(os.path.exists('/run/fake-nvml'))"
    void = ("--runtime=nvidia", "-e", "NVIDIA_VISIBLE_DEVICES=void")
    assert run(nvidia_docker, *void, program=program) == ["False"]
    assert run(nvidia_docker, program=program) == ["False"]


def test_a_gpu_that_is_not_there(nvidia_docker: Dockerd) -> None:
    given = "NVIDIA_VISIBLE_DEVICES=GPU-00000099-0000-4000-8000-000000000099"
    done = nvidia_docker.attempt(
        "run", "--rm", "--network=none", "--runtime=nvidia", "-e", given, IMAGE, "true"
    )
    assert done.returncode != 0


def test_a_container_loses_its_gpu_while_the_machine_has_it(
    nvml: FakeNvml, nvidia_docker: Dockerd, tmp_path: Path
) -> None:
    options = ("-d", "--network=none", "--runtime=nvidia", "-e", "NVIDIA_VISIBLE_DEVICES=0")
    container = nvidia_docker.cli("run", *options, IMAGE, "sleep", "600")
    try:
        look = ("exec", container, "python3", "-c", LIST)
        assert nvidia_docker.cli(*look) == nvml.uuids[0]
        see(nvml, container)
        assert nvidia_docker.cli(*look) == ""
    finally:
        nvidia_docker.cli("rm", "-f", container)
