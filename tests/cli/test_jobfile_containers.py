"""Containers and GPUs in job files: what a good one becomes; every way to ask for more is refused."""

from __future__ import annotations

import inspect
import itertools
import re
from collections.abc import Iterator
from pathlib import Path

import docker.types.containers
import pytest
from docker.models.containers import RUN_CREATE_KWARGS, RUN_HOST_CONFIG_KWARGS
from docker.types import Mount as SdkMount
from hypothesis import given
from hypothesis import strategies as st

from supervisor.adapters.files.jobfile import load_job_file
from supervisor.adapters.files.jobfile_model import (
    ContainerModel,
    JobModel,
    MountModel,
    ResourcesModel,
    RoleModel,
)
from supervisor.adapters.files.yaml_file import Strict
from supervisor.contract.errors import TfSupervisorError, UserError
from supervisor.contract.job.container import objections
from supervisor.contract.job.spec import ContainerSpec, JobSpec, Mount, Packing, Pull, Resources, Ulimit
from tests.cli.shell import ctl

HEAD = "name: a\nstrategy: plain\ncommand: [python, x.py]\n"
ROLES = "roles: {worker: {count: 1}}\n"
FULL = """\
packing: pack
container:
  image: registry.example:5000/team/tf:2.21
  pull: always
  python: /usr/bin/python3.11
  network: host
  cpuset: 0-3
  swap: 1GiB
  shm: 512MiB
  pids: 400
  ulimits: {nofile: 65536, memlock: {soft: 1024, hard: -1}}
  mounts:
  - {source: /data/digits, target: /data}
  - {source: /scratch, target: /out, read_only: false}
roles:
  worker:
    count: 1
    resources:
      {cpus: 2, memory: 4GiB, gpus: 2, gpu_memory: 40GiB, gpu_model: H200, gpu_share: 2, gpu_indices: [3, 0]}
"""


def load(directory: Path, text: str) -> JobSpec:
    path = directory / "job.yaml"
    path.write_text(text)
    return load_job_file(path, checkpoint_base="file:///checkpoints").spec


def refusals(directory: Path, text: str) -> list[str]:
    """The errors about a job file, without the file's name; fails when the file is taken."""
    with pytest.raises(UserError) as caught:
        load(directory, text)
    lines = str(caught.value).splitlines()
    assert all(line.startswith(f"{directory}/job.yaml:") for line in lines), lines
    return [line.removeprefix(f"{directory}/job.yaml:") for line in lines]


def test_a_good_file(tmp_path: Path) -> None:
    spec = load(tmp_path, HEAD + FULL)
    assert spec.packing is Packing.PACK
    assert spec.container == ContainerSpec(
        image="registry.example:5000/team/tf:2.21",
        pull=Pull.ALWAYS,
        python="/usr/bin/python3.11",
        cpuset="0-3",
        swap_bytes=1 << 30,
        shm_bytes=512 << 20,
        pids=400,
        ulimits=(Ulimit("nofile", 65536, 65536), Ulimit("memlock", 1024, -1)),
        mounts=(Mount("/data/digits", "/data"), Mount("/scratch", "/out", read_only=False)),
    )
    assert spec.role("worker").resources == Resources(
        cpus=2.0,
        memory_bytes=4 << 30,
        gpus=2,
        gpu_memory_bytes=40 << 30,
        gpu_model="H200",
        gpu_share=2,
        gpu_indices=(3, 0),
    )


def test_without_one_there_is_none_and_an_empty_one_is_the_nodes_default(tmp_path: Path) -> None:
    assert load(tmp_path, HEAD + ROLES).container is None
    assert load(tmp_path, HEAD + ROLES + "container: {}\n").container == ContainerSpec()


