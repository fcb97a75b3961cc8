"""The cluster that attacks are made on: a victim beside them, canaries, and a record of all that must stay.

Alice's job is the victim. It saves once and then prints steps for ever. Mallory's jobs are the attacks.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from chaos.cluster import Cluster, Node, Shape
from chaos.cluster.cluster import temporary
from chaos.cluster.docker import socket_of
from chaos.cluster.shape import AGENT_PORT
from recovery.logs.segments import LOGS
from supervisor.contract.desired import JobPhase
from supervisor.contract.views.jobs import JobView
from tests.attacks.attack import Where
from tests.attacks.picture import Picture, entries, is_bug, look
from tests.attacks.shell import AttackFailed, Shell

ALICE, MALLORY, VICTIM, BYSTANDER = "alice", "mallory", "victim", "bystander"
TASK_USERS, STRANGER = "483000-483999", 48_999
PYTHON = "/usr/bin/python3"
WAIT_S = 120.0
_POLL_S = 0.05
_VICTIM = """
import json, os, socket, time
directory, step = os.environ["CHECKPOINT_DIR"], 0
with open("/dev/urandom", "rb") as noise:
    weights = noise.read(5000).hex()
listener = socket.socket(socket.AF_INET6)
listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
listener.bind(("::", int(os.environ["PORT"])))
listener.listen()
while True:
    step += 1
    print("step", step, flush=True)
    if step == 5:
        with open(directory + "/state-5.json", "w") as file:
            json.dump({"weights": weights}, file)
    time.sleep(0.1)
