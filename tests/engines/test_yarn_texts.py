"""Orders to YARN and its replies, without a YARN."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from supervisor.contract.errors import NotFound, Refused, Unreachable, UserError
from supervisor.engines.engine import Pool, PoolAgent, State
from supervisor.engines.yarn import container
from supervisor.engines.yarn.container import AGAIN, application_of
from supervisor.engines.yarn.java import HERE
from supervisor.engines.yarn.yarn import Yarn, agent_of, order_of
from tests.engines.commands import Commands
from tests.engines.suite import PROGRAM
from tests.support.waiting import wait_until

POOL = Pool(
    name="digits", command=("python3", "-m", "keeper", "/tmp/a.pyz"), directory="/logs", memory_mib=1024
)
ROW = {
    "id": "application_1795705473932_0001",
    "name": "tfsup:digits",
    "state": "RUNNING",
    "final": "UNDEFINED",
    "diagnostics": "",
    "finished_ms": 0,
    "queue": "root.default",
    "notice_s": 60,
    "left_s": -1,
}
FULL = "not yet activated. Queue's AM resource limit exceeded.  Details : AM Partition = <DEFAULT_PARTITION>"
FAILED = """the agent's container ended with 2: [2026-11-26 15:05:00.123]Exception from container-launch.
Container id: container_1795705473932_0001_01_000002
Exit code: 2
Last 4096 bytes of stderr :
tfsup-keeper: pool.yaml: line 3: `listn` is no field
"""
EXPIRED = "RemoteException(org.apache.hadoop.security.token.SecretManager$InvalidToken): Token  has expired"


def test_an_order_has_no_secret_of_the_environment() -> None:
    environment = {"PATH": "/bin", "LC_ALL": "C", "HADOOP_CONF_DIR": "/etc/hadoop", "TOKEN": "no-one-may-see"}
    order = order_of(POOL, environment)
    assert order["environment"] == {"PATH": "/bin", "LC_ALL": "C", "HADOOP_CONF_DIR": "/etc/hadoop"}
    assert order["command"] == ["python3", "-m", "keeper", "/tmp/a.pyz"]


def test_an_installation_goes_where_yarn_brings_it() -> None:
    pool = Pool(name="digits", command=POOL.command, directory="/", memory_mib=1024, archive="/tmp/a.pyz")
    assert order_of(pool, {})["command"] == ["python3", "-m", "keeper", "./archive"]


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"memory_mib": 0}, "--memory is needed: YARN ends a container that takes more"),
        ({"time": "1:00"}, "--time and --requeue: applications of YARN run until they are ended"),
        ({"requeue": True}, "--time and --requeue"),
        ({"gpus": "a100:2"}, "YARN knows GPUs by their number alone"),
        ({"constraint": "fast&large"}, "--constraint fast&large: write one node label"),
        ({"command": ("/opt/my python", "-m", "keeper")}, "choose a path of letters, digits"),
    ],
)
def test_what_yarn_does_not_have_is_refused(fields: dict[str, Any], told: str) -> None:
    with pytest.raises(UserError, match=told):
        order_of(replace(POOL, **fields), {})


@pytest.mark.parametrize(
    ("fields", "state", "word", "reason"),
    [
        (
            {"state": "ACCEPTED", "diagnostics": FULL},
            State.WAITING,
            "ACCEPTED",
            FULL.partition("  Details")[0],
        ),
        (
            {"queue_used": 167.0},
            State.WAITING,
            "WAITING",
            "its container waits for room in queue root.default, of which 167 % is used",
        ),
        ({"host": "n1"}, State.RUNNING, "RUNNING", ""),
        ({"host": "n1", "left_s": 86_400}, State.RUNNING, "RUNNING", ""),
        ({"host": "n1", "left_s": 120}, State.LEAVING, "RUNNING", ""),
        ({"left_s": 100}, State.LEAVING, "RUNNING", ""),
        ({"state": "FINISHED", "final": "SUCCEEDED"}, State.ENDED, "SUCCEEDED", ""),
        (
            {"state": "FINISHED", "final": "FAILED", "diagnostics": FAILED},
            State.ENDED,
            "FAILED",
            "the agent's container ended with 2: pool.yaml: line 3: `listn` is no field",
        ),
        (
            {"state": "FINISHED", "final": "FAILED", "diagnostics": "far " * 100 + EXPIRED},
            State.ENDED,
            "FAILED",
            "the token by which YARN fetches its files is over; `pool scale` queues another, `pool up` where "
            "none is left: " + "far " * 100,
        ),
        ({"state": "KILLED", "diagnostics": "killed by\nroot"}, State.ENDED, "KILLED", "killed by root"),
    ],
)
def test_an_application_is_an_agent(fields: dict[str, object], state: State, word: str, reason: str) -> None:
    found = agent_of(ROW | fields)
    assert (found.pool, found.state, found.word, found.reason) == ("digits", state, word, reason)
    assert bool(found.log) == (state is not State.WAITING)


@pytest.mark.parametrize(
    "ident", ["container_e17_1410901177871_0001_01_000005", "container_1410901177871_0001_01_000002"]
)
def test_an_agents_id_is_its_application(ident: str) -> None:
    assert application_of(ident) == "application_1410901177871_0001"


def test_gpus_are_those_that_yarn_names_or_lets_it_open(monkeypatch: pytest.MonkeyPatch) -> None:
    assert container.gpus_of(0, {"NVIDIA_VISIBLE_DEVICES": "0,1"}) == []
    assert container.gpus_of(2, {"NVIDIA_VISIBLE_DEVICES": "0,3"}) == ["0", "3"]
    monkeypatch.setattr(Path, "glob", lambda *_: iter([Path("/dev/nvidia7"), Path("/dev/nvidia2")]))
    monkeypatch.setattr(container, "opens", lambda path: path.name == "nvidia7")
    assert container.gpus_of(1, {}) == ["7"]


# ---- in the container --------------------------------------------------------------------------------------


class Container:
    """container.py in a directory as a NodeManager makes it, and the note of the suite's program."""

    def __init__(self, directory: Path, gpus: int = 0, command: Sequence[str] = ()) -> None:
        self.directory = directory / "container"
        self.directory.mkdir(exist_ok=True)
        (directory / "agent.py").write_text(PROGRAM)
        command = command or [sys.executable, str(directory / "agent.py"), str(directory)]
        order = {"command": command, "environment": {}, "gpus": gpus}
        (self.directory / "order.json").write_text(json.dumps(order))
        self.note = directory / "application_1_0001"
        environment = os.environ | {
            "CONTAINER_ID": "container_1_0001_01_000002",
            "HADOOP_TOKEN_FILE_LOCATION": str(self.directory / "tokens"),
            "NM_HOST": "n1",
            "TFSUP_RACK": "east/r1",
        }
        with (directory / "said").open("w") as said:
            self.process = subprocess.Popen(
                [sys.executable, "-P", str(HERE / "container.py")],
                cwd=self.directory,
                env=environment,
                stderr=said,
                start_new_session=True,
            )
        self.agent: psutil.Process | None = None

    def begun(self) -> None:
        wait_until(self.note.exists, "the program runs")
        [self.agent] = psutil.Process(self.process.pid).children()

    def over(self) -> tuple[int, str]:
        """Its exit code, and what it has said."""
        code = self.process.wait(30)
        return code, (self.directory.parent / "said").read_text()

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        if self.agent is not None and self.agent.is_running():
            self.agent.kill()

    def ends(self) -> tuple[int, str]:
        """Its exit code, and the note."""
        self.process.wait(30)
        wait_until(lambda: " SIG" in self.note.read_text(), "the program was told")
        return self.process.returncode, self.note.read_text()