def test_pinned_gpus_need_no_count(tmp_path: Path) -> None:
    spec = load(tmp_path, HEAD + "roles: {worker: {count: 1, resources: {gpu_indices: [0, 2]}}}\n")
    assert spec.role("worker").resources.gpus == 2


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("container: {image: 'a b'}", "5: container.image: 'a b' is not the name of an image"),
        ("container: {pull: sometimes}", "5: container.pull: must be one of never, missing, always"),
        ("container: {python: -c}", "5: container.python: '-c' is not a program"),
        ("container: {network: 'container:x'}", "5: container.network: 'container:x' is not the name of"),
        ("container: {network: none}", "5: container.network: 'none' is docker's own, which tasks of other"),
        ("container: {cpuset: all}", "5: container.cpuset: 'all' is not a list of processors"),
        ("container: {swap: -1}", "5: container.swap: -1 is not a size"),
        ("container: {shm: 64}", "5: container.shm: 64 is not a size"),
        ("container: {pids: -1}", "5: container.pids: must be at least 0"),
        ("container: {pids: unlimited}", "5: container.pids: must be a whole number"),
        ("container: {ulimits: {nofile: many}}", "5: container.ulimits.nofile: must be a whole number, or a"),
        ("container: {ulimits: {nofile: -1}}", "5: container.ulimits.nofile: -1 is not possible; it must be"),
        (
            "container: {ulimits: {rtprio: 99}}",
            "5: container.ulimits.rtprio: 'rtprio' is not a limit that a job",
        ),
        ("container: {ulimits: {nproc: 99}}", "5: container.ulimits.nproc: nproc counts all containers"),
        (
            "container: {ulimits: {nofile: {soft: 1}}}",
            "5: container.ulimits.nofile.hard: missing; add `hard: N`",
        ),
        ("container: {ulimits: [nofile=1]}", "5: container.ulimits: must be a mapping"),
        ("container: {mounts: ['/a:/b']}", "5: container.mounts[0]: must be a mapping"),
        ("container: {mounts: [{source: /a}]}", "5: container.mounts[0].target: missing; add `target: /DIR"),
        (
            "container: {mounts: [{source: /, target: /a}]}",
            "5: container.mounts[0].source: '/' must be an abs",
        ),
        (
            "container: {mounts: [{source: /run/docker.sock, target: /a}]}",
            "5: container.mounts[0].source: /run/docker.sock is or holds /run, which is the node's own",
        ),
        (
            "container: {mounts: [{source: /a, target: /etc/ld.so.preload}]}",
            "5: container.mounts[0].target: /etc/ld.so.preload is or holds /etc, which is the image's own",
        ),
        ("packing: tight", "5: packing: must be one of spread, pack"),
        ("env: {LD_PRELOAD: /x.so}", "5: env.LD_PRELOAD: LD_PRELOAD changes what the dynamic loader loads"),
        ("env: {NVIDIA_VISIBLE_DEVICES: all}", "5: env.NVIDIA_VISIBLE_DEVICES: NVIDIA_VISIBLE_DEVICES tells"),
        ("env: {CUDA_VISIBLE_DEVICES: '0'}", "5: env.CUDA_VISIBLE_DEVICES: CUDA_VISIBLE_DEVICES is set by"),
        ("image: tf", "5: image: is the same for all roles: write container.image, at the top of the file"),
        ("gpus: 1", "5: gpus: is asked for each role: write roles.NAME.resources.gpus"),
        (
            "container: {memory: 2GiB}",
            "5: container.memory: is asked for each role: write roles.NAME.resources.mem",
        ),
        ("container: {Image: tf}", "5: container.Image: unknown key; did you mean 'image'?"),
        (
            "container: {pid: host}",
            "5: container.pid: would let the task see or disturb what else runs on its",
        ),
        ("container: {privileged: true}", "5: container.privileged: would give the task rights on its node"),
    ],
)
def test_each_mistake_has_one_clear_message(tmp_path: Path, text: str, expected: str) -> None:
    lines = refusals(tmp_path, HEAD + ROLES + text + "\n")
    assert [line for line in lines if line.startswith(expected)], lines


