"""`local up --runtime docker`: what it refuses, what agents are told, and whose containers it removes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from chaos.container_image import IMAGE
from chaos.dockerd import Dockerd
from supervisor.adapters.files.config.agent import load_agent
from supervisor.cli.local import containers
from supervisor.cli.local.layout import Layout, LocalDocker, LocalMount, LocalSettings
from supervisor.contract.errors import NotFound, Unreachable, UserError


def test_agents_are_told(tmp_path: Path) -> None:
    layout = Layout.of(tmp_path / "state")
    mounts = (LocalMount("/data"), LocalMount("/out", read_only=False))
    docker = LocalDocker("/run/x.sock", IMAGE, mounts, ("training",))
    settings = LocalSettings(cluster="local", nodes=2, supervisors=1, profile="fast", docker=docker)
    layout.make()
    layout.write(settings)
    assert layout.read() == settings
    config = load_agent(layout.config("agent-1"))
    assert (config.runtime, config.docker.socket, config.docker.image) == ("docker", "/run/x.sock", IMAGE)
    assert [(each.source, each.read_only, each.always) for each in config.docker.mounts] == [
        ("/data", True, True),
        ("/out", False, True),
    ]
    assert config.docker.networks == ["training"]
    # What runs in containers, as another user, claims its ports there.
    assert layout.ports.stat().st_mode & 0o7777 == 0o1777


@pytest.mark.parametrize("text", ["", "# a line\n[]", '# a line\n{"cluster": "local"}', "# a line\n{"])
def test_a_record_of_another_version_is_said(tmp_path: Path, text: str) -> None:
    layout = Layout.of(tmp_path / "state")
    layout.make()
    layout.settings.write_text(text)
    with pytest.raises(UserError, match="is damaged, or of another version of tf-supervisor; `supervisorctl"):
        layout.read()


def test_what_is_not_there_is_said_before_anything_is_started(dockerd: Dockerd, tmp_path: Path) -> None:
    socket = str(dockerd.socket)
    containers.check(LocalDocker(socket, IMAGE), tmp_path)
    containers.check(LocalDocker(socket), tmp_path)
    with pytest.raises(NotFound, match="no image 'nobody/has:this'"):
        containers.check(LocalDocker(socket, "nobody/has:this"), tmp_path)
    with pytest.raises(Unreachable, match="no dockerd at"):
        containers.check(LocalDocker(f"{tmp_path}/docker.sock", IMAGE), tmp_path)
    with pytest.raises(UserError, match="the cluster's own state is in it"):
        containers.check(LocalDocker(socket, IMAGE, (LocalMount(str(tmp_path)),)), tmp_path / "state")


def test_only_this_clusters_containers_are_removed(dockerd: Dockerd, tmp_path: Path) -> None:
    state = tmp_path / "state"

    def start(*labels: str) -> str:
        options = [word for label in labels for word in ("--label", label)]
        return dockerd.cli("run", "--detach", "--network", "none", *options, IMAGE, "sleep", "600")

    ours = start(f"tfsup.directory={state}/agent-0/launchers")
    others = [start(f"tfsup.directory={tmp_path}/state-2/agent-0/launchers"), start()]
    try:
        containers.remove(LocalDocker(str(dockerd.socket)), state)
        left = dockerd.cli("ps", "--all", "--quiet", "--no-trunc").split()
        assert ours not in left
        assert set(others) <= set(left)
    finally:
        dockerd.cli("rm", "--force", *others)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--image", "x"], "are for --runtime docker"),
        (["--runtime", "docker", "--socket", "tcp://127.0.0.1:2375"], "is not dockerd's Unix socket"),
        (["--runtime", "docker", "--mount", "/no/such/directory:rw"], "/no/such/directory does not exist"),
    ],
)
def test_options_that_cannot_be(tmp_path: Path, options: list[str], told: str) -> None:
    done = subprocess.run(
        [
            Path(sys.executable).with_name("supervisorctl"),
            "--state",
            tmp_path / "state",
            "local",
            "up",
            *options,
        ],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert told in done.stderr
    assert not (tmp_path / "state").exists()