@pytest.fixture
def there(tmp_path: Path) -> Iterator[Container]:
    found = Container(tmp_path)
    found.begun()
    yield found
    found.close()


def test_sigquit_to_all_of_the_container_tells_the_agent_to_leave(there: Container) -> None:
    os.killpg(there.process.pid, signal.SIGQUIT)
    assert there.ends() == (0, "n1 SIGUSR2")


def test_after_a_notice_it_asks_for_another_container(there: Container) -> None:
    (there.directory / "notice").symlink_to("order.json")
    assert there.ends() == (AGAIN, "n1 SIGUSR2")


def test_sigterm_ends_the_agent(there: Container) -> None:
    there.process.terminate()
    assert there.ends() == (0, "n1 SIGTERM")


def test_what_yarn_says_twice_is_passed_on_once(tmp_path: Path) -> None:
    program = f"""
import pathlib, signal
heard = []
signal.signal(signal.SIGUSR2, lambda *_: (heard.append(1), note.write_text(f"{{len(heard)}}")))
signal.signal(signal.SIGTERM, lambda *_: exit(0))
note = pathlib.Path("{tmp_path}/application_1_0001")
note.write_text("0")
while True:
    signal.pause()
"""
    found = Container(tmp_path, command=[sys.executable, "-c", program])
    found.begun()
    os.killpg(found.process.pid, signal.SIGQUIT)
    wait_until(lambda: found.note.read_text() == "1", "it is told")
    os.killpg(found.process.pid, signal.SIGQUIT)
    found.process.terminate()
    assert found.over() == (0, "tfsup-container: YARN ends this container\n")
    assert found.note.read_text() == "1"