"""
_BYSTANDER = "print('step 1')"
_GROWS = ("attempts", "launchers", "code", "outputs", "tmp", "audit.jsonl", "docker", "run/docker", "locks")
"""Below a node's disk: what changes with each job. Of this, what is the victim's is looked at."""


@dataclass(slots=True)
class Site:
    """A cluster of one node, with its victim; up inside a `with` block.

    Attributes:
        operator, mallory: clients.
        known: what an attacker may know of the cluster; jobs find it in `site.json`.
    """

    where: Where
    cluster: Cluster = field(init=False)
    operator: Shell = field(init=False)
    mallory: Shell = field(init=False)
    alice: Shell = field(init=False)
    known: dict[str, object] = field(init=False)
    _open: ExitStack = field(init=False, default_factory=ExitStack)
    _read: dict[Path, int] = field(init=False, default_factory=dict)

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self.cluster = stack.enter_context(
                temporary(self._shape(), isolated=self.where is not Where.USER)
            )
            programs = self.cluster.programs
            self.operator = self._shell(stack, programs.client)
            self.alice = self._shell(stack, programs.client_of(ALICE))
            self.mallory = self._shell(stack, programs.client_of(MALLORY))
            if self.where is not Where.USER:
                # Passed by nobody: what a task reaches is on the node's disk.
                self.cluster.root.chmod(0o700)
            self._etcd_has_users()
            self._plant_canaries()
            self._start_victim()
            self._open = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.close()

    def _shape(self) -> Shape:
        tenants = (ALICE, MALLORY)
        docker = self.where is Where.DOCKER
        return Shape(
            etcd=1,
            supervisors=1,
            agents=0 if docker else 1,
            docker_agents=1 if docker else 0,
            profile="default",
            task_user="" if self.where is Where.USER else TASK_USERS,
            tenants=tenants,
            disk_bytes=(3 if docker else 1) << 30,
        )

    def _shell(self, stack: ExitStack, config: Path) -> Shell:
        shell = Shell(self.cluster, config)
        stack.callback(shell.close)
        return shell

    @property
    def node(self) -> Node:
        """The node of the victim and of the attacks."""
        return self.cluster.agents[0]

    @property
    def disk(self) -> Path:
        """The node's disk, as its own processes name it."""
        return self.cluster.programs.disks[self.node.name]

    def seen(self, path: str | Path) -> Path:
        """A file on the node's disk, by its name on the node, as we see it."""
        return self.node.root / Path(path).relative_to(self.disk)

    def _etcd_has_users(self) -> None:
        config = self.cluster.programs.client.with_name("sup-0.yaml")
        holders = ("supervisor:sup-0", f"agent:{self.node.name}")
        self.cluster.ctl("etcd", "setup", "--enable", *holders, "--supervisor-config", str(config))

    def _plant_canaries(self) -> None:
        """Files of another user and of root, beside what the daemons have."""
        top = self.seen(self.disk / "canary")
        top.mkdir(mode=0o755)
        for owner, name in ((STRANGER, "stranger"), (0, "root")):
            home = top / name
            home.mkdir(mode=0o711)
            for file, mode in (("secret", 0o600), ("public", 0o644), ("script", 0o755)):
                (home / file).write_text(f"{name}'s {file}: {os.urandom(8).hex()}\n")
                (home / file).chmod(mode)
            (home / "link").symlink_to("secret")
            if os.geteuid() == 0:
                for each in (home, *home.iterdir()):
                    os.chown(each, owner, owner, follow_symlinks=False)
        top.chmod(0o755)

    def _start_victim(self) -> None:
        role = {"count": 1, "env": {"PORT": "{port}"}}
        self.submit(self.alice, VICTIM, _VICTIM, {"roles": {"worker": role}})
        self.submit(self.mallory, BYSTANDER, _BYSTANDER)
        self.wait(self._victim_is_up, "the victim's commit")
        self.wait(lambda: self.alice.view(BYSTANDER).phase.ended, "the end of mallory's other job")
        view = self.alice.view(VICTIM)
        checkpoints = self.disk / "tasks"
        self.known = {
            "victim": VICTIM,
            "victim_uuid": view.uuid,
            "victim_uri": f"{self.cluster.store.as_uri()}/{ALICE}/{VICTIM}",
            "victim_port": int(view.tasks[0].address.rpartition(":")[2]),
            "victim_checkpoints": str(checkpoints / view.uuid),
            "mallory_job": BYSTANDER,
            "node": self.node.name,
            "state": str(self.disk / "state"),
            "run": str(self.disk / "run"),
            "checkpoints": str(checkpoints),
            "locks": str(self.disk / "locks"),
            "canary": str(self.disk / "canary"),
            "store": str(self.cluster.store),
            "root": str(self.cluster.root),
            "supervisor": self.cluster.programs.supervisors()[0],
            "etcd": self.cluster.programs.endpoints()[0],
            "agent": f"{self.node.address}:{AGENT_PORT}",
            "docker": str(socket_of(self.disk)),
            "ports": [20000, 29999],
            "pids": self._pids(view),
        }

    def _victim_is_up(self) -> bool:
        view = self.alice.view(VICTIM)
        if view.phase.ended:
            raise AttackFailed(f"the victim has ended\n{self._story()}")
        return view.newest_commit is not None

    def _pids(self, view: JobView) -> dict[str, list[int]]:
        """As processes on the node have them. A container has others: it gets the machine's, to guess."""
        victim, agent = view.tasks[0].pid, self.node.daemons["agent"].pid
        assert agent is not None
        outside = self._inside_pids().get(victim, victim)
        stat = Path(f"/proc/{outside}/stat").read_text()
        launcher = int(stat.rpartition(")")[2].split()[1])
        if self.where is Where.DOCKER:
            return {"agent": [agent], "victim": [outside], "launcher": [launcher]}
        inside = {outside: pid for pid, outside in self._inside_pids().items()}
        return {
            "agent": [inside.get(agent, agent)],
            "victim": [victim],
            "launcher": [inside.get(launcher, launcher)],
        }

    def _inside_pids(self) -> dict[int, int]:
        """Pid on the node -> pid here."""
        found = {}
        for pid in self.node.pids():
            with suppress(OSError, StopIteration):
                lines = Path(f"/proc/{pid}/status").read_text().splitlines()
                levels = next(line for line in lines if line.startswith("NSpid:")).split()[1:]
                found[int(levels[-1] if len(levels) < 3 else levels[2])] = pid
        return found

    def directory(
        self, name: str, program: str, changes: Mapping[str, object] | None = None, text: str = ""
    ) -> Path:
        """A new directory with the job file and what is shipped."""
        home = Path(tempfile.mkdtemp(prefix="job-", dir=self.cluster.root))
        (home / "attack.py").write_text(program)
        (home / "site.json").write_text(json.dumps(getattr(self, "known", {})))
        body: dict[str, object] = {
            "name": name,
            "strategy": "plain",
            "command": [PYTHON, "attack.py"],
            "roles": {"worker": {"count": 1}},
            "preload": [],
            "code": {"dir": "."},
            "checkpoint": {"pattern": "state-{step}.json"},
            "restart": {"max": 0},
            **(changes or {}),
        }
        (home / "job.yaml").write_text(text or json.dumps(body).replace("/ROOT/", f"{self.cluster.root}/"))
        return home

    def submit(
        self, shell: Shell, name: str, program: str, changes: Mapping[str, object] | None = None
    ) -> None:
        """Start a job."""
        shell.ctl("submit", str(self.directory(name, program, changes) / "job.yaml"))

    def wait(self, done: Callable[[], bool], what: str, wait_s: float = WAIT_S) -> None:
        """Raises AttackFailed at the deadline."""
        deadline = time.monotonic() + wait_s
        while not done():
            if time.monotonic() > deadline:
                raise AttackFailed(f"in vain: {what}\n{self._story()}")
            time.sleep(_POLL_S)

    def _story(self) -> str:
        """The places that an operator looks at first."""
        log = self.node.home / "agent.log"
        lines = log.read_text(errors="replace").splitlines()[-12:] if log.exists() else []
        words = (["explain", VICTIM], ["tail", f"{VICTIM}/worker:0", "--bytes", "500"])
        return "\n".join([*(self.operator.ask(words=each)[1] for each in words), *lines])

    def start_another(self, name: str) -> None:
        """A job of alice's starts, with a port, and succeeds."""
        self.submit(
            self.alice, name, _BYSTANDER, {"roles": {"worker": {"count": 1, "env": {"PORT": "{port}"}}}}
        )
        self.wait(
            lambda: self.alice.view(name).phase is JobPhase.SUCCEEDED, f"the success of {name}", wait_s=40
        )

    def leaks(self) -> list[str]:
        """Files kept for jobs that hold another user's secret, or are programs of root's."""
        canaries = (self.node.root / "canary").glob("*/secret") if self.where is not Where.USER else ()
        secrets = [path.read_bytes() for path in canaries]
        with suppress(OSError):
            secrets.append(Path("/etc/shadow").read_bytes().splitlines()[0])
        own = [self.cluster.store / MALLORY, self.node.root / "tasks", self.node.root / "state" / "attempts"]
        found = []
        for top in own:
            for directory, _, names in os.walk(top):
                for name in names:
                    path = Path(directory, name)
                    with suppress(OSError):
                        if path.is_symlink() or not path.is_file():
                            continue
                        status = path.stat()
                        if status.st_mode & 0o6000 and status.st_uid == 0:
                            found.append(f"{path}: root's, with mode {status.st_mode:o}")
                        if status.st_size < 1 << 20 and any(each in path.read_bytes() for each in secrets):
                            found.append(f"{path}: another user's secret is in it")
        return found

    def picture(self) -> Picture:
        """As it is now."""
        view = self.operator.view(VICTIM)
        tasks = tuple((task.task, task.state, task.pid, task.attempt, task.address) for task in view.tasks)
        victim = (
            view.phase.value,
            view.generation,
            view.newest_commit,
            view.restarts_program,
            view.restarts_infrastructure,
            tasks,
        )
        return Picture(
            daemons={
                f"{node.name}'s {name}": (daemon.pid, daemon.starts)
                for node in self.cluster.nodes.values()
                for name, daemon in node.daemons.items()
            },
            victim=victim,
            files=self._files(),
            processes=self._processes(),
            mounts=self._mounts(),
            listening=self._listening(),
        )

    def step(self) -> int:
        """The victim's step."""
        return self.operator.view(VICTIM).step

    def told_of_bugs(self) -> list[str]:
        """Lines of the daemons' logs since this was asked that tell of an error of their own."""
        found = []
        for node in self.cluster.nodes.values():
            for name in ("agent", "supervisor"):
                log = node.home / f"{name}.log"
                if name not in node.daemons or not log.exists():
                    continue
                with log.open("rb") as file:
                    file.seek(self._read.get(log, 0))
                    text = file.read().decode(errors="replace")
                    self._read[log] = file.tell()
                found += [f"{name}'s log: {line[:300]}" for line in text.splitlines() if is_bug(line)]
        return found

    def _processes(self) -> frozenset[tuple[int, str]]:
        found = set()
        for pid in self.node.pids():
            with suppress(OSError):
                stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
                name, state = stat[stat.index("(") + 1 : stat.rindex(")")], stat.rpartition(")")[2].split()[0]
                if state not in "ZX":
                    found.add((pid, name))
        return frozenset(found)

    def _mounts(self) -> tuple[str, ...]:
        if self.where is Where.USER:
            return ()  # as below: no task may mount
        pid = self.node.daemons["agent"].pid
        lines = Path(f"/proc/{pid}/mountinfo").read_text().splitlines()
        return tuple(sorted(line.split(" ", 3)[3] for line in lines if "/docker/" not in line))

    def _listening(self) -> frozenset[str]:
        """Sockets that listen on the node, and abstract ones."""
        net = Path(f"/proc/{self.node.daemons['agent'].pid}/net")
        found = set()
        if self.where is Where.USER:
            return frozenset()  # the machine's own, with what others do on it
        for name in ("tcp", "tcp6"):
            for line in (net / name).read_text().splitlines()[1:]:
                parts = line.split()
                if parts[3] == "0A":
                    found.add(f"{name} {parts[1]} of {parts[7]}")
        for line in (net / "unix").read_text().splitlines()[1:]:
            parts = line.split()
            if len(parts) > 7 and parts[3] == "00010000":
                found.add(f"unix {parts[7]}")
        return frozenset(found)

    def _files(self) -> dict[str, str]:
        """The files of the daemons, of the victim and of other users."""
        root, found = self.node.root, dict[str, str]()
        uuid = str(self.known["victim_uuid"])
        for directory, names, files in os.walk(root):
            inner = Path(directory)
            for name in [*names, *files]:
                path = inner / name
                shown = str(path.relative_to(root))
                if any(shown == each or shown.startswith(f"{each}/") for each in self._growing(uuid)):
                    if name in names:
                        names.remove(name)
                    continue
                whole = name == "marks.key" or shown.startswith(("canary/", "tasks/"))
                found[shown] = look(path, content=whole)
        own = [self.cluster.store / ALICE / VICTIM, self.cluster.root / "conf", self.cluster.root / "tls"]
        # The victim's own agent goes on storing what the victim prints.
        logs = self.cluster.store / ALICE / VICTIM / LOGS
        for top in own:
            for path in (top, *top.rglob("*")):
                if path.is_relative_to(logs):
                    continue
                found[str(path.relative_to(self.cluster.root))] = look(path, content=True)
        for name in ("passwd", "shadow", "hostname", "ld.so.preload"):
            found[f"/etc/{name}"] = look(Path("/etc", name), content=True)
        return found

    def _growing(self, victim: str) -> list[str]:
        """Of the node's disk, what attacks may change: their own directories, and what counts jobs."""
        tasks, attempts = self.node.root / "tasks", self.node.root / "state" / "attempts"
        own = [f"tasks/{each.name}" for each in entries(tasks) if each.name != victim]
        own += [f"state/attempts/{each.name}" for each in entries(attempts)]
        return [*own, *(f"state/{name}" for name in _GROWS), *_GROWS]
