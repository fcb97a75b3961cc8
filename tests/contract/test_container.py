"""Fields of a job's container: each rule, and each refused field is named."""

from __future__ import annotations

from dataclasses import replace

import pytest

from supervisor.contract.errors import UserError
from supervisor.contract.job.container import (
    ULIMITS,
    cautions,
    check_cpuset,
    check_image,
    check_network,
    check_python,
    check_source,
    check_target,
    check_variable,
    environment_objections,
    mount_objection,
    objections,
)
from supervisor.contract.job.spec import ContainerSpec, JobSpec, Mount, Resources, Ulimit
from tests.support.builders import GIB, job_spec, role

GOOD = ContainerSpec(
    image="registry.example:5000/team/tf:2.21@sha256:" + "0" * 64,
    python="/opt/venv/bin/python3.11",
    cpuset="0-3,8",
    swap_bytes=GIB,
    shm_bytes=GIB,
    pids=512,
    ulimits=(Ulimit("nofile", 1024, 4096), Ulimit("memlock", -1, -1), Ulimit("stack", 8 << 20, -1)),
    mounts=(Mount("/data/digits", "/data", read_only=False), Mount("/opt/tf", "/opt/tf")),
)


def _where(spec: JobSpec) -> list[str]:
    return [".".join(map(str, each.where)) for each in objections(spec)]


def _with(container: ContainerSpec) -> JobSpec:
    return replace(job_spec(), container=container)


def test_what_a_job_may_ask_for_has_no_objection() -> None:
    assert objections(_with(GOOD)) == ()
    assert objections(_with(ContainerSpec())) == ()
    need = Resources(1.0, GIB, 2, {}, gpu_memory_bytes=GIB, gpu_model="NVIDIA H200", gpu_share=2)
    assert objections(job_spec((role("worker", need=need),))) == ()
    assert objections(job_spec((role("worker", need=replace(need, gpu_indices=(0, 3))),))) == ()


@pytest.mark.parametrize(
    ("container", "where"),
    [
        (ContainerSpec(image="--privileged"), ["container.image"]),
        (ContainerSpec(image="tf:2.21 "), ["container.image"]),
        (ContainerSpec(python="-c"), ["container.python"]),
        (ContainerSpec(network="container:etcd"), ["container.network"]),
        (ContainerSpec(network=""), ["container.network"]),
        (ContainerSpec(cpuset="3-0"), ["container.cpuset"]),
        (ContainerSpec(swap_bytes=-1), ["container.swap"]),
        (ContainerSpec(shm_bytes=-1), ["container.shm"]),
        (ContainerSpec(pids=-1), ["container.pids"]),
        (ContainerSpec(pids=10**9), ["container.pids"]),
        (ContainerSpec(ulimits=(Ulimit("rtprio", 99, 99),)), ["container.ulimits.rtprio"]),
        (ContainerSpec(ulimits=(Ulimit("nproc", 9, 9),)), ["container.ulimits.nproc"]),
        (ContainerSpec(ulimits=(Ulimit("nofile", -1, -1),)), ["container.ulimits.nofile"] * 2),
        (ContainerSpec(ulimits=(Ulimit("nofile", 9, 8),)), ["container.ulimits.nofile"]),
        (ContainerSpec(ulimits=(Ulimit("stack", -1, 8),)), ["container.ulimits.stack"]),
        (ContainerSpec(ulimits=(Ulimit("core", 0, 0),) * 2), ["container.ulimits.core"]),
        (ContainerSpec(mounts=(Mount("data", "/data"),)), ["container.mounts.0.source"]),
        (ContainerSpec(mounts=(Mount("/data", "/etc"),)), ["container.mounts.0.target"]),
        (
            ContainerSpec(mounts=(Mount("/a", "/data"), Mount("/b", "/data"))),
            ["container.mounts.1.target"],
        ),
        (ContainerSpec(mounts=tuple(Mount(f"/a{n}", f"/b{n}") for n in range(33))), ["container.mounts"]),
    ],
)
def test_each_field_of_a_container_that_is_refused_is_named(
    container: ContainerSpec, where: list[str]
) -> None:
    assert _where(_with(container)) == where


