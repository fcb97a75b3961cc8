"""Records that no leader of ours would write: an agent makes no container of more than any job may have.

The checks of the job file and of the leader are left out on purpose. What the agent would tell dockerd is
judged by rules that are written here anew.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from agent.core.instructions import Recipe
from agent.host.task_users import OneUser
from agent.runtimes.docker import DockerRuntime
from agent.runtimes.docker_container import container, environment
from agent.runtimes.docker_engine import Engine, Image
from agent.runtimes.docker_node import Allowed, DockerNode
from chaos.container_image import IMAGE
from chaos.dockerd import Dockerd
from supervisor.contract.errors import Refused, UserError
from supervisor.contract.job.spec import ContainerSpec, Mount, Pull, Resources, Ulimit
from supervisor.contract.timing import FAST
from tests.support.sinks import ListSink

UUID = "0123456789abcdef" * 2
BARE = Image("sha256:" + "0" * 64, "amd64")
MAY_HAVE = {
    *("Privileged", "CapDrop", "SecurityOpt", "ReadonlyRootfs", "IpcMode", "Tmpfs", "RestartPolicy", "Init"),
    *("AutoRemove", "LogConfig", "PidsLimit", "NanoCpus", "Memory", "MemorySwap", "CpusetCpus", "ShmSize"),
    *("Ulimits", "Runtime", "DeviceRequests", "NetworkMode", "Mounts"),
}


class Machine:
    """A node with directories that jobs may mount, and others."""

    def __init__(self, root: Path, socket_path: str = "/run/docker.sock") -> None:
        self.root = root
        for name in ("data", "scratch", "secret", "work", "state", "ckpt", "locks", "tasks"):
            (root / name).mkdir()
        (root / "data" / "leak").symlink_to(root / "secret")
        (root / "data" / "up").symlink_to("/")
        os.mkfifo(root / "data" / "fifo")
        self.node = DockerNode(
            cluster="test",
            node="n1",
            socket=socket_path,
            image=IMAGE,
            users=OneUser(1000, 1000),
            homes=root / "state" / "launchers",
            tasks=root / "tasks",
            attempts=root / "state" / "attempts",
            checkpoints=root / "ckpt",
            lock_dir=root / "locks",
            mounts=(
                Allowed(str(root / "data")),
                Allowed(str(root / "scratch"), read_only=False),
                Allowed(str(root / "work")),
            ),
        )
        self.recipe = Recipe("digits", UUID, str(root / "work"), "python3")

    def body(self, recipe: Recipe, image: Image = BARE) -> dict[str, object]:
        """The request to dockerd for this recipe; raises as the agent does."""
        env = environment(recipe, image)
        return container("one-1", recipe, self.node, image, env, frozenset({"runc", "nvidia"}))

    def judge(self, body: dict[str, object], recipe: Recipe) -> None:
        """Fail when this is more than any job may have."""
        assert body["User"] == "1000:1000"
        assert set(body) == {
            *(
                "Image",
                "User",
                "Env",
                "WorkingDir",
                "Entrypoint",
                "Cmd",
                "Labels",
                "Healthcheck",
                "HostConfig",
            )
        }
        host = body["HostConfig"]
        assert isinstance(host, dict)
        assert set(host) <= MAY_HAVE
        assert (host["Privileged"], host["CapDrop"], host["ReadonlyRootfs"]) == (False, ["ALL"], True)
        assert host["SecurityOpt"] == ["no-new-privileges"]
        assert (host["IpcMode"], host["NetworkMode"]) == ("private", "host")
        assert host["PidsLimit"] > 0
        assert min(host.get(name, 0) for name in ("NanoCpus", "Memory", "MemorySwap", "ShmSize")) >= 0
        assert ("Runtime" in host or "DeviceRequests" in host) == bool(recipe.gpus)
        for limit in host.get("Ulimits", ()):
            assert limit["Name"] in ("core", "fsize", "memlock", "nofile", "stack")
        for mount in host["Mounts"]:
            self._judge_mount(mount, recipe)
        told = body["Env"]
        assert isinstance(told, list)
        env = dict(each.split("=", 1) for each in told)
        assert not [name for name in env if name.startswith("LD_") and env[name]]
        assert env["NVIDIA_VISIBLE_DEVICES"] == (",".join(recipe.gpus) or "void")

    def _judge_mount(self, mount: dict[str, object], recipe: Recipe) -> None:
        assert mount["Type"] == "bind"
        source, target = str(mount["Source"]), str(mount["Target"])
        assert source == os.path.realpath(source)
        assert not source.startswith(("/proc", "/sys", "/dev", "/etc", "/run"))
        mine = [self.root / "state" / "attempts" / UUID, self.root / "ckpt" / UUID, self.root / "locks"]
        mine += [self.root / "tasks", self.root / "state" / "launchers" / "one-1", self.root / "scratch"]
        read = [self.root / "data", self.root / "work"]
        if not source.endswith("/agent/inside"):
            assert any(Path(source).is_relative_to(each) for each in (*mine, *read)), source
        if not mount["ReadOnly"]:
            assert any(Path(source).is_relative_to(each) for each in mine), source
        assert not target.startswith(("/proc", "/sys", "/dev", "/etc", "/usr/bin", "/lib"))


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_a_job_that_asks_for_all_that_it_may_have_gets_that(machine: Machine) -> None:
    asked = ContainerSpec(
        cpuset="0",
        swap_bytes=1 << 30,
        shm_bytes=1 << 30,
        pids=500,
        ulimits=(Ulimit("nofile", 1024, 2048),),
        mounts=(
            Mount(str(machine.root / "data"), "/data"),
            Mount(str(machine.root / "scratch"), "/out", read_only=False),
        ),
    )
    need = Resources(2.0, 4 << 30, 1)
    recipe = replace(machine.recipe, container=asked, resources=need, gpus=("GPU-1",), env={"A": "b"})
    body = machine.body(recipe)
    machine.judge(body, recipe)
    host = body["HostConfig"]
    assert isinstance(host, dict)
    assert (host["NanoCpus"], host["Memory"], host["MemorySwap"]) == (2 * 10**9, 4 << 30, 5 << 30)
    assert (host["PidsLimit"], host["ShmSize"], host["Runtime"]) == (500, 1 << 30, "nvidia")
    assert {"/data", "/out"} <= {each["Target"] for each in host["Mounts"]}


def _forged(machine: Machine) -> dict[str, Recipe]:
    """The recipes that a forger of records could try, by their aim."""
    good, root = machine.recipe, machine.root

    def mounts(*given: Mount) -> Recipe:
        return replace(good, container=ContainerSpec(mounts=given))

    def asks(spec: ContainerSpec) -> Recipe:
        return replace(good, container=spec)

    data, secret = str(root / "data"), str(root / "secret")
    return {
        "a directory that is not allowed": mounts(Mount(secret, "/data")),
        "the same through a link": mounts(Mount(f"{data}/leak", "/data")),
        "the machine through a link": mounts(Mount(f"{data}/up", "/data")),
        "what is behind a link": mounts(Mount(f"{data}/up/etc", "/data")),
        "the same by dots": mounts(Mount(f"{data}/../secret", "/data")),
        "a name that begins alike": mounts(Mount(f"{data}-2", "/data")),
        "the directory above": mounts(Mount(str(root), "/data")),
        "everything": mounts(Mount("/", "/data")),
        "docker's socket": mounts(Mount("/run/docker.sock", "/data")),
        "the agent's state": mounts(Mount(str(root / "state"), "/data")),
        "other jobs' checkpoints": mounts(Mount(str(root / "ckpt"), "/data")),
        "a device": mounts(Mount("/dev/mem", "/data")),
        "processes": mounts(Mount("/proc/1/root", "/data")),
        "the kernel": mounts(Mount("/sys/fs/cgroup", "/data")),
        "to write where it may read": mounts(Mount(data, "/data", read_only=False)),
        "what is no directory": mounts(Mount(f"{data}/fifo", "/data")),
        "what is not there": mounts(Mount(f"{data}/nothing", "/data")),
        "a volume of docker's": mounts(Mount("volume", "/data")),
        "another loader": mounts(Mount(data, "/etc/ld.so.preload")),
        "another libc": mounts(Mount(data, "/lib")),
        "another launcher": mounts(Mount(data, "/opt/tf-supervisor")),
        "another launcher's configuration": mounts(Mount(data, str(root / "state" / "launchers" / "one-1"))),
        "the agent's socket": mounts(Mount(data, str(root / "tasks"))),
        "two at one place": mounts(Mount(data, "/data"), Mount(str(root / "scratch"), "/data")),
        "a place by dots": mounts(Mount(data, "/data/../etc")),
        "another's network": asks(ContainerSpec(network="container:etcd")),
        "a network that is not allowed": asks(ContainerSpec(network="bridge")),
        "priority": asks(ContainerSpec(ulimits=(Ulimit("rtprio", 99, 99),))),
        "processes without end": asks(ContainerSpec(pids=-1)),
        "swap without end": replace(
            asks(ContainerSpec(swap_bytes=-(1 << 40))), resources=Resources(memory_bytes=1 << 30)
        ),
        "an image by a path": asks(ContainerSpec(image="../../containers/json")),
        "a program by options": asks(ContainerSpec(python="-c")),
        "the loader's variable": replace(good, env={"LD_PRELOAD": "/data/evil.so"}),
        "all GPUs": replace(good, env={"NVIDIA_VISIBLE_DEVICES": "all"}),
        "all GPUs, in lines": replace(good, env={"A\nNVIDIA_VISIBLE_DEVICES": "all"}),
        "all GPUs, by a sign": replace(good, env={"NVIDIA_VISIBLE_DEVICES=all;A": ""}),
        "the machine's directory to work in": replace(good, workdir="/etc"),
        "the machine's directory by a process": replace(good, workdir="/proc/self/root/etc"),
        "the same by dots and a link": replace(good, workdir=f"{data}/up/etc/../etc"),
        "the agent's state to work in": replace(good, workdir=str(root / "state")),
        "a job's directory elsewhere": replace(good, job_uuid="../../secret"),
        "an absolute one": replace(good, job_uuid=secret),
        "no directory of its own": replace(good, job_uuid="."),
        "none at all": replace(good, job_uuid=""),
    }


async def test_nothing_that_is_forged_becomes_a_container(tmp_path: Path, dockerd: Dockerd) -> None:
    """Each by itself, with a dockerd that would obey; nothing of the machine is given away or changed."""
    machine = Machine(tmp_path, str(dockerd.socket))
    before = _look(tmp_path)
    runtime = DockerRuntime(machine.node, Engine(str(dockerd.socket)), FAST, ListSink())
    through = []
    try:
        for what, recipe in _forged(machine).items():
            try:
                await runtime.spawn(f"one-{len(what)}", recipe)
            except (UserError, Refused):
                continue
            through.append(what)
    finally:
        await runtime.close()
    assert through == []
    made = dockerd.cli("ps", "--all", "--quiet", "--filter", f"label=tfsup.directory={machine.node.homes}")
    assert made == ""
    assert _look(tmp_path) == before


def test_docker_is_not_reached_through_a_directory_that_is_allowed(tmp_path: Path) -> None:
    """An operator may allow more than was meant: the directory of docker's socket, or one above it."""
    inside = tmp_path / "data" / "run"
    machine = Machine(tmp_path, str(tmp_path / "data" / "link.sock"))
    inside.mkdir()
    (inside / "docker.sock").touch()
    (tmp_path / "data" / "link.sock").symlink_to(inside / "docker.sock")
    (tmp_path / "data" / "other").mkdir()
    for source in (tmp_path / "data", inside, inside / "docker.sock"):
        asked = ContainerSpec(mounts=(Mount(str(source), "/data"),))
        with pytest.raises(Refused, match="docker's socket is in it"):
            machine.body(replace(machine.recipe, container=asked))
    for workdir in (tmp_path / "data", inside):
        with pytest.raises(Refused, match="docker's socket is in it"):
            machine.body(replace(machine.recipe, workdir=str(workdir)))
    asked = ContainerSpec(mounts=(Mount(str(tmp_path / "data" / "other"), "/data"),))
    machine.body(replace(machine.recipe, container=asked))