@pytest.mark.parametrize(
    ("resources", "expected"),
    [
        ("{gpus: 9999}", "gpus: must be at most 1024"),
        ("{gpus: all}", "gpus: must be a whole number"),
        ("{gpu_share: 0}", "gpu_share: must be at least 1"),
        ("{gpu_share: 2}", "gpu_share: has no effect without GPUs; add gpus: 1"),
        ("{gpu_memory: 1GiB}", "gpu_memory: has no effect without GPUs"),
        ("{gpu_model: H200}", "gpu_model: has no effect without GPUs"),
        ("{gpus: 1, gpu_model: '*'}", "gpu_model: '*' is not a part of a GPU's name"),
        ("{gpus: 1, gpu_indices: [0, 1]}", "gpu_indices: names 2 GPUs, and gpus is 1; remove gpus"),
        ("{gpu_indices: [1, 1]}", "gpu_indices: names a GPU twice"),
        ("{gpu_indices: [-1]}", "gpu_indices[0]: must be at least 0"),
        ("{devices: [/dev/mem]}", "devices: would give the task rights on its node"),
        ("{shm: 1GiB}", "shm: is the same for all roles: write container.shm"),
    ],
)
def test_each_wrong_resource_has_one_clear_message(tmp_path: Path, resources: str, expected: str) -> None:
    lines = refusals(tmp_path, HEAD + f"roles: {{worker: {{count: 1, resources: {resources}}}}}\n")
    assert [line for line in lines if line.startswith(f"4: roles.worker.resources.{expected}")], lines


# What docker has: fields of its API (1.41 to 1.51), options of `docker run` (to 28.2); its SDK comes below.
API = """
    Aliases CgroupPermissions DNSNames DiskQuota DriverOpts Driver DeviceIDs Capabilities EndpointID
    EndpointsConfig Gateway GlobalIPv6Address GwPriority IPAMConfig IPAddress IPv4Address IPv6Address
    IPv6Gateway LinkLocalIPs NetworkID PathInContainer PathOnHost Platform Rate Warnings Interval Retries
    StartInterval StartPeriod Timeout Umask
    AttachStderr AttachStdin AttachStdout Annotations ArgsEscaped AutoRemove Binds BlkioDeviceReadBps
    BlkioDeviceReadIOps BlkioDeviceWriteBps BlkioDeviceWriteIOps BlkioWeight BlkioWeightDevice CapAdd
    CapDrop Cgroup CgroupParent CgroupnsMode Cmd ConsoleSize ContainerIDFile CpuCount CpuPercent CpuPeriod
    CpuQuota CpuRealtimePeriod CpuRealtimeRuntime CpuShares CpusetCpus CpusetMems DeviceCgroupRules
    DeviceRequests Devices Dns DnsOptions DnsSearch Domainname Entrypoint Env ExposedPorts ExtraHosts
    GroupAdd Healthcheck HostConfig Hostname IOMaximumBandwidth IOMaximumIOps Init IpcMode Isolation
    KernelMemory KernelMemoryTCP Labels Links LogConfig MacAddress MaskedPaths Memory MemoryReservation
    MemorySwap MemorySwappiness NanoCpus NetworkDisabled NetworkMode NetworkingConfig OnBuild
    OomKillDisable OomScoreAdj OpenStdin PidMode PidsLimit PortBindings Privileged PublishAllPorts
    ReadonlyPaths ReadonlyRootfs RestartPolicy Runtime SecurityOpt Shell ShmSize StdinOnce StopSignal
    StopTimeout StorageOpt Sysctls Tmpfs Tty UTSMode User UsernsMode VolumeDriver Volumes VolumesFrom
    WorkingDir
"""
OPTIONS = """
    add-host annotation attach blkio-weight blkio-weight-device cap-add cap-drop cgroup-parent cgroupns
    cidfile cpu-count cpu-percent cpu-period cpu-quota cpu-rt-period cpu-rt-runtime cpu-shares cpuset-cpus
    cpuset-mems detach detach-keys device device-cgroup-rule device-read-bps device-read-iops
    device-write-bps device-write-iops disable-content-trust dns dns-option dns-search domainname
    entrypoint env env-file expose group-add health-cmd health-interval health-retries health-timeout
    health-start-interval health-start-period hostname init interactive
    io-maxbandwidth io-maxiops ip ip6 ipc isolation kernel-memory label label-file link
    link-local-ip log-driver log-opt mac-address memory-reservation memory-swap memory-swappiness mount
    network-alias no-healthcheck oom-kill-disable oom-score-adj pid pids-limit platform privileged publish
    publish-all quiet read-only restart rm runtime security-opt shm-size sig-proxy stop-signal
    stop-timeout storage-opt sysctl tmpfs tty ulimit use-api-socket user userns uts volume volume-driver
    volumes-from workdir
"""
MOUNTS = """
    Type Consistency BindOptions VolumeOptions TmpfsOptions ImageOptions Propagation NonRecursive
    CreateMountpoint bind-create-src bind-recursive image-subpath volume-label volume-nocopy volume-subpath
    ReadOnlyNonRecursive ReadOnlyForceRecursive NoCopy DriverConfig Subpath SizeBytes
    Mode Options bind-propagation bind-nonrecursive volume-opt volume-driver tmpfs-size tmpfs-mode
"""
PLACES: dict[str, tuple[type[Strict], str]] = {
    "": (JobModel, HEAD + ROLES + "KEY: VALUE\n"),
    "container.": (ContainerModel, HEAD + ROLES + "container: {image: tf, KEY: VALUE}\n"),
    "roles.worker.": (RoleModel, HEAD + "roles: {worker: {count: 1, KEY: VALUE}}\n"),
    "roles.worker.resources.": (
        ResourcesModel,
        HEAD + "roles: {worker: {count: 1, resources: {KEY: VALUE}}}\n",
    ),
    "container.mounts[0].": (
        MountModel,
        HEAD + ROLES + "container: {mounts: [{source: /data, target: /data, KEY: VALUE}]}\n",
    ),
}