@pytest.mark.parametrize(
    ("need", "where"),
    [
        (Resources(gpu_memory_bytes=GIB), ["gpu_memory"]),
        (Resources(gpu_model="H200"), ["gpu_model"]),
        (Resources(gpu_share=2), ["gpu_share"]),
        (Resources(gpu_share=0), ["gpu_share"]),
        (Resources(gpus=1, gpu_share=65), ["gpu_share"]),
        (Resources(gpus=1, gpu_model="H200\n"), ["gpu_model"]),
        (Resources(gpus=2, gpu_indices=(1, 1)), ["gpu_indices"]),
        (Resources(gpus=1, gpu_indices=(0, 1)), ["gpu_indices"]),
        (Resources(gpus=1, gpu_indices=(-1,)), ["gpu_indices"]),
        (Resources(gpus=-1), ["gpus"]),
        (Resources(memory_bytes=-1), ["memory"]),
        (Resources(cpus=float("nan")), ["cpus"]),
    ],
)
def test_each_resource_that_is_refused_is_named(need: Resources, where: list[str]) -> None:
    spec = job_spec((role("worker", need=need),))
    assert _where(spec) == [f"roles.worker.resources.{name}" for name in where]


def test_variables_that_decide_what_runs_outside_the_program_are_refused_for_the_job_and_for_a_role() -> None:
    spec = replace(job_spec((role("worker"),)), env={"LD_PRELOAD": "/data/evil.so", "A": "b"})
    assert _where(spec) == ["env.LD_PRELOAD"]
    worker = replace(role("worker"), env={"NVIDIA_VISIBLE_DEVICES": "all", "CUDA_VISIBLE_DEVICES": "0"})
    assert _where(job_spec((worker,))) == [
        "roles.worker.env.NVIDIA_VISIBLE_DEVICES",
        "roles.worker.env.CUDA_VISIBLE_DEVICES",
    ]
    assert [each.where for each in environment_objections({"LD_AUDIT": "", "PATH": ""})] == [
        ("env", "LD_AUDIT")
    ]


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("LD_PRELOAD", "dynamic loader"),
        ("LD_LIBRARY_PATH", "dynamic loader"),
        ("NVIDIA_VISIBLE_DEVICES", "NVIDIA's container runtime"),
        ("NVIDIA_DRIVER_CAPABILITIES", "resources.gpus"),
        ("TFSUP_GENERATION", "set by tf-supervisor"),
        ("A=B", "cannot be the name"),
        ("A\n", "cannot be the name"),
        ("", "cannot be the name"),
        ("Ａ", "cannot be the name"),
    ],
)
def test_a_variable_is_refused_with_the_reason(name: str, reason: str) -> None:
    with pytest.raises(UserError, match=reason):
        check_variable(name)


@pytest.mark.parametrize("name", ["PATH", "PYTHONPATH", "TF_NUM_INTRAOP_THREADS", "_", "OLD_LD_PATH", "ld"])
def test_other_variables_are_the_programs_own(name: str) -> None:
    assert check_variable(name) == name


@pytest.mark.parametrize(
    "text",
    [
        *("tensorflow", "tf:2.21", "a/b/c:latest", "localhost:5000/x", "GHCR.io/a/b", "a__b", "a--b.c_d"),
        *("x@sha256:" + "a" * 64, "sha256:" + "b" * 64),
    ],
)
def test_images_by_every_name_that_docker_knows(text: str) -> None:
    assert check_image(text) == text


@pytest.mark.parametrize(
    "text",
    [
        *(
            "",
            "-v",
            "Tensorflow",
            "a//b",
            "a:b:c",
            "a b",
            "a\n",
            "a@sha256:12",
            "../a",
            "/a",
            "a/",
            "a:",
            "http://a",
        ),
        *("a" * 256, "a\0", "é", "a:٣", "a/-v"),
    ],
)
def test_images_by_no_name_at_all(text: str) -> None:
    with pytest.raises(UserError, match="is not the name of an image"):
        check_image(text)


