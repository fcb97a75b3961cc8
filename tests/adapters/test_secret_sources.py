"""The sources of secrets, for real: files and commands, and what is said where one cannot be had."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from supervisor.adapters import secret_sources
from supervisor.adapters.secret_sources import SecretSources
from supervisor.contract.errors import Refused, Unreachable
from supervisor.contract.secret import Source

TOKEN = "hf_Abcdef012345"
ALL = frozenset({"*"})


def of_file(path: Path) -> SecretSources:
    return SecretSources({"hf": Source(ALL, file=str(path))})


def of_command(script: str) -> SecretSources:
    return SecretSources({"hf": Source(ALL, command=(sys.executable, "-c", script))})


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "hf"
    path.touch(mode=0o600)
    path.write_text(f"{TOKEN}\n")
    return path


async def test_a_file_is_read_anew_each_time_and_without_its_last_newline(file: Path) -> None:
    sources = of_file(file)
    assert await sources.read("hf") == TOKEN
    file.write_bytes(b"a second value\nof two lines\r\n")
    assert await sources.read("hf") == "a second value\nof two lines"


async def test_a_command_is_run_anew_each_time(tmp_path: Path) -> None:
    count = tmp_path / "count"
    sources = of_command(f"f = open({str(count)!r}, 'a'); f.write('x'); print('token-', f.tell(), sep='0')")
    assert [await sources.read("hf"), await sources.read("hf")] == ["token-01", "token-02"]


async def test_what_is_asked_for_at_once_is_read_once(tmp_path: Path) -> None:
    count = tmp_path / "count"
    script = f"import time; time.sleep(.2); open({str(count)!r}, 'a').write('x'); print('Abcdefgh')"
    sources = of_command(script)
    assert await asyncio.gather(*(sources.read("hf") for _ in range(20))) == ["Abcdefgh"] * 20
    assert count.read_text() == "x"


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("import sys; print('Abcdefgh'); sys.exit(3)", "has ended with code 3"),
        ("import sys; print('Abcdefgh', file=sys.stderr)", "fewer than 8 characters"),
        ("print('Abcdefgh' * 10**6)", "more than 16 KiB"),
        ("import os; os.write(1, b'Abcdefgh\\xff')", "not UTF-8"),
        ("import os; os.kill(os.getpid(), 9)", "has ended with code -9"),
    ],
)
async def test_why_a_command_gives_none_is_told_without_what_it_printed(
    script: str, why: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(Unreachable, match=why) as raised:
        await of_command(script).read("hf")
    assert "Abcdefgh" not in f"{raised.value} {raised.value.__cause__!r}"
    assert "Abcdefgh" not in "".join(capfd.readouterr())


async def test_a_command_that_hangs_is_killed_with_what_it_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(secret_sources, "COMMAND_S", 0.5)
    pid = tmp_path / "pid"
    script = (
        "import subprocess, time\n"
        f"p = subprocess.Popen(['sleep', '100']); open({str(pid)!r}, 'w').write(str(p.pid)); time.sleep(100)"
    )
    with pytest.raises(Unreachable, match=r"has not ended within 0\.5 s"):
        await of_command(script).read("hf")
    for _ in range(500):
        stat = Path(f"/proc/{pid.read_text()}/stat")
        if not stat.exists() or ") Z " in stat.read_text():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it lives")


async def test_a_file_that_others_can_read_is_not_given(file: Path) -> None:
    file.chmod(0o640)
    with pytest.raises(Unreachable, match=rf"others on this machine can read {file}; run: chmod 600 {file}"):
        await of_file(file).read("hf")


@pytest.mark.parametrize("content", [None, b"", b"short\n", b"a" * 20_000])
async def test_a_file_without_a_good_value_gives_none(file: Path, content: bytes | None) -> None:
    if content is None:
        file.unlink()
    else:
        file.write_bytes(content)
    with pytest.raises(Unreachable, match="the secret 'hf' cannot be read now: "):
        await of_file(file).read("hf")


async def test_a_program_that_is_not_there_is_named() -> None:
    with pytest.raises(Unreachable, match="/no/such/program is not on this machine"):
        await SecretSources({"hf": Source(ALL, command=("/no/such/program",))}).read("hf")


async def test_a_change_of_the_configuration_counts_at_once(file: Path) -> None:
    sources = SecretSources()
    with pytest.raises(Refused):
        await sources.read("hf")
    sources.sources = {"hf": Source(frozenset({"user:alice"}), file=str(file))}
    assert await sources.read("hf") == TOKEN
    assert sources.objection("hf", "user:alice", "") == ""
    assert "jobs of user:bob may not use" in sources.objection("hf", "user:bob", "alice")
    assert "there is no secret 'other'" in sources.objection("other", "user:alice", "")