def _docker_has() -> list[str]:
    sdk = [
        *inspect.signature(docker.types.containers.HostConfig.__init__).parameters,
        *inspect.signature(docker.types.containers.ContainerConfig.__init__).parameters,
        *inspect.signature(SdkMount.__init__).parameters,
        *(*RUN_CREATE_KWARGS, *RUN_HOST_CONFIG_KWARGS),
    ]
    return sorted({*sdk, *API.split(), *OPTIONS.split(), *MOUNTS.split()} - {"self"})


def _cases() -> Iterator[tuple[str, str]]:
    for place, (model, _) in PLACES.items():
        yield from ((place, key) for key in _docker_has() if key not in model.model_fields)


def _at(place: str, key: str, value: str) -> str:
    return PLACES[place][1].replace("KEY", key).replace("VALUE", value)


def test_nothing_of_docker_has_a_key_in_a_job_file(tmp_path: Path) -> None:
    """In each place, in each of docker's spellings; the field is named, and the file is not taken."""
    values = itertools.cycle(("true", "host", "[ALL]", "{a: b}"))
    cases = [*_cases()]
    assert len(cases) > 1200
    for place, key in cases:
        lines = refusals(tmp_path, _at(place, key, next(values)))
        assert [line for line in lines if re.match(rf"\d+: {re.escape(place + key)}: ", line)], lines


def test_what_would_give_rights_is_refused_with_that_reason(tmp_path: Path) -> None:
    for key in ("privileged", "CapAdd", "cap-add", "devices", "DeviceRequests", "security_opt", "UsernsMode"):
        for place in PLACES:
            (line,) = refusals(tmp_path, _at(place, key, "x"))
            assert line.endswith("rights on its node, which no job gets; remove it"), line
    for key in ("PidMode", "pid", "ipc", "ipc_mode", "uts", "cgroup_parent", "CgroupnsMode"):
        for place in PLACES:
            (line,) = refusals(tmp_path, _at(place, key, "host"))
            assert line.endswith("runs on its node, which no job may; remove it"), line


