"""`image check` against a real dockerd: what fits, and each way in which an image does not."""

from __future__ import annotations

import json
import shutil
import socketserver
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from chaos.container_image import IMAGE, rootfs, site_packages
from chaos.dockerd import Dockerd
from chaos.little_images import layer, load, registry
from supervisor.cli.cluster import image_check
from supervisor.cli.cluster.engine import Box, CannotStart, Engine, Outcome
from supervisor.cli.cluster.findings import State
from supervisor.contract.errors import Unreachable
from tests.cli.agent_config import write_config

MARKS = ["ps", "--all", "--quiet", "--filter", "label=tfsup.check"]


def check(dockerd: Dockerd, image: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Run the verb as a user would; nothing of it is left in dockerd."""
    done = subprocess.run(
        [Path(sys.executable).with_name("supervisorctl"), "image", "check", image, *options],
        env={"DOCKER_HOST": dockerd.url, "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    assert dockerd.cli(*MARKS) == ""
    return done


def states(done: subprocess.CompletedProcess[str]) -> dict[str, tuple[str, str]]:
    """Of each check: its state and what was found."""
    return {each["check"]: (each["state"], each["detail"]) for each in json.loads(done.stdout)["findings"]}


def test_an_image_that_fits(dockerd: Dockerd) -> None:
    packages = str(site_packages())
    done = check(
        *(dockerd, IMAGE, "--pull", "never", "--output", "json"),
        *("--mount", packages, "--env", f"PYTHONPATH={packages}"),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(done.stdout)
    assert (report["fits"], report["python"]) == (True, "python3")
    assert report["tensorflow"].startswith("2.")
    assert {state for state, _ in states(done).values()} == {"ok"}
    assert set(states(done)) == {"architecture", "user", "python", "launcher", "writable", "tensorflow"}


def test_an_agents_configuration_says_how_its_containers_run(dockerd: Dockerd, tmp_path: Path) -> None:
    mount = {"source": str(site_packages()), "always": True}
    docker = {
        "socket": str(dockerd.socket),
        "image": IMAGE,
        "user": "1234:1234",
        "python": "/usr/bin/python3.11",
        "mounts": [mount],
    }
    path = write_config(tmp_path, runtime="docker", docker=docker)
    done = subprocess.run(
        [
            *(Path(sys.executable).with_name("supervisorctl"), "image", "check", IMAGE, "-o", "json"),
            *("--agent-config", path, "--env", f"PYTHONPATH={site_packages()}"),
        ],
        env={"PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout)["python"] == "/usr/bin/python3.11"
    assert states(done)["user"][1].startswith("tasks run as 1234:1234")


def test_an_image_without_tensorflow_runs_commands_alone(dockerd: Dockerd) -> None:
    done = check(dockerd, IMAGE)
    assert done.returncode == 15
    assert "No module named 'tensorflow'" in done.stdout
    assert "cannot run a job" in done.stdout
    done = check(dockerd, IMAGE, "--exec", "--user", "0:0", "-o", "json")
    assert done.returncode == 0
    assert states(done)["tensorflow"][0] == "warn"
    assert states(done)["user"][0] == "warn"


def test_volumes_of_an_image_are_as_tasks_have_them(dockerd: Dockerd) -> None:
    """Empty: a Python that is in one is not there."""
    name = "tfsup-test:volumes"
    for volume, code in (("/srv", 0), ("/usr/lib/python3.11", 15)):
        dockerd.cli("import", "--change", f"VOLUME {volume}", str(rootfs()), name)
        done = check(dockerd, name, "--pull", "never", "--exec", "-o", "json")
        assert done.returncode == code, done.stdout + done.stderr
        assert states(done)["volumes"][0] == "warn"
        assert states(done)["volumes"][1].startswith(f"{volume}: tasks have empty directories")
    dockerd.cli("image", "rm", "-f", name)


def test_a_missing_image_is_one_error_at_once(dockerd: Dockerd) -> None:
    done = check(dockerd, "nobody/has:this", "--pull", "never")
    assert done.returncode == 3
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1
    assert "no image 'nobody/has:this'" in done.stderr
    done = check(dockerd, "127.0.0.1:1/nobody/has:this")
    assert done.returncode == 3
    assert "cannot pull" in done.stderr


def test_an_image_of_another_architecture(dockerd: Dockerd, tmp_path: Path) -> None:
    load(dockerd, tmp_path, "little:foreign", architecture="arm64")
    done = check(dockerd, "little:foreign", "-o", "json")
    assert done.returncode == 15
    assert states(done) == {"architecture": ("fail", "linux/arm64, this machine is linux/amd64")}


def test_an_image_without_python(dockerd: Dockerd, tmp_path: Path) -> None:
    load(dockerd, tmp_path, "little:empty")
    done = check(dockerd, "little:empty", "-o", "json")
    assert done.returncode == 15
    state, detail = states(done)["python"]
    assert state == "fail"
    assert detail.startswith("no python3 or python in it: ")
    assert "not found" in detail


def test_a_user_that_the_image_does_not_know(dockerd: Dockerd) -> None:
    done = check(dockerd, IMAGE, "--user", "alice", "-o", "json")
    assert done.returncode == 15
    assert states(done)["user"] == ("fail", "unable to find user alice: no matching entries in passwd file")


def test_pull_fetches_what_is_missing_or_always(dockerd: Dockerd) -> None:
    with registry(layer({"bin/nothing": "nothing\n"})) as name:
        assert check(dockerd, name, "--pull", "never").returncode == 3
        done = check(dockerd, name, "-o", "json")
        assert done.returncode == 15
        assert states(done)["architecture"][0] == "ok"
        known = json.loads(done.stdout)["id"]
    assert json.loads(check(dockerd, name, "-o", "json").stdout)["id"] == known
    done = check(dockerd, name, "--pull", "always")
    assert done.returncode == 3
    assert "cannot pull" in done.stderr


def test_pull_tells_how_far_it_is(dockerd: Dockerd) -> None:
    with registry(layer({f"bin/{index}": f"{index}\n" * 100_000 for index in range(20)})) as name:
        told: list[tuple[int, int]] = []
        with Engine(dockerd.url) as engine:
            engine.pull(name, lambda *done: told.append(done))
            assert engine.image(name) is not None
        dockerd.cli("rmi", name)
    assert told == sorted(told)
    assert all(done <= total for done, total in told)


def test_a_container_that_does_not_end_is_removed_at_its_deadline(dockerd: Dockerd) -> None:
    with Engine(dockerd.url) as engine:
        outcome = engine.run(IMAGE, ("sleep", "600"), Box(), 1)
        assert outcome.code is None
        with pytest.raises(CannotStart, match="not found"):
            engine.run(IMAGE, ("no-such-program",), Box(), 1)
    assert dockerd.cli(*MARKS) == ""


def test_it_runs_with_as_little_privilege_as_tasks_have(dockerd: Dockerd) -> None:
    program = """if True:
        import os
        for line in open("/proc/self/status"):
            if line.startswith(("CapEff", "NoNewPrivs")):
                print(line.split()[1])
        print(os.getuid(), os.access("/", os.W_OK), os.listdir("/sys/class/net"))
        print(os.environ["NVIDIA_VISIBLE_DEVICES"])
    """
    with Engine(dockerd.url) as engine:
        outcome = engine.run(IMAGE, ("python3", "-c", program), Box(), 60)
    assert outcome.output.splitlines() == ["0000000000000000", "1", "1000 False ['lo']", "void"]


def test_a_dockerd_that_is_not_there_or_frozen(
    dockerd_of_my_own: Dockerd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(Unreachable, match="No such file or directory"):
        Engine(f"unix://{tmp_path}/docker.sock")
    monkeypatch.setattr("supervisor.cli.cluster.engine.CALL_S", 1)
    with dockerd_of_my_own.frozen(), pytest.raises(Unreachable, match="timed out"):
        Engine(dockerd_of_my_own.url)


def test_a_dockerd_that_ends_in_the_middle_of_a_pull(tmp_path: Path) -> None:
    class Answer(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            asked = self.rfile.readline()
            if b"/version" in asked:
                self.wfile.write(b'HTTP/1.1 200 OK\r\nContent-Length: 21\r\n\r\n{"ApiVersion":"1.41"}')
            elif asked:
                self.wfile.write(b'HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n9\r\n{"status"')

    path = str(tmp_path / "docker.sock")
    with socketserver.ThreadingUnixStreamServer(path, Answer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with Engine(f"unix://{path}") as engine, pytest.raises(Unreachable):
            engine.pull("any", lambda *_: None)
        server.shutdown()


def test_a_python_that_is_too_old_or_half_there() -> None:
    def told(version: list[int], launcher: str = "") -> list[tuple[str, State]]:
        facts = {"version": version, "machine": "x86_64", "uid": 1, "gid": 1, "unwritable": []}
        outcome = Outcome(0, json.dumps({**facts, "launcher": launcher}), "")
        return [(each.check, each.state) for each in image_check._judged("python3", outcome)[1]]

    assert told([3, 7, 17]) == [("python", State.FAIL)]
    assert told([3, 8, 0]) == [("python", State.OK), ("launcher", State.OK)]
    assert told([3, 11, 2], "ImportError: json") == [("python", State.OK), ("launcher", State.FAIL)]
    facts, found = image_check._judged("python3", Outcome(127, "", "python3: not for this machine"))
    assert facts is None
    assert found[0].detail.endswith("not for this machine")


def test_directories_that_cannot_be_written() -> None:
    facts = image_check.Facts((3, 11), "x86_64", 1000, 1000, "", ("/dev/shm",))
    assert image_check._writable(facts).state is State.FAIL


def test_the_probe_speaks_the_oldest_python_there_is(tmp_path: Path) -> None:
    probe = image_check.INSIDE / "image_probe.py"
    compile(probe.read_text(), str(probe), "exec", dont_inherit=True)
    inside = tmp_path / "inside"
    inside.mkdir()
    shutil.copy(probe, inside)
    (inside / "__init__.py").write_text("raise ImportError('half of it')\n")
    done = subprocess.run(
        [sys.executable, inside / "image_probe.py", tmp_path, "/proc"],
        capture_output=True,
        text=True,
        check=True,
    )
    said = json.loads(done.stdout)
    assert said["launcher"] == "ImportError: half of it"
    assert said["unwritable"] == ["/proc"]
