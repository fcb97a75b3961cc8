"""Checks of dockerd for an agent with `runtime: docker`."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

from supervisor.cli.checks.gpus import has_gpus
from supervisor.cli.checks.machine import space
from supervisor.cli.checks.model import Check, Scene, Told, fail, ok, warn
from supervisor.cli.cluster.engine import EngineInfo
from supervisor.contract.errors import TfSupervisorError

OLDEST_API = (1, 41)
SOUND_RUNC = (1, 1, 12)
_VERSION = re.compile(r"(\d+)\.(\d+)\.(\d+)")
HOOK = "nvidia-container-runtime-hook"
# dockerd's own list of what the kernel or its cgroups lack, of which these mean a limit that does not hold.
_LIMITS = ("memory limit", "swap limit", "cpu cfs", "cpuset", "pids limit")


def dockerd(scene: Scene) -> Told:
    """Whether dockerd answers, and is new enough."""
    try:
        engine = scene.engine
    except TfSupervisorError as error:
        if scene.needs_docker:
            raise
        return warn(str(error), "nothing, unless this machine's agent is to have `runtime: docker`")
    detail = f"{engine.version}, API {engine.api}, at {scene.docker}"
    if tuple(int(part) for part in engine.api.split(".")) < OLDEST_API:
        return fail(detail, "install docker 20.10 or newer")
    return ok(detail)


def live_restore(scene: Scene) -> Told:
    """Whether containers outlive dockerd."""
    if scene.engine.live_restore:
        return ok("on")
    return warn("off: when dockerd ends or is upgraded, every task on this node dies with it")


def cgroups(scene: Scene) -> Told:
    """Whether limits are enforced, and only one manager controls the cgroups."""
    return judge_cgroups(scene.engine, systemd=Path("/run/systemd/system").is_dir())


def judge_cgroups(engine: EngineInfo, *, systemd: bool) -> Told:
    """The judgement of dockerd's answer on cgroups. `systemd`: it is this machine's init."""
    detail = f"version {engine.cgroup_version}, driver {engine.cgroup_driver}"
    lacking = [each for each in engine.warnings if any(limit in each.lower() for limit in _LIMITS)]
    if engine.cgroup_driver == "none":
        return fail(
            f"{detail}: no limit of a task is enforced", "run dockerd as root, or with cgroup v2 and systemd"
        )
    if lacking:
        return warn(f"{detail}; {'; '.join(lacking)}", "enable these controllers (kernel command line)")
    if engine.cgroup_version == "2" and engine.cgroup_driver != "systemd" and systemd:
        return warn(f"{detail}: systemd and dockerd both write them")
    if engine.cgroup_driver == "cgroupfs" and systemd:
        return warn(f"{detail}: all containers weigh as one cgroup beside the agent's service")
    return ok(detail)


def users(scene: Scene) -> Told:
    """Whether a uid in a container is the same uid outside."""
    return judge_users(scene.engine)


def judge_users(engine: EngineInfo) -> Told:
    """The judgement of dockerd's answer on users."""
    if engine.maps_users:
        return fail(
            f"{engine.maps_users}: users in containers are others outside, who cannot use our directories"
        )
    return ok("the same inside and outside")


def runc(scene: Scene) -> Told | None:
    """Whether the version of runc is known to let containers break out."""
    return judge_runc(scene.engine.runc)


def judge_runc(version: str) -> Told | None:
    """The judgement of a version of runc; None if dockerd does not report it."""
    found = _VERSION.match(version)
    if found is None:
        return None
    if tuple(map(int, found.groups())) < SOUND_RUNC:
        return warn(
            f"{version}: before 1.1.12, an image or a working directory can lead out (CVE-2024-21626)"
        )
    return ok(version)


def networks(scene: Scene) -> Told | None:
    """Whether the docker networks for jobs exist."""
    from supervisor.cli.cluster.engine import Engine

    wanted = scene.agent.docker.networks
    if not wanted:
        return None
    with Engine(scene.docker) as engine:
        missing = [name for name in wanted if name not in engine.networks()]
    return fail(f"no network {', '.join(missing)}") if missing else ok(", ".join(wanted))


def nvidia(scene: Scene) -> Told | None:
    """Whether containers can get GPUs."""
    if "nvidia" in scene.engine.runtimes:
        return ok("runtime nvidia")
    if shutil.which(HOOK, path=f"{os.environ.get('PATH', os.defpath)}:/usr/bin:/usr/sbin"):
        return ok(f"{HOOK}, for --gpus")
    if has_gpus():
        return fail("neither the runtime nvidia nor a prestart hook; no task can be given a GPU")
    return None


def image(scene: Scene) -> Told:
    """Whether dockerd has the default image."""
    from supervisor.cli.cluster.engine import Engine

    if not scene.image:
        return warn("no default: only jobs that name an image can run here", "set docker.image")
    with Engine(scene.docker) as engine:
        found = engine.image(scene.image)
        wanted = engine.info().architecture
    if found is None:
        return warn(f"{scene.image} is not here: the first task waits for it", f"docker pull {scene.image}")
    if found.architecture != wanted:
        return fail(f"{scene.image} is for {found.architecture}, this machine is {wanted}", "pull it anew")
    return ok(f"{scene.image}, {found.id.removeprefix('sha256:')[:12]}")


def mounts(scene: Scene) -> Told:
    """Whether the directories for containers exist, and contain none of the agent's own files."""
    config = scene.agent
    own = (
        config.state_dir,
        config.socket_dir,
        config.checkpoint_parent,
        config.lock_dir,
        config.docker.socket,
    )
    for each in config.docker.mounts:
        if not Path(each.source).exists():
            return fail(f"{each.source} does not exist")
        for directory in own:
            if Path(directory).is_relative_to(each.source):
                return fail(f"{each.source} holds {directory}, which is the agent's own", "mount less of it")
    return ok(", ".join(each.source for each in config.docker.mounts) or "none")


def data_space(scene: Scene) -> Told:
    """The space for images and containers."""
    return space(Path(scene.engine.data_root))


def _wanted(scene: Scene) -> bool:
    return bool(scene.docker)


def _configured(scene: Scene) -> bool:
    return scene.config is not None and scene.config.runtime == "docker"


def _joined(scene: Scene) -> bool:
    return _configured(scene) and _answers(scene)


def _answers(scene: Scene) -> bool:
    return bool(scene.docker) and scene.has_engine


CHECKS = (
    Check("dockerd", dockerd, "start it (systemctl start docker), or say where it is with --socket", _wanted),
    Check("live-restore", live_restore, 'set "live-restore": true in /etc/docker/daemon.json', _answers),
    Check("cgroups", cgroups, 'set "exec-opts": ["native.cgroupdriver=systemd"] in daemon.json', _answers),
    Check("users", users, 'take "userns-remap" out of daemon.json, or run dockerd as root', _answers),
    Check(
        "runc",
        runc,
        "install runc 1.1.12 or newer, or make sure that your distribution has mended its own (Debian 12: "
        "1.1.5+ds1-1+deb12u1)",
        _answers,
    ),
    Check("docker space", data_space, "make room (docker image prune), or move docker's data-root", _answers),
    Check("image", image, "see `supervisorctl image check`", _answers),
    Check("mounts", mounts, "make the directory, or take it out of docker.mounts", _configured),
    Check("networks", networks, "docker network create NAME, or take it out of docker.networks", _joined),
    Check("nvidia", nvidia, "install nvidia-container-toolkit, run nvidia-ctk runtime configure", _answers),
)