@pytest.mark.parametrize(
    "text",
    [
        "container: &c {image: tf}\nother: {<<: *c, privileged: true}",
        "container: {<<: {privileged: true}, image: tf}",
        "container: {image: tf, image: other}",
        "container: {image: tf}\ncontainer: {privileged: true}",
        "container: {image: !!binary dGY=}",
        "container: {'image\u200b': tf}",
        "container: {'privileged ': true}",
        "container: {PRIVILEGED: true}",
        "container: {\u0440rivileged: true}",
        "container: {image: tf --privileged}",
        'container: {image: "tf\\0"}',
        'container: {image: "tf\\n"}',
        "container: {image: [tf]}",
        "container: {image: {name: tf}}",
        "container: [image: tf]",
        "container: tf",
        "container: {network: ['host']}",
        'container: {network: "host\\0"}',
        "container: {network: host --privileged}",
        'container: {mounts: [{source: "/data\\0/etc", target: /a}]}',
        "container: {mounts: [{source: /data/../etc, target: /a}]}",
        "container: {mounts: [{source: /data/./x, target: /a}]}",
        "container: {mounts: [{source: //etc, target: /a}]}",
        "container: {mounts: [{source: ~, target: /a}]}",
        "container: {mounts: [{source: ~/x, target: /a}]}",
        "container: {mounts: [{source: $HOME, target: /a}]}",
        "container: {mounts: [{source: volume, target: /a}]}",
        "container: {mounts: [{source: '', target: /a}]}",
        "container: {mounts: [{source: /data, target: /a, read_only: 0}]}",
        "container: {mounts: [{source: /data, target: '/a:rw'}, {source: /data, target: '/a:rw'}]}",
        "container: {mounts: [{source: /data, target: /a}, {source: /d2, target: /a}]}",
        "container: {mounts: {source: /data, target: /a}}",
        "container: {ulimits: {memlock: -2}}",
        "container: {ulimits: {nofile: 99999999999999}}",
        "container: {ulimits: {nofile: 1e9}}",
        "container: {ulimits: {nofile: {soft: 2, hard: 1}}}",
        "container: {ulimits: {nofile: {soft: 2, hard: 4, name: rtprio}}}",
        "container: {pids: 1.5}",
        "container: {pids: 99999999999}",
        "container: {shm: 1e99}",
        "container: {shm: -1}",
        "container: {swap: unlimited}",
        "container: {cpuset: '0-99999'}",
        "container: {cpuset: 0.5}",
        "container: {python: 'python3 -c evil'}",
        "container: {python: /proc/self/../../bin/sh}",
        "env: {LD_AUDIT: /x.so}",
        "env: {'LD_PRELOAD ': /x.so}",
        "env: {'A=B\\nLD_PRELOAD': /x.so}",
        "env: {NVIDIA_DRIVER_CAPABILITIES: all}",
        "env: {NVIDIA_REQUIRE_CUDA: 'cuda>=1'}",
        "env: {NVIDIA_MIG_CONFIG_DEVICES: all}",
        "env: {TFSUP_SOCKET: /x}",
    ],
)
def test_yaml_smuggles_nothing_in(tmp_path: Path, text: str) -> None:
    lines = refusals(tmp_path, HEAD + ROLES + text + "\n")
    assert not [line for line in lines if "not valid YAML" in line], "a mistake of this test's"


NAMES = st.one_of(
    st.sampled_from(
        [*_docker_has(), *ContainerModel.model_fields, *MountModel.model_fields, "nofile", "rtprio"]
    ),
    st.from_regex(r"[A-Za-z_-]{1,12}", fullmatch=True),
)
SCALARS = st.one_of(
    st.sampled_from(
        [
            *(
                "true",
                "host",
                "tf:2.21",
                "always",
                "/data",
                "/etc",
                "/proc/1/root",
                "/run/docker.sock",
                "/data/../etc",
            ),
            *(
                "ALL",
                "container:x",
                "-1",
                "0",
                "64",
                "1GiB",
                "0-3",
                "~",
                "'*'",
                "/dev/mem",
                "SYS_ADMIN",
                "unconfined",
            ),
        ]
    ),
    st.from_regex(r"[ -~]{0,12}", fullmatch=True).map(lambda text: "'" + text.replace("'", "''") + "'"),
)