def test_a_container_that_is_killed_ends_its_agent_all_the_same(there: Container) -> None:
    os.killpg(there.process.pid, signal.SIGKILL)
    assert there.ends() == (-signal.SIGKILL, "n1 SIGTERM")


def test_what_yarn_has_forgotten_ends(there: Container) -> None:
    (there.directory / "order.json").unlink()
    there.directory.rmdir()
    assert there.ends() == (0, "n1 SIGTERM")


def test_the_command_has_its_installation_its_rack_and_no_token(tmp_path: Path) -> None:
    program = """
import os, sys
assert os.getcwd() == "/" and os.path.isfile(sys.argv[1]), sys.argv
assert "HADOOP_TOKEN_FILE_LOCATION" not in os.environ
assert not os.path.exists(os.path.dirname(sys.argv[1]) + "/tokens")
assert sys.argv[-2:] == ["--label", "rack=east/r1"] and "TFSUP_RACK" not in os.environ
"""
    (tmp_path / "container").mkdir()
    for name in ("archive", "tokens"):
        (tmp_path / "container" / name).touch()
    found = Container(tmp_path, command=[sys.executable, "-c", program, "./archive"])
    assert found.over() == (0, "")


def test_gpus_that_are_not_kept_apart_are_refused(tmp_path: Path) -> None:
    found = Container(tmp_path, gpus=64)
    code, told = found.over()
    assert code == 2
    assert told.startswith("tfsup-container: YARN gave this agent 64 GPUs, and it can open ")


# ---- the Java ----------------------------------------------------------------------------------------------


def answering(reply: str, directory: Path) -> str:
    """A program that notes each request, and always replies this."""
    return f"while read -r line; do echo \"$line\" >>{directory}/asked; echo '{reply}'; done"


@pytest.fixture
def commands(tmp_path: Path) -> Commands:
    found = Commands(tmp_path)
    found.put("yarn", "echo /etc/hadoop:/hadoop/lib/*")
    found.put(
        "javac", 'while [ "$1" != -d ]; do shift; done; mkdir -p "$2/tfsup"; echo x >"$2/tfsup/Client.class"'
    )
    found.put(
        "java", 'while read -r line; do echo "$line" >>' + f"{tmp_path}/asked" + "; echo '{\"ok\": []}'; done"
    )
    return found


@pytest.fixture
def yarn(commands: Commands) -> Iterator[Yarn]:
    found = Yarn({"PATH": commands.path, "XDG_CACHE_HOME": str(commands.directory / "cache")})
    yield found
    found.close()


def test_the_classes_are_compiled_once_for_a_hadoop(commands: Commands, yarn: Yarn) -> None:
    for _ in range(2):
        assert yarn.agents() == yarn.agents("digits") == []
        yarn.close()
    assert [each.split()[0] for each in commands.calls].count("javac") == 1
    assert [each.split()[0] for each in commands.calls].count("java") == 2
    commands.put("yarn", "echo /etc/hadoop:/hadoop-3.5/lib/*")
    yarn.agents()
    assert [each.split()[0] for each in commands.calls].count("javac") == 2


def test_classes_that_others_could_exchange_are_not_run(commands: Commands, yarn: Yarn) -> None:
    cache = commands.directory / "cache"
    cache.mkdir()
    cache.chmod(0o777)
    with pytest.raises(Refused, match=r"cache belongs to another user, or every user may write to it: name"):
        yarn.agents()
    assert not any(cache.iterdir())
    assert "java" not in [each.split()[0] for each in commands.calls]