@pytest.mark.parametrize(
    "text",
    [
        *(
            "/",
            "//",
            "/data/",
            "/data/../etc",
            "/./data",
            "data",
            "",
            "/a//b",
            "/a\n",
            "/a\0b",
            "/a\x1b[2J",
            "/a\u202eb",
        ),
        *(
            "/proc",
            "/proc/1/root",
            "/sys",
            "/sys/fs/cgroup",
            "/dev",
            "/dev/nvidia0",
            "/dev/mem",
            "/etc",
            "/etc/shadow",
        ),
        *("/run", "/run/docker.sock", "/var/run/docker.sock", "/var/run", "/var", "/boot", "/var/lib"),
        *("/var/lib/docker", "/var/lib/docker/volumes", "/var/lib/containerd", "/" + "a" * 1100),
    ],
)
def test_what_of_a_node_can_never_be_mounted(text: str) -> None:
    with pytest.raises(UserError):
        check_source(text)


@pytest.mark.parametrize(
    "text",
    [
        "/",
        "/etc",
        "/etc/ld.so.preload",
        "/lib",
        "/usr",
        "/usr/lib/x",
        "/usr/bin",
        "/bin",
        "/proc",
        "/sys/x",
        "/dev/shm",
    ],
)
def test_where_nothing_can_be_mounted(text: str) -> None:
    with pytest.raises(UserError):
        check_target(text)


@pytest.mark.parametrize(
    "text", ["/data", "/etcetera", "/devices", "/procs", "/opt/x", "/home/me/data", "/mnt/a b"]
)
def test_directories_of_data(text: str) -> None:
    assert (check_source(text), check_target(text)) == (text, text)


@pytest.mark.parametrize(
    "text",
    [
        "container:a",
        "bridge",
        "service:a",
        "ns:/proc/1/ns/net",
        "none",
        "default",
        "a b",
        "-a",
        "a/b",
        "x" * 129,
        "",
    ],
)
def test_what_is_no_network_of_a_job(text: str) -> None:
    with pytest.raises(UserError):
        check_network(text)


@pytest.mark.parametrize("text", ["host", "training", "rack-7_overlay.a"])
def test_networks(text: str) -> None:
    assert check_network(text) == text


@pytest.mark.parametrize("text", ["0", "0-3", "0,2,4-7", "11"])
def test_processors(text: str) -> None:
    assert check_cpuset(text) == text


@pytest.mark.parametrize("text", ["", "a", "0-", "-1", "0,,1", "3-1", "0 1", "99999", "1-2-3", "٣"])
def test_no_processors(text: str) -> None:
    with pytest.raises(UserError):
        check_cpuset(text)


@pytest.mark.parametrize(
    "text", ["-m", "python 3", "bin/python", "/usr/bin/../sh", "/", "python;sh", "", "a\n"]
)
def test_no_interpreters(text: str) -> None:
    with pytest.raises(UserError):
        check_python(text)


def test_a_mount_is_allowed_by_a_directory_above_it_on_a_whole_name() -> None:
    allowed = [
        Mount("/data", ""),
        Mount("/scratch", "", read_only=False),
        Mount("/data/out", "", read_only=False),
    ]
    assert mount_objection(Mount("/data", "/x"), allowed) == ""
    assert mount_objection(Mount("/data/a", "/x"), allowed) == ""
    assert mount_objection(Mount("/scratch/a", "/x", read_only=False), allowed) == ""
    assert mount_objection(Mount("/data/out/a", "/x", read_only=False), allowed) == ""
    assert "read_only alone" in mount_objection(Mount("/data/a", "/x", read_only=False), allowed)
    assert "not in a directory" in mount_objection(Mount("/database", "/x"), allowed)
    assert "not in a directory" in mount_objection(Mount("/", "/x"), allowed)
    assert "not in a directory" in mount_objection(Mount("/data", "/x"), [])


def test_too_little_for_tensorflow_is_a_caution_and_no_objection() -> None:
    small = replace(
        job_spec((role("ps", need=Resources(memory_bytes=128 << 20)), role("worker"))),
        container=ContainerSpec(pids=100),
    )
    assert objections(small) == ()
    assert cautions(small) == ()
    told = cautions(replace(small, preload=("tensorflow",)))
    assert [each.where for each in told] == [("roles", "ps", "resources", "memory"), ("container", "pids")]
    assert "128 MiB" in told[0].text


def test_limits_that_give_rights_are_not_among_those_of_jobs() -> None:
    assert not ULIMITS.keys() & {"rtprio", "nice", "rttime", "nproc"}
