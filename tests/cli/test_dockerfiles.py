"""The Dockerfiles of deploy/docker, built by a real dockerd on the test image, with a pip that only notes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from chaos.container_image import IMAGE
from chaos.dockerd import Dockerd

DIRECTORY = Path(__file__).resolve().parents[2] / "deploy" / "docker"
BASE = "tfsup-test:with-pip"
NOTING_PIP = """import os, sys
with open("/pip-was-asked", "w") as file:
    file.write("\\n".join(sys.argv[1:]))
"""


@pytest.fixture(scope="module")
def base(dockerd: Dockerd, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The test image with a module `pip`."""
    directory = tmp_path_factory.mktemp("base")
    (directory / "pip.py").write_text(NOTING_PIP)
    (directory / "Dockerfile").write_text(f"FROM {IMAGE}\nCOPY pip.py /usr/lib/python3.11/pip.py\n")
    dockerd.cli("build", "--tag", BASE, str(directory))
    yield BASE
    dockerd.cli("rmi", "--force", BASE)


@pytest.mark.parametrize(
    ("name", "requirement", "capabilities"),
    [
        ("cpu", "tensorflow-cpu>=2.21,<2.22", ""),
        ("gpu", "tensorflow[and-cuda]>=2.21,<2.22", "compute,utility"),
    ],
)
def test_they_install_tensorflow_and_run_as_nobody_special(
    dockerd: Dockerd, base: str, name: str, requirement: str, capabilities: str
) -> None:
    tag = f"tfsup-test:{name}"
    dockerd.cli(
        *("build", "--network", "none", "--tag", tag, "--file", str(DIRECTORY / f"{name}.Dockerfile")),
        *("--build-arg", f"BASE={base}", "--build-arg", "PACKAGES=a==1 b==2", str(DIRECTORY)),
    )
    try:
        said = dockerd.cli(
            *("run", "--rm", "--network", "none", tag, "sh", "-c"),
            'cat /pip-was-asked; echo; id -u; echo "$NVIDIA_DRIVER_CAPABILITIES"',
        )
    finally:
        dockerd.cli("rmi", tag)
    asked = ["install", "--no-cache-dir", "--compile", requirement, "a==1", "b==2"]
    assert said.splitlines() == [*asked, "1000", *([capabilities] if capabilities else [])]


def test_the_image_of_pods_has_the_versions_of_the_lock(dockerd: Dockerd, base: str, tmp_path: Path) -> None:
    context = tmp_path / "context"
    context.mkdir()
    lock = (DIRECTORY.parents[1] / "requirements.lock").read_text()
    (context / "requirements.lock").write_text(lock)
    (tmp_path / "Dockerfile").write_text(f"FROM {base}\nRUN touch /usr/bin/tini && chmod 755 /usr/bin/tini\n")
    dockerd.cli("build", "--network", "none", "--tag", f"{BASE}-tini", str(tmp_path))
    tag = "tfsup-test:cluster"
    dockerd.cli(
        *("build", "--network", "none", "--tag", tag, "--file", str(DIRECTORY / "cluster.Dockerfile")),
        *("--build-arg", f"BASE={BASE}-tini", "--build-arg", "PACKAGES=a==1 b==2", str(context)),
    )
    try:
        said = dockerd.cli(
            *("run", "--rm", "--network", "none", "--entrypoint", "sh", tag, "-c"),
            'cat /pip-was-asked; echo; id -un; sed "s/$/;/" /versions',
        )
    finally:
        dockerd.cli("rmi", tag, f"{BASE}-tini")
    before, _, versions = said.partition("\ntfsup\n")
    wanted = ["/src", "tensorflow-cpu>=2.21,<2.22", "a==1", "b==2"]
    assert before.splitlines()[3:] == ["--constraint", "/versions", *wanted]
    pinned = re.findall(r"^[\w.\[\]-]+==\S+", lock, re.MULTILINE)
    assert [each for each in versions.splitlines() if each != ";"] == [f"{each};" for each in pinned]