def test_more_agents_are_like_the_newest_that_is_there(commands: Commands, yarn: Yarn) -> None:
    ended = ROW | {"id": "application_1795705473932_0011", "state": "KILLED"}
    row = json.dumps({"ok": [ROW, ROW | {"id": "application_1795705473932_0010"}, ended]})
    commands.put(
        "java", f"while read -r line; do echo \"$line\" >>{commands.directory}/asked; echo '{row}'; done"
    )
    yarn.add("digits", 2)
    asked = json.loads((commands.directory / "asked").read_text().splitlines()[-1])
    assert asked == {"verb": "submit", "agents": 2, "like": "application_1795705473932_0010"}
    with pytest.raises(NotFound, match="no application of pool other"):
        yarn.add("other", 1)


def test_the_files_of_a_pool_that_has_ended_are_removed(commands: Commands, yarn: Yarn) -> None:
    yarn.forget("digits")
    asked = json.loads((commands.directory / "asked").read_text())
    assert asked == {"verb": "tidy", "pool": "digits"}


def test_without_hadoop_it_says_what_is_missing(commands: Commands, yarn: Yarn) -> None:
    (commands.directory / "yarn").unlink()
    with pytest.raises(NotFound, match="no yarn below HADOOP_HOME and on PATH; install Hadoop's commands"):
        yarn.agents()
    commands.put("yarn", "echo 'JAVA_HOME is not set' >&2; exit 1")
    with pytest.raises(Refused, match="yarn has failed: JAVA_HOME is not set"):
        yarn.agents()


def test_without_a_compiler_it_says_what_is_missing(commands: Commands) -> None:
    (commands.directory / "javac").unlink()
    yarn = Yarn({"PATH": str(commands.directory), "XDG_CACHE_HOME": str(commands.directory / "cache")})
    with pytest.raises(NotFound, match="there is no javac below JAVA_HOME and on PATH; install a JDK"):
        yarn.agents()


def test_a_hadoop_that_does_not_fit_is_told(commands: Commands, yarn: Yarn) -> None:
    commands.put("javac", "echo 'Client.java:3: error: package x does not exist'; exit 1")
    with pytest.raises(Refused, match=r"`yarn classpath` names does not fit, .*: package x does not exist"):
        yarn.agents()


@pytest.mark.parametrize(
    ("says", "error", "told"),
    [
        ('{"error": "unknown queue: x", "unreachable": false}', Refused, "YARN says: unknown queue: x"),
        (
            '{"error": "Connection refused", "unreachable": true}',
            Unreachable,
            "does not answer: Connection refused",
        ),
    ],
)
def test_yarns_reason_is_shown(
    commands: Commands, yarn: Yarn, says: str, error: type[Exception], told: str
) -> None:
    commands.put("java", f"read -r line; echo '{says}'")
    with pytest.raises(error, match=told):
        yarn.agents()


@pytest.mark.parametrize(
    ("cache", "told"),
    [
        (
            "KEYRING:persistent:0",
            r"not from KEYRING:persistent:0: `export KRB5CCNAME=FILE:/tmp/krb5cc_\d+`, then",
        ),
        ("FILE:/nowhere/cache", "there is no file /nowhere/cache; `kinit -c /nowhere/cache` fetches one"),
        ("/dev/null", "no ticket in /dev/null is valid now, as `klist -c /dev/null` shows"),
        ("", r"/tmp/krb5cc_\d+"),
    ],
)
def test_without_a_ticket_it_says_what_to_do(commands: Commands, cache: str, told: str) -> None:
    commands.put(
        "java", answering('{"error": "no", "unreachable": false, "no_ticket": true}', commands.directory)
    )
    environment = {"PATH": commands.path, "KRB5CCNAME": cache, "KRB5_CONFIG": "/site/krb5.conf"}
    yarn = Yarn(environment | {"XDG_CACHE_HOME": str(commands.directory / "cache")})
    with pytest.raises(Refused, match=f"YARN has Kerberos, and .*{told}"):
        yarn.agents()
    yarn.close()
    assert "-Djava.security.krb5.conf=/site/krb5.conf" in commands.calls[-1]


def test_the_end_of_the_java_is_told(commands: Commands, yarn: Yarn) -> None:
    commands.put("java", "echo 'Error: could not create the JVM' >&2")
    with pytest.raises(Unreachable, match="or Java has failed: Error: could not create the JVM"):
        yarn.agents()


def test_agents_that_ended_long_ago_are_not_shown(commands: Commands, yarn: Yarn) -> None:
    row = json.dumps({"ok": [ROW | {"state": "FINISHED", "finished_ms": 1000}, ROW]})
    commands.put("java", answering(row, commands.directory))
    found: list[PoolAgent] = yarn.agents()
    assert [each.state for each in found] == [State.WAITING]
