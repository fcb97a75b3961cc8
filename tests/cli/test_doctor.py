"""`doctor`: each check is made to fail once, and is well where this machine is."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from agent.main import _docker
from chaos.cluster.certificates import Authority
from chaos.container_image import IMAGE
from chaos.dockerd import Dockerd
from chaos.little_images import load
from chaos.nvml import FakeNvml
from supervisor.adapters.certificates.x509 import validity
from supervisor.adapters.files.config.agent import AgentConfig, load_agent
from supervisor.cli.checks import cluster, containers, durations, gpus, machine, model
from supervisor.cli.cluster.doctor import checks
from supervisor.cli.cluster.engine import EngineInfo, mapping_of
from supervisor.cli.cluster.findings import Finding, State
from supervisor.contract.errors import Refused, UserError
from tests.cli.agent_config import write_config
from tests.support.etcd_server import EtcdServer
from tests.support.sinks import ListSink


def config(directory: Path, **more: object) -> AgentConfig:
    return load_agent(write_config(directory, **more))


def look(name: str, scene: model.Scene) -> Finding:
    """The finding of one check, as `doctor` runs it."""
    (check,) = (each for each in checks() if each.name == name)
    (found,) = model.run([check], scene)
    assert bool(found.advice) == (found.state is not State.OK)
    return found


def test_directories_that_cannot_be_written(tmp_path: Path) -> None:
    scene = model.Scene(config(tmp_path), "")
    assert look("state_dir", scene).state is State.OK
    assert look("checkpoint_parent", scene).state is State.OK
    (tmp_path / "file").touch()
    inside = str(tmp_path / "file" / "below")
    scene = model.Scene(config(tmp_path, state_dir=inside, checkpoint_parent=inside), "")
    for name in ("state_dir", "checkpoint_parent"):
        found = look(name, scene)
        assert (found.state, found.detail) == (State.FAIL, f"{tmp_path / 'file'} is no directory")
    found = look("state_dir", model.Scene(config(tmp_path, state_dir="/proc/tfsup"), ""))
    assert found.state is State.FAIL
    assert "/proc cannot be written" in found.detail


@pytest.mark.parametrize("name", ["state_dir space", "checkpoint space"])
def test_disks_without_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    scene = model.Scene(config(tmp_path), "")
    monkeypatch.setattr(machine, "ENOUGH_BYTES", 0)
    monkeypatch.setattr(machine, "LEAST_BYTES", 0)
    assert look(name, scene).state is State.OK
    monkeypatch.setattr(machine, "ENOUGH_BYTES", 1 << 60)
    assert look(name, scene).state is State.WARN
    monkeypatch.setattr(machine, "LEAST_BYTES", 1 << 60)
    assert look(name, scene).state is State.FAIL


def test_locks_that_cannot_be_made(tmp_path: Path) -> None:
    scene = model.Scene(config(tmp_path), "")
    assert look("lock_dir", scene).state is State.OK
    (tmp_path / "locks").rmdir()
    assert look("lock_dir", scene).state is State.FAIL


def test_ports_that_are_few_or_that_others_get(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = tmp_path / "ipv4"
    settings.mkdir()
    (settings / "ip_local_port_range").write_text("32768\t60999\n")
    (settings / "ip_local_reserved_ports").write_text("\n")
    monkeypatch.setattr(machine, "_SETTINGS", settings)

    def ports(low: int, high: int) -> Finding:
        return look("ports", model.Scene(config(tmp_path, port_low=low, port_high=high), ""))

    assert ports(20_000, 29_999).state is State.OK
    assert ports(30_000, 39_999).state is State.WARN
    (settings / "ip_local_reserved_ports").write_text("8080,32768-40000\n")
    assert ports(30_000, 39_999).state is State.OK
    assert ports(20_000, 20_010).state is State.FAIL
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert port in machine.listening()
        assert ports(port, port + machine.LEAST_PORTS - 1).state is State.FAIL
    assert port not in machine.listening()


def test_a_machine_without_fuse(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "FUSE", Path("/dev/no-fuse"))
    found = look("fuse", model.Scene(None, ""))
    assert found.state is State.WARN
    assert "/dev/no-fuse (No such file or directory)" in found.detail


def test_a_clock_that_nobody_sets(monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(machine._clock_status(), int)
    for status, state in ((0x40, State.WARN), (0x2001, State.OK)):
        monkeypatch.setattr(machine, "_clock_status", lambda status=status: status)
        assert look("clock", model.Scene(None, "")).state is state


def test_an_etcd_that_does_not_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with EtcdServer() as server:
        scene = model.Scene(config(tmp_path, etcd={"endpoints": [server.endpoint]}), "")
        assert look("etcd", scene).state in (State.OK, State.WARN)
        monkeypatch.setattr(cluster, "SLOW_MS", 0)
        assert look("etcd", scene).state is State.WARN
    assert look("etcd", scene).state is State.FAIL


def test_an_etcd_that_is_full_or_lacks_a_member(tmp_path: Path) -> None:
    with EtcdServer(flags=("--quota-backend-bytes", "4000000")) as server:
        away = f"unix:{tmp_path}/away:0"
        found = look("etcd", model.Scene(config(tmp_path, etcd={"endpoints": [server.endpoint, away]}), ""))
        assert found.state is State.WARN
        assert f"a member does not answer: {away}" in found.detail
        server.fill()
        found = look("etcd", model.Scene(config(tmp_path, etcd={"endpoints": [server.endpoint]}), ""))
        assert found.state is State.FAIL
        assert "NOSPACE" in found.detail


def test_certificates_that_end_soon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    authority = Authority(tmp_path / "tls")
    cert, key = authority.issue("n1", ["127.0.0.1"])
    tls = {"ca": str(authority.certificate), "cert": str(cert), "key": str(key)}
    scene = model.Scene(config(tmp_path, tls=tls), "")
    found = look("certificates", scene)
    assert (found.state, found.advice) == (State.OK, "")
    life = validity(cert.read_bytes())
    for now, state, said in (
        (life.ends - (life.ends - life.begins) / 6, State.WARN, "expires at"),
        (life.ends, State.FAIL, "expired at"),
    ):
        monkeypatch.setattr(cluster, "now", lambda now=now: now)
        found = look("certificates", scene)
        assert found.state is state
        assert said in found.detail
        assert "--renew" in found.advice
    key.write_bytes(authority.issue("n2", ["127.0.0.1"])[1].read_bytes())
    found = look("certificates", scene)
    assert found.state is State.FAIL
    assert "does not belong to" in found.detail
    assert model.run(cluster.CHECKS[:1], model.Scene(config(tmp_path), "")) == []


def test_a_dockerd_that_is_not_there(tmp_path: Path) -> None:
    nowhere = f"unix://{tmp_path}/docker.sock"
    assert look("dockerd", model.Scene(None, nowhere)).state is State.FAIL
    assert look("dockerd", model.Scene(None, nowhere, needs_docker=False)).state is State.WARN
    rest = [each for each in containers.CHECKS if each.name != "dockerd"]
    assert model.run(rest, model.Scene(None, nowhere)) == []
    assert model.run(containers.CHECKS, model.Scene(config(tmp_path), "")) == []


@pytest.fixture(scope="module")
def poor() -> Iterator[Dockerd]:
    """A dockerd whose containers end with it."""
    with Dockerd(live_restore=False, settings={"runtimes": {"nvidia": {"path": "runc"}}}) as daemon:
        yield daemon


def test_dockerd_and_live_restore(dockerd: Dockerd, poor: Dockerd, monkeypatch: pytest.MonkeyPatch) -> None:
    rich, scene = model.Scene(None, dockerd.url), model.Scene(None, poor.url)
    assert look("dockerd", rich).state is State.OK
    assert look("live-restore", rich).state is State.OK
    assert look("live-restore", scene).state is State.WARN
    assert look("cgroups", rich).state is not State.FAIL
    monkeypatch.setattr(containers, "OLDEST_API", (99, 0))
    assert look("dockerd", rich).state is State.FAIL
    monkeypatch.setattr(machine, "LEAST_BYTES", 1 << 60)
    assert look("docker space", rich).state is State.FAIL


def test_a_way_to_give_gpus_to_containers(
    dockerd: Dockerd, poor: Dockerd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rich, scene = model.Scene(None, dockerd.url), model.Scene(None, poor.url)
    assert look("nvidia", scene).detail == "runtime nvidia"
    (check,) = (each for each in containers.CHECKS if each.name == "nvidia")
    assert model.run([check], rich) == []
    (tmp_path / "version").touch()
    monkeypatch.setattr(gpus, "DRIVER", tmp_path / "version")
    assert look("nvidia", rich).state is State.FAIL
    hook = tmp_path / containers.HOOK
    hook.write_text("#!/bin/sh\n")
    hook.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert look("nvidia", rich).state is State.OK


def test_images(dockerd: Dockerd, tmp_path: Path) -> None:
    def image(name: str) -> Finding:
        return look("image", model.Scene(None, dockerd.url, name))

    assert image(IMAGE).state is State.OK
    assert image("").state is State.WARN
    assert image("nobody/has:this").state is State.WARN
    load(dockerd, tmp_path, "little:foreign", architecture="arm64")
    assert image("little:foreign").state is State.FAIL


def test_mounts_that_are_not_there_or_hold_too_much(tmp_path: Path) -> None:
    data = tmp_path / "data"

    def mounts(source: Path) -> Finding:
        docker = {"mounts": [{"source": str(source)}]}
        return look("mounts", model.Scene(config(tmp_path, runtime="docker", docker=docker), "/nowhere"))

    assert mounts(data).state is State.FAIL
    data.mkdir()
    assert mounts(data).state is State.OK
    assert "the agent's own" in mounts(tmp_path).detail


def test_an_agent_does_not_start_that_would_mount_what_is_its_own(tmp_path: Path) -> None:
    """A job could read every launcher's state there, and every other job's checkpoints."""
    data = tmp_path / "data"
    data.mkdir()
    (tmp_path / "link").symlink_to(data)

    def start(source: Path, **own: str) -> None:
        docker = {"mounts": [{"source": str(source)}], "user": f"{os.geteuid()}:{os.getegid()}"}
        _docker(config(tmp_path, runtime="docker", docker=docker, **own), ListSink())

    start(data)
    for name in ("state_dir", "checkpoint_parent"):
        for source in (data, tmp_path / "link", tmp_path):
            with pytest.raises(
                UserError, match=f"docker.mounts: {source} holds .*, which is the agent's own"
            ):
                start(source, **{name: str(data / "inside")})


def test_cgroups() -> None:
    def judged(driver: str, version: str, *warnings: str) -> State:
        engine = EngineInfo("20.10", "1.41", "amd64", True, driver, version, (), "/", warnings)
        return containers.judge_cgroups(engine, systemd=True).state

    assert judged("none", "1") is State.FAIL
    assert judged("cgroupfs", "2") is State.WARN
    assert judged("systemd", "2") is State.OK
    assert judged("systemd", "1", "WARNING: No blkio throttle.read_bps_device support") is State.OK
    assert judged("cgroupfs", "1") is State.WARN, "all containers are one cgroup beside the agent"
    assert judged("cgroupfs", "1", "WARNING: No swap limit support") is State.WARN


@pytest.mark.parametrize(
    ("version", "state"),
    [
        ("1.1.5+ds1", State.WARN),
        ("1.1.11", State.WARN),
        ("1.1.12", State.OK),
        ("1.2.0-rc.1", State.OK),
        ("", None),
    ],
)
def test_a_runc_that_lets_containers_out(version: str, state: State | None) -> None:
    found = containers.judge_runc(version)
    assert (found.state if found is not None else None) is state


@pytest.mark.parametrize(("option", "mapping"), [("userns", "userns-remap"), ("rootless", "rootless")])
def test_users_that_are_others_outside(option: str, mapping: str) -> None:
    usual = "name=seccomp,profile=default"
    engine = EngineInfo(
        "20.10", "1.41", "amd64", True, "systemd", "2", (), "/", maps_users=mapping_of([usual])
    )
    assert containers.judge_users(engine).state is State.OK
    found = containers.judge_users(replace(engine, maps_users=mapping_of([usual, f"name={option}"])))
    assert found.state is State.FAIL
    assert found.detail.startswith(f"{mapping}: users in containers are others outside")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives each job a user")
@pytest.mark.parametrize("runtime", ["process", "docker"])
def test_users_of_jobs_and_their_firewall(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, runtime: str
) -> None:
    (tmp_path / "locks").mkdir()
    (tmp_path / "locks").chmod(0o1777)
    users = "61600-61699"
    own: dict[str, object] = {"docker": {"user": users}} if runtime == "docker" else {"task_user": users}
    scene = model.Scene(config(tmp_path, runtime=runtime, firewall=True, **own), "")
    name = "docker.user" if runtime == "docker" else "task_user"
    found = look(name, scene)
    assert (found.state, found.detail) == (
        State.OK,
        "each job's tasks run as a user of their own, of 61601-61699",
    )
    assert look("firewall", scene).detail == "nftables, table inet tfsup_trial_node-0"
    monkeypatch.setenv("PATH", str(tmp_path))
    found = look("firewall", scene)
    assert (found.state, "cannot run nft" in found.detail) == (State.FAIL, True)


def test_networks_that_jobs_may_join(dockerd: Dockerd, tmp_path: Path) -> None:
    def asked(*names: str) -> Finding:
        docker = {"socket": str(dockerd.socket), "networks": list(names)}
        scene = model.Scene(config(tmp_path, runtime="docker", docker=docker), dockerd.url)
        return look("networks", scene)

    assert asked("none-such").detail == "no network none-such"
    # What every dockerd has is no network of jobs; the configuration says so.
    with pytest.raises(UserError, match="every job may use the host's network"):
        asked("host")


def test_durations_that_the_profile_allows_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scene = model.Scene(config(tmp_path, profile="fast"), "")
    monkeypatch.setattr(durations, "CHILD_S", 100)
    # Under load they may well be warnings.
    assert "the profile allows for 1000 ms" in durations.kill_time(scene).detail
    assert "the profile allows for 1800 ms" in durations.agent_restart(scene).detail
    assert durations._judge(499, 1000, "").state is State.OK
    assert durations._judge(501, 1000, "").state is State.WARN
    monkeypatch.setattr(durations, "CHILD_S", 0.001)
    assert "is not loaded within" in look("agent restart", scene).detail


@pytest.mark.parametrize(
    ("taken_ms", "state"), [(500, State.OK), (501, State.WARN), (1450, State.WARN), (1451, State.FAIL)]
)
def test_a_kill_that_takes_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, taken_ms: int, state: State
) -> None:
    async def rehearsed(_nice: int, _user: tuple[int, int] | None) -> int:
        return taken_ms

    monkeypatch.setattr(durations, "rehearse", rehearsed)
    assert durations.kill_time(model.Scene(config(tmp_path, profile="fast"), "")).state is state


def test_a_kill_that_cannot_be_rehearsed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def refused(_nice: int, _user: tuple[int, int] | None) -> int:
        raise Refused("no process for it")

    monkeypatch.setattr(durations, "rehearse", refused)
    found = durations.kill_time(model.Scene(config(tmp_path, profile="fast"), ""))
    assert (found.state, found.detail) == (State.WARN, "not known: no process for it")


def test_gpus_that_do_not_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = tmp_path / "nvml"
    directory.mkdir()
    fake = FakeNvml(directory)
    scene = model.Scene(config(tmp_path, gpus={"library": str(fake.library)}), "")

    def asked() -> Finding:
        return look("nvml", scene)

    assert asked() == Finding("nvml", State.OK, "driver 570.86.15, 2 GPUs")
    fake.rule("fail nvmlDeviceGetMemoryInfo_v2 15")
    found = asked()
    assert (found.state, found.detail) == (State.FAIL, f"no answer from {', '.join(fake.uuids)}")
    fake.rule("fail nvmlDeviceGetHandleByIndex_v2 999")
    found = asked()
    assert (found.state, found.detail) == (State.FAIL, "2 of 2 GPUs are there, but cannot be opened")
    fake.rule("fail nvmlInitWithFlags 9")
    assert asked().state is State.FAIL
    fake.rule("crash nvmlSystemGetDriverVersion")
    assert "ended with code -" in asked().detail
    monkeypatch.setattr(gpus, "NVML_S", 1)
    fake.rule("hang nvmlSystemGetDriverVersion")
    assert "does not answer" in asked().detail


def test_a_machine_without_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus, "DRIVER", tmp_path / "version")
    monkeypatch.setattr(gpus, "DEVICE", tmp_path / "device")
    monkeypatch.setattr(gpus, "_ASK", """print('{"problem": "no library"}')""")
    assert look("nvml", model.Scene(None, "")).state is State.OK
    (tmp_path / "version").touch()
    assert look("nvml", model.Scene(None, "")).state is State.FAIL


def test_a_check_that_never_ends_is_a_failure_and_holds_up_no_other() -> None:
    forever = threading.Event()

    def hangs(scene: model.Scene) -> None:
        forever.wait()

    names = ("disk", "other disk", "third disk")
    hanging = [model.Check(name, hangs, "mend it", lambda _: True, 2) for name in names]
    patient = model.Check("well", lambda _: model.ok("fine"), "", lambda _: True)
    began = time.monotonic()
    found = model.run([*hanging, patient], model.Scene(None, ""))
    taken_s = time.monotonic() - began
    forever.set()
    assert found == [
        *(Finding(name, State.FAIL, "no answer after 2 s", "mend it") for name in names),
        Finding("well", State.OK, "fine"),
    ]
    assert taken_s < 4, "each has its own time, from the common beginning"


def test_what_measures_the_machine_does_so_alone() -> None:
    looking, seen = set[str](), list[frozenset[str]]()
    lock, both = threading.Lock(), threading.Barrier(2)

    def look(name: str, together: threading.Barrier | None) -> model.Told:
        with lock:
            looking.add(name)
        if together is not None:
            together.wait(30)
        with lock:
            seen.append(frozenset(looking))
        if together is not None:
            together.wait(30)
        with lock:
            looking.remove(name)
        return model.ok(name)

    def check(name: str, *, alone: bool = False) -> model.Check:
        together = None if alone else both
        return model.Check(name, lambda _: look(name, together), "", lambda _: True, 60, alone)

    checks = [check("first", alone=True), check("a"), check("b"), check("last", alone=True)]
    found = model.run(checks, model.Scene(None, ""))
    assert [each.check for each in found] == ["first", "a", "b", "last"]
    assert seen == [frozenset("ab"), frozenset("ab"), frozenset({"first"}), frozenset({"last"})]


def doctor(*options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [Path(sys.executable).with_name("supervisorctl"), "doctor", *options],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_the_verb(tmp_path: Path, dockerd: Dockerd) -> None:
    with EtcdServer() as server:
        etcd = {"endpoints": [server.endpoint]}
        docker = {"socket": str(dockerd.socket), "image": IMAGE}
        path = write_config(tmp_path, etcd=etcd, runtime="docker", docker=docker)
        done = doctor("--agent-config", str(path), "--output", "json")
        report = json.loads(done.stdout)
        assert not [each for each in report["findings"] if each["state"] == "fail"]
        assert done.returncode == 0
        assert report["ok"]
        names = [each["check"] for each in report["findings"]]
        assert {"configuration", "state_dir", "lock_dir", "ports", "etcd", "dockerd", "image", "nvml"} <= set(
            names
        )
    done = doctor("--agent-config", str(write_config(tmp_path, etcd=etcd)))
    assert done.returncode == 1
    assert [line for line in done.stdout.splitlines() if line.startswith("etcd ") and " fail " in line]
    assert not [line for line in done.stdout.splitlines() if line.startswith("dockerd")]


def test_a_configuration_that_is_wrong_is_a_finding(tmp_path: Path) -> None:
    path = tmp_path / "agent.yaml"
    path.write_text("cluster: trial\n")
    done = doctor("--agent-config", str(path), "-o", "json")
    assert done.returncode == 1
    first = json.loads(done.stdout)["findings"][0]
    assert (first["check"], first["state"]) == ("configuration", "fail")
    assert "etcd" in first["detail"]
