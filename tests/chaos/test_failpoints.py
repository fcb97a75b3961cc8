"""Failpoints: no effect is without one, the list is whole, and what is armed happens, once."""

from __future__ import annotations

import ast
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from chaos.failpoints import source
from chaos.failpoints.directory import Directory, Strike
from chaos.failpoints.exempt import EXEMPT, reason
from chaos.failpoints.points import VALUES, failpoints, names
from chaos.sim.run import run_seed
from supervisor.adapters import failpoints as product
from supervisor.adapters import service
from supervisor.adapters.files.config.daemon import DaemonConfig

SEEDS = (6,)

# The source.


def all_effects() -> Iterator[source.Effect]:
    for path in source.paths():
        yield from source.read(path).effects


def test_no_effect_is_without_a_failpoint() -> None:
    bare = [
        f"{each.path}:{each.line}: {each.call}"
        for each in all_effects()
        if not each.covered and not reason(each)
    ]
    assert not bare, 'put each into `with effect("part.what"):`, or say in chaos/failpoints/exempt.py why not'


def test_every_exemption_fits_something() -> None:
    fits = Counter(
        each for effect in all_effects() if not effect.covered for each in EXEMPT if each.fits(effect)
    )
    assert [each for each in EXEMPT if not fits[each]] == []
    assert [each for each in EXEMPT if each.count and fits[each] != each.count] == []


@pytest.mark.parametrize(
    "call",
    [
        "os.kill(pid, 9)",
        "os.open(path, os.O_WRONLY | os.O_CREAT)",
        "open(path, 'w')",
        "path.open('ab')",
        "path.replace(target)",
        "path.write_bytes(data)",
        "subprocess.Popen([program])",
        "shutil.rmtree(path)",
        "files.move_directory(old, new)",
        "store.rename(old, new)",
        "etcd.txn(compares, [put])",
        "etcd.txn((), ops)",
    ],
)
def test_an_effect_is_seen(call: str) -> None:
    (bare,) = source.look_through("m.py", f"def f():\n    {call}\n").effects
    assert (bare.line, bare.within, bare.covered) == (2, "f", False)
    (held,) = source.look_through("m.py", f"with effect('a.b'):\n    {call}\n").effects
    assert held.covered


@pytest.mark.parametrize(
    "call",
    [
        "text.replace('a', 'b')",
        "replace(record, state=state)",
        "os.open(path, os.O_RDONLY)",
        "open(path)",
        "path.read_bytes()",
        "etcd.txn((), [Get(key), Get(other)])",
        "etcd.get(key)",
    ],
)
def test_what_is_none_is_not_taken_for_one(call: str) -> None:
    assert not source.look_through("m.py", f"{call}\n").effects


HELPERS = """
def _inside(): os.unlink(path)
def _both(): os.unlink(path)
def public(): os.unlink(path)
with effect("a.b"):
    run(lambda: _inside())
    _both()
    public()
    def later(): os.rmdir(path)
_both()
"""


def test_a_private_function_lies_in_a_failpoint_when_all_of_its_uses_do() -> None:
    found = {each.within: each.covered for each in source.look_through("m.py", HELPERS).effects}
    assert found == {"_inside": True, "_both": False, "public": False, "later": False}


def test_the_points_of_a_module() -> None:
    text = 'async def f():\n    with mapped(), effect(f"leader.{kind}", Lost):\n        await go()\n'
    assert source.look_through("m.py", text).points == (source.Point("m.py", 2, "leader.{}"),)


# The list.


def test_a_name_is_of_one_effect() -> None:
    places = Counter((each.name, each.path) for each in failpoints())
    assert [name for name, count in places.items() if count > 1] == []
    shared = Counter(each.name for each in failpoints())
    twice = {name for name, count in shared.items() if count > 1}
    assert twice == {
        "store.delete_file",
        "store.delete_tree",
        "store.rename",
        "store.write",
        "runtime.configure",
        "runtime.remove_home",
    }


def kinds_in_source() -> Iterator[tuple[str, str]]:
    """Each kind of action that is written out where it is made: (module, kind)."""
    for path in (source.ROOT / "supervisor/control").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Action":
                kind = node.args[0] if node.args else next(k.value for k in node.keywords if k.arg == "kind")
                if isinstance(kind, ast.Constant):
                    yield path.stem, str(kind.value)


def test_every_kind_of_action_is_listed() -> None:
    known = {*VALUES["leader.{}"], *VALUES["service.{}"]}
    found = set(kinds_in_source())
    assert len(found) > 30
    assert {(module, kind) for module, kind in found if kind not in known} == set()


def test_whatever_simulated_daemons_reach_is_listed() -> None:
    reached: set[str] = set()
    end = product.install(lambda point, _error: reached.add(point))
    try:
        for seed in SEEDS:
            run_seed(seed)
    finally:
        end()
    assert reached - names() == set(), "add them to chaos/failpoints/points.py"
    assert {"leader.flip.after", "commit.record.before", "membership.join.after"} <= reached
    assert len(reached) > 80


