"""Logs: one event to every output, no secrets, nothing that commands a terminal, never a reason to die."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from supervisor.adapters import telemetry
from supervisor.adapters.telemetry import ConsoleOutput, configure_logging, escape, get_logger
from supervisor.contract.errors import UserError


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    yield
    structlog.reset_defaults()


def lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(row) for row in path.read_text().splitlines()]


def test_a_file_gets_json_with_component_and_fields(tmp_path: Path) -> None:
    tee = configure_logging(tmp_path / "logs" / "a.jsonl", console=False)
    get_logger("agent", node="n1").info("task started", task="digits/ps:0", pid=7)
    tee.close()
    (line,) = lines(tmp_path / "logs" / "a.jsonl")
    assert {"component": "agent", "node": "n1", "event": "task started", "pid": 7}.items() <= line.items()
    assert line["level"] == "info"
    assert str(line["timestamp"]).endswith("Z")


def test_levels_below_the_chosen_one_are_dropped(tmp_path: Path) -> None:
    tee = configure_logging(tmp_path / "a", "warning", console=False)
    logger = get_logger("x")
    logger.info("no")
    logger.warning("yes")
    tee.close()
    logger.warning("too late")
    assert tee.dropped == 1
    assert [line["event"] for line in lines(tmp_path / "a")] == ["yes"]


def test_secrets_are_redacted_at_any_depth(tmp_path: Path) -> None:
    tee = configure_logging(tmp_path / "a", console=False)
    get_logger("x").info(
        "e",
        password="hunter2",
        api_token="hunter2",
        leader_token="leader@5",
        headers={"Authorization": "hunter2", "n": [{"client_secret": "hunter2"}]},
    )
    tee.close()
    text = (tmp_path / "a").read_text()
    assert "hunter2" not in text
    assert lines(tmp_path / "a")[0]["leader_token"] == "leader@5"


def test_the_console_shows_no_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging(None)
    get_logger("x").warning("bad \x1b[2J\nfake line", value="a\x9bb\u202ec", raw=b"\x1b")
    shown = capsys.readouterr().err
    assert shown.count("\n") == 1
    assert not any(char in shown for char in "\x1b\x9b\u202e")
    assert "bad \\x1b[2J\\x0afake line" in shown


def test_an_exception_keeps_its_lines_and_loses_its_escapes(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging(None)
    try:
        raise ValueError("boom \x1b[31m")
    except ValueError:
        get_logger("x").exception("failed")
    shown = capsys.readouterr().err
    assert "\x1b" not in shown
    assert "\nValueError: boom \\x1b[31m" in shown


def test_a_full_disk_drops_lines_and_stops_nobody() -> None:
    full = os.fdopen(os.open("/dev/full", os.O_WRONLY), "w", buffering=1)
    output = ConsoleOutput(full)
    for _ in range(3):
        output.write({"event": "lost"})
    assert output.dropped == 3
    with pytest.raises(OSError, match="No space"):
        full.close()


def test_nonsense_is_a_user_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="log level 'loud'"):
        configure_logging(None, "loud")
    with pytest.raises(UserError, match="log file"):
        configure_logging(tmp_path, console=False)


def test_escape_leaves_readable_text_alone() -> None:
    assert escape("digits/ps:0 é 東") == "digits/ps:0 é 東"


def test_a_log_file_that_has_grown_large_is_put_aside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(telemetry, "ROTATE_BYTES", 1000)
    tee = configure_logging(tmp_path / "a", console=False)
    logger = get_logger("agent")
    for number in range(40):
        logger.info("line", number=number)
    tee.close()
    assert tee.dropped == 0
    old, new = (tmp_path / "a.1").read_text().splitlines(), (tmp_path / "a").read_text().splitlines()
    assert json.loads(new[-1])["number"] == 39
    assert json.loads(old[-1])["number"] + 1 == json.loads(new[0])["number"]


def test_logs_load_no_rich_and_leave_it_to_others() -> None:
    """It takes 6 MiB of each daemon; the command line draws its tables with it."""
    script = (
        "import sys, supervisor.adapters.telemetry\n"
        "assert not [name for name in sys.modules if name.partition('.')[0] == 'rich']\n"
        "import rich.table, structlog.dev\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)