def _flow(body: dict[str, str]) -> str:
    return "{" + ", ".join(f"{key}: {value}" for key, value in body.items()) + "}"


def _mostly(*good: str) -> st.SearchStrategy[str]:
    return st.sampled_from(good) | st.sampled_from(good) | SCALARS


def _list(items: list[str]) -> str:
    return f"[{', '.join(items)}]"


MOUNT = st.fixed_dictionaries(
    {"source": _mostly("/data", "/data/a b", "/scratch"), "target": _mostly("/data", "/x", "/y", "/opt/z")},
    optional={"read_only": st.sampled_from(["true", "false"])},
).map(_flow)
VALUES = st.one_of(
    SCALARS,
    st.lists(SCALARS, max_size=3).map(_list),
    st.lists(MOUNT, max_size=3).map(_list),
    st.dictionaries(NAMES, SCALARS, max_size=3).map(_flow),
)
LIKELY = st.fixed_dictionaries(
    {},
    optional={
        "image": _mostly("tf:2.21", "host:5000/a/b", "a@sha256:" + "0" * 64),
        "network": _mostly("host", "training"),
        "mounts": st.lists(MOUNT, max_size=2).map(_list),
        "ulimits": st.dictionaries(
            st.sampled_from(["nofile", "core", "stack", "rtprio"]), _mostly("64", "1024"), max_size=2
        ).map(_flow),
        "pids": _mostly("100", "0"),
        "cpuset": _mostly("0-3", "1,2"),
        "shm": _mostly("1GiB"),
    },
)
IMAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/:@-]*")


def _check_harmless(spec: JobSpec) -> None:
    """By rules written for this test: what dockerd is told is within what any job may have."""
    container = spec.container
    assert container is not None
    assert not objections(spec)
    assert not container.image or IMAGE.fullmatch(container.image)
    assert re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]*", container.network)
    assert container.network not in ("bridge", "default", "ingress", "none")
    assert re.fullmatch(r"[0-9,-]*", container.cpuset)
    assert min(container.swap_bytes, container.shm_bytes, container.pids) >= 0
    for limit in container.ulimits:
        assert limit.name in ("core", "fsize", "memlock", "nofile", "stack")
    for mount in container.mounts:
        for path in (mount.source, mount.target):
            assert path.startswith("/")
            assert "/../" not in f"{path}/"
            top = path.split("/")[1]
            assert top not in ("", "proc", "sys", "dev", "etc", "run", "boot")


STRANGE = st.dictionaries(NAMES, VALUES, max_size=2)


@given(LIKELY | STRANGE | st.builds(lambda strange, likely: strange | likely, STRANGE, LIKELY))
def test_no_container_that_a_job_file_can_name_gets_more(
    tmp_path_factory: pytest.TempPathFactory, body: dict[str, str]
) -> None:
    directory = tmp_path_factory.getbasetemp()
    text = HEAD + ROLES + f"container: {_flow(body)}\n"
    try:
        spec = load(directory, text)
    except TfSupervisorError:
        assert refusals(directory, text)
        return
    _check_harmless(spec)


def test_cautions_are_told_on_the_error_output(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(
        HEAD + "container: {pids: 50}\nroles: {worker: {count: 1, resources: {memory: 128MiB}}}\n"
    )
    done = ctl(tmp_path, "validate", "job.yaml", "--offline")
    assert (done.returncode, done.stdout) == (0, "a: the file is valid: 1 tasks\n")
    told = done.stderr.splitlines()
    assert told[0].startswith("warning: job.yaml:5: roles.worker.resources.memory: 128 MiB: TensorFlow")
    assert told[1].startswith("warning: job.yaml:4: container.pids: TensorFlow has about 100")