@pytest.mark.parametrize(("owner", "mode"), [(1000, 0o755), (0, 0o1777), (0, 0o775)])
def test_what_a_container_could_replace_by_a_link_is_not_mounted(
    tmp_path: Path, owner: int, mode: int
) -> None:
    """Between the agent's look and dockerd's mount: a link put there would bring in all of the machine."""
    machine = Machine(tmp_path)
    scratch, mine = tmp_path / "scratch", tmp_path / "scratch" / "mine"
    mine.mkdir()
    asked = ContainerSpec(mounts=(Mount(str(mine), "/data", read_only=False),))
    machine.body(replace(machine.recipe, container=asked))
    os.chown(scratch, owner, 1000)
    scratch.chmod(mode)
    said = f"containers can write in {scratch} and replace it; mount {scratch} itself"
    with pytest.raises(Refused, match=said):
        machine.body(replace(machine.recipe, container=asked))
    with pytest.raises(Refused, match=said):
        machine.body(replace(machine.recipe, workdir=str(mine)))
    whole = ContainerSpec(mounts=(Mount(str(scratch), "/data", read_only=False),))
    machine.body(replace(machine.recipe, container=whole))


def test_a_directory_of_the_list_that_a_container_has_replaced_is_in_it_no_more(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    scratch = tmp_path / "scratch"
    machine.node = replace(machine.node, mounts=(*machine.node.mounts, Allowed(str(scratch / "mine"))))
    scratch.chmod(0o1777)
    (scratch / "mine").symlink_to(tmp_path / "secret")
    for source in (scratch / "mine", tmp_path / "secret"):
        asked = ContainerSpec(mounts=(Mount(str(source), "/data"),))
        with pytest.raises(Refused, match="not in a directory"):
            machine.body(replace(machine.recipe, container=asked))


def _look(root: Path) -> dict[str, tuple[int, int]]:
    """Owner and mode of all but what the agent makes for a launcher and a job."""
    own = (root / "state" / "launchers", root / "state" / "attempts", root / "ckpt" / UUID)
    return {
        str(path): (path.lstat().st_uid, path.lstat().st_mode)
        for path in (root, *root.rglob("*"))
        if not any(path.is_relative_to(each) for each in own) and path != root / "locks"
    }


def test_what_an_image_says_gives_no_devices(machine: Machine) -> None:
    """NVIDIA's runtime obeys variables of the container, wherever they are from."""
    image = replace(
        BARE,
        env={
            "PATH": "/usr/bin",
            "NVIDIA_VISIBLE_DEVICES": "all",
            "NVIDIA_DRIVER_CAPABILITIES": "all",
            "NVIDIA_MOFED": "enabled",
            "NVIDIA_MIG_CONFIG_DEVICES": "all",
            "NVIDIA_REQUIRE_CUDA": "cuda>=12",
            "LD_PRELOAD": "/evil.so",
            "LD_AUDIT": "evil.so",
        },
    )
    for gpus in ((), ("GPU-1", "GPU-2")):
        recipe = replace(machine.recipe, gpus=gpus)
        body = machine.body(recipe, image)
        machine.judge(body, recipe)
        assert isinstance(body["Env"], list)
        told = dict(each.split("=", 1) for each in body["Env"])
        merged = {**image.env, **told}
        assert merged["NVIDIA_VISIBLE_DEVICES"] == (",".join(gpus) or "void")
        for name in ("NVIDIA_MOFED", "NVIDIA_MIG_CONFIG_DEVICES", "LD_PRELOAD", "LD_AUDIT"):
            assert merged[name] == ""
        assert merged["NVIDIA_REQUIRE_CUDA"] == "cuda>=12"


@pytest.mark.parametrize(
    ("path", "kept"),
    [
        ("/usr/local/cuda/lib64:/usr/local/nvidia/lib", "/usr/local/cuda/lib64:/usr/local/nvidia/lib"),
        ("", ""),
        (":/opt/a/lib:", "/opt/a/lib"),
        ("lib:./lib:../lib:.", ""),
        ("/proc/self/cwd/lib:/proc/self/cwd:/dev/shm:/opt/process", "/opt/process"),
        ("//proc/self/cwd:/opt/../proc/self/cwd:/opt/./a", ""),
    ],
)
def test_an_image_brings_no_library_into_what_prepares_its_containers(
    machine: Machine, path: str, kept: str
) -> None:
    """NVIDIA's hooks are run as root in the image's own directory, with its variables (CVE-2025-23266)."""
    env = environment(machine.recipe, replace(BARE, env={"LD_LIBRARY_PATH": path}))
    assert env["LD_LIBRARY_PATH"] == kept


PATHS = st.sampled_from(
    [
        *(
            "/",
            "/etc",
            "/proc/1/root",
            "/run/docker.sock",
            "/dev/mem",
            "data",
            "",
            "..",
            "/data",
            "/x",
            "/lib",
        ),
        *(
            "ROOT/data",
            "ROOT/data/",
            "ROOT/data/leak",
            "ROOT/data/up/etc",
            "ROOT/data/../secret",
            "ROOT/scratch",
        ),
        *("ROOT", "ROOT/secret", "ROOT/state", "ROOT/ckpt", "ROOT/work", "ROOT/work/../data", "ROOT/data\0"),
    ]
)
GOOD_PATHS = st.sampled_from(["ROOT/data", "ROOT/scratch", "ROOT/work"])
TARGETS = st.sampled_from(["/data", "/x", "/srv/y"])
NUMBERS = st.sampled_from([-(1 << 40), -1, 0, 1, 64, 1 << 30, 1 << 62])
WORDS = st.sampled_from(
    [
        "",
        "host",
        "none",
        "bridge",
        "container:x",
        "tf:2.21",
        "-v",
        "a b",
        "0-3",
        "3-0",
        "python3",
        "../x",
        "\0",
        "é",
    ]
)
NAMES = st.sampled_from(
    [
        "A",
        "PATH",
        "LD_PRELOAD",
        "LD_LIBRARY_PATH",
        "NVIDIA_VISIBLE_DEVICES",
        "TFSUP_X",
        "A=B",
        "",
        "A\nB",
        "HOME",
    ]
)
MOUNTS = st.lists(st.builds(Mount, GOOD_PATHS | PATHS, TARGETS | PATHS, st.booleans()), max_size=2).map(tuple)
ULIMITS = st.lists(
    st.builds(Ulimit, st.sampled_from(["nofile", "core", "rtprio", "nice"]), NUMBERS, NUMBERS), max_size=2
).map(tuple)
SPECS = st.builds(
    ContainerSpec,
    image=st.just("") | WORDS,
    pull=st.sampled_from(Pull),
    python=st.just("") | WORDS,
    network=st.just("host") | WORDS,
    cpuset=st.just("") | WORDS,
    swap_bytes=st.just(0) | NUMBERS,
    shm_bytes=st.just(0) | NUMBERS,
    pids=st.just(0) | NUMBERS,
    ulimits=st.just(()) | ULIMITS,
    mounts=MOUNTS,
)
NEEDS = st.builds(Resources, cpus=st.floats(), memory_bytes=NUMBERS, gpus=NUMBERS)


@given(
    spec=st.none() | SPECS,
    env=st.dictionaries(NAMES, st.sampled_from(["", "all", "x\0y", "a\nb"]), max_size=2),
    need=st.just(Resources()) | NEEDS,
    workdir=st.just("ROOT/work") | PATHS,
    uuid=st.just(UUID) | st.sampled_from(["..", "../../secret", "/etc", "", ".", "a/b"]),
    gpus=st.sampled_from([(), ("GPU-1",)]),
)
@example(spec=None, env={}, need=Resources(), workdir="/proc/1/root", uuid=UUID, gpus=())
def test_no_record_becomes_more_than_a_job_may_have(
    tmp_path_factory: pytest.TempPathFactory,
    spec: ContainerSpec | None,
    env: dict[str, str],
    need: Resources,
    workdir: str,
    uuid: str,
    gpus: tuple[str, ...],
) -> None:
    base = tmp_path_factory.getbasetemp() / "forged"
    machine = MACHINES.get(str(base))
    if machine is None:
        base.mkdir()
        machine = MACHINES[str(base)] = Machine(base)
    root = str(base)
    if spec is not None:
        moved = tuple(
            replace(each, source=each.source.replace("ROOT", root), target=each.target.replace("ROOT", root))
            for each in spec.mounts
        )
        spec = replace(spec, mounts=moved)
    recipe = replace(
        machine.recipe,
        container=spec,
        env=env,
        resources=need,
        workdir=workdir.replace("ROOT", root),
        job_uuid=uuid,
        gpus=gpus,
    )
    try:
        body = machine.body(recipe)
    except (UserError, Refused):
        return
    machine.judge(body, recipe)


MACHINES: dict[str, Machine] = {}