# What is armed.


def test_inside_tasks_it_is_the_same_file() -> None:
    inside = source.ROOT / "agent/inside/failpoints.py"
    assert inside.read_bytes() == (source.ROOT / "supervisor/adapters/failpoints.py").read_bytes()


@pytest.fixture
def directory(tmp_path: Path) -> Directory:
    return Directory(tmp_path / "failpoints").make()


PROGRAM = """
import os
from supervisor.adapters.failpoints import arm, effect

assert arm(os.environ)
for turn in range(3):
    try:
        with effect("part.what"):
            print("done", turn, flush=True)
    except OSError as error:
        print(error.strerror, flush=True)
"""


def start(directory: Directory) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, **directory.environment()},
        cwd=source.ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )


def run(directory: Directory) -> tuple[int, list[str]]:
    with start(directory) as process:
        out, _ = process.communicate(timeout=40)
    return process.returncode, out.split("\n")[:-1]


ALL = ["done 0", "done 1", "done 2"]


@pytest.mark.parametrize(
    ("point", "action", "code", "out"),
    [
        ("part.what.before", "kill", -9, []),
        ("part.what.after", "kill", -9, ["done 0"]),
        ("part.what.before", "kill@3", -9, ["done 0", "done 1"]),
        ("part.what.before", "error@2", 0, ["done 0", "Input/output error", "done 2"]),
        ("part.what.after", "error", 0, ["done 0", "Input/output error", "done 1", "done 2"]),
        ("part.what.before", "pause:1", 0, ALL),
        ("part.other.before", "kill", 0, ALL),
        ("part.what.before", "kill@4", 0, ALL),
    ],
)
def test_what_is_armed_happens(
    directory: Directory, point: str, action: str, code: int, out: list[str]
) -> None:
    directory.arm(point, action)
    assert run(directory) == (code, out)
    bites = point.startswith("part.what") and not action.endswith("4")
    assert [each.point for each in directory.struck()] == [point] * bites
    assert "part.what.before" in directory.reached()


def test_it_happens_once(directory: Directory) -> None:
    directory.arm("part.what.before")
    assert run(directory)[0] == -signal.SIGKILL
    assert run(directory) == (0, ALL)


def test_a_process_freezes_and_goes_on(directory: Directory) -> None:
    directory.arm("part.what.after", "freeze@2")
    with start(directory) as process:
        deadline = time.monotonic() + 40
        stat = Path(f"/proc/{process.pid}/stat")
        while stat.read_text().rpartition(")")[2].split()[0] != "T":
            assert time.monotonic() < deadline, "it does not stop"
            time.sleep(0.01)
        assert directory.struck() == (Strike("part.what.after", process.pid),)
        process.send_signal(signal.SIGCONT)
        out, _ = process.communicate(timeout=40)
    assert (process.returncode, out.split("\n")[:-1]) == (0, ALL)


def test_unarmed_points_are_one_object_that_does_nothing() -> None:
    assert product.arm({}) == ""
    assert product.effect("a.b") is product.effect("c.d")


@pytest.mark.parametrize("mode", [0o777, 0o720, 0o702])
def test_a_directory_that_others_can_write_to_is_refused(directory: Directory, mode: int) -> None:
    directory.root.chmod(mode)
    with pytest.raises(ValueError, match="only this user can write to"):
        product.arm(directory.environment())


def test_what_is_no_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch(mode=0o600)
    for path in (tmp_path / "file", tmp_path / "missing"):
        with pytest.raises(ValueError, match="TFSUP_FAILPOINTS="):
            product.arm({product.VARIABLE: str(path)})


def test_a_daemon_says_loudly_that_points_are_armed(
    directory: Directory, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(product.VARIABLE, str(directory.root))
    ends = list(product._installed)

    async def serve(_sink: object) -> None:
        pass

    try:
        service.run("tfsup-agent", lambda: (CONFIG, {}, serve))
        assert len(product._installed) == len(ends) + 1
    finally:
        product._installed[:] = ends
    assert "FAILPOINTS ARE ARMED" in capfd.readouterr().err


def test_a_daemon_does_not_start_with_points_that_it_cannot_heed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(product.VARIABLE, "/proc/self/nowhere")

    async def serve(_sink: object) -> None:
        raise AssertionError("it serves")

    with pytest.raises(SystemExit) as stopped:
        service.run("tfsup-agent", lambda: (CONFIG, {}, serve))
    assert stopped.value.code != 0
    assert "TFSUP_FAILPOINTS=/proc/self/nowhere" in capsys.readouterr().err


CONFIG = DaemonConfig.model_validate(
    {
        "cluster": "test",
        "etcd": {"endpoints": ["http://127.0.0.1:1"]},
        "listen": "unix:/nowhere",
        "state_dir": "/nowhere",
    }
)
