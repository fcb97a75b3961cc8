"""Masks of known values: whole, by line, wherever the output is cut, and never over the rest of it."""

import time
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.inside import protocol
from agent.inside.launcher import mask
from agent.inside.launcher.mask import Masker, masked
from supervisor.contract import secret
from tests.launcher.harness import Agent, launcher, wait_for

TOKEN = "hf_Abcdef012345"
KEY = "-----BEGIN KEY-----\nMIIEvQIBADANBgkq\nshort\nhkiG9w0BAQEFAASC\n-----END KEY-----"
OVERLAP = "abcdabcdabcd"


def through(values: list[str], pieces: list[bytes]) -> bytes:
    masker = Masker(values)
    return b"".join(map(masker.feed, pieces)) + masker.end()


def cut(data: bytes, places: list[int]) -> list[bytes]:
    at = [0, *sorted({place % (len(data) + 1) for place in places}), len(data)]
    return [data[start:end] for start, end in pairwise(at)]


WORDS = st.sampled_from(
    ["x", "\n", "hf_", TOKEN, TOKEN[:9], TOKEN[3:], KEY, KEY[:30], OVERLAP, "abcd", "abcdabcd", "step 7 "]
)


@given(st.lists(WORDS, max_size=12), st.lists(st.integers(0, 500), max_size=12))
def test_no_value_is_shown_wherever_the_output_is_cut(words: list[str], places: list[int]) -> None:
    data = "".join(words).encode()
    shown = through([TOKEN, KEY, OVERLAP], cut(data, places))
    for value in (TOKEN, KEY, OVERLAP, *(line for line in KEY.splitlines() if len(line) >= 8)):
        assert value.encode() not in shown
    assert shown == through([TOKEN, KEY, OVERLAP], [data]), "the cuts make no difference"


@given(st.binary(max_size=300), st.lists(st.integers(0, 300), max_size=8))
def test_output_without_a_value_is_shown_as_it_is(data: bytes, places: list[int]) -> None:
    if TOKEN.encode()[:8] not in data:
        assert through([TOKEN], cut(data, places)) == data


def test_each_line_of_a_value_is_masked_alone_too() -> None:
    lines = "".join(f"log: {line}\n" for line in KEY.splitlines())
    assert masked(lines, [KEY]) == "log: ***\nlog: ***\nlog: short\nlog: ***\nlog: ***\n"
    assert masked(f"<{KEY}>", [KEY]) == "<***>"


def test_values_that_overlap_are_covered_whole() -> None:
    assert masked("abcdabcdabcdabcd!", [OVERLAP]) == "***!"
    assert masked("0123456789abcdef", ["0123456789", "6789abcdef"]) == "***"
    assert masked("pre-fix-word-and-more", ["fix-word", "pre-fix-word-and"]) == "***-more"


def test_what_may_be_the_beginning_of_a_value_is_held_back_and_masked_at_the_end_if_it_is_long() -> None:
    masker = Masker([TOKEN])
    assert masker.feed(b"token: hf_Abc") == b"token: "
    assert masker.feed(b"x\n") == b"hf_Abcx\n"
    assert masker.feed(TOKEN[:8].encode()) == b""
    assert masker.end() == b"***"
    assert masker.feed(b"hf") + masker.end() == b"hf"


def test_a_value_that_follows_one_of_which_it_repeats_the_end_is_covered() -> None:
    masker = Masker([OVERLAP])
    shown = [masker.feed(each) for each in (b"abcdabcdabcd", b"abcd", b"?")]
    assert b"".join(shown) == b"***?"


def test_values_too_short_or_uniform_are_no_patterns() -> None:
    assert (
        masked("step 1234567 -------- ok", ["1234567", "--------", "", "  \n"]) == "step 1234567 -------- ok"
    )
    assert (mask.LEAST_BYTES, mask.LEAST_DIFFERENT) == (secret.LEAST_BYTES, secret.LEAST_DIFFERENT)


@pytest.mark.parametrize(
    "value", ["abcd" * 4096, "".join(f"line {i:06} of many\n" for i in range(secret.MOST_LINES))]
)
def test_the_worst_output_for_the_worst_value_takes_its_launcher_no_longer_than_a_turn(value: str) -> None:
    assert not secret.value_objection(value.encode())
    masker = Masker([value])
    flood = (value.encode() * 20)[: 1 << 18]
    began = time.process_time()
    masker.feed(flood)
    assert time.process_time() - began < 0.5


@pytest.mark.parametrize("warm", [True, False])
def test_a_launcher_gives_secrets_to_the_program_alone(warm: bool) -> None:
    script = (
        "import os, sys, time\n"
        "token = os.environ['TOKEN']\n"
        "for part in (token[:5], token[5:], '\\n'):\n"
        "    sys.stdout.write(part); sys.stdout.flush(); time.sleep(.05)\n"
        "print('length', len(token), flush=True)\n"
        "while not os.path.exists('go'): time.sleep(.01)\n"
        "raise SystemExit('bad ' + token)\n"
    )
    with launcher() as rig, Agent(rig.socket_path) as agent:
        agent.expect(protocol.Warm)
        assert agent.expect(protocol.Hello).keeps_secrets
        (rig.root / "state").mkdir(exist_ok=True)
        program = rig.write("program.py", script)
        attempt = rig.start(agent, "python3", str(program), warm=warm, secrets={"TOKEN": TOKEN})
        assert agent.expect(protocol.Started).warm is warm
        rig.logged("length 15")
        kept = wait_for("files", lambda: list((rig.root).rglob("environ.json")))
        assert "TFSUP_ATTEMPT" in kept[0].read_text()
        for path in [each for each in rig.root.rglob("*") if each.is_file()]:
            assert TOKEN.encode() not in path.read_bytes(), path
        for what in ("environ", "cmdline"):
            assert TOKEN.encode() not in Path(f"/proc/{rig.process.pid}/{what}").read_bytes()
        rig.write("go", "")
        assert agent.expect(protocol.Exited, lambda each: each.attempt == attempt).code == 1
        assert rig.log() == b"***\nlength 15\nbad ***\n"


def test_a_successor_is_told_what_to_mask() -> None:
    with launcher() as rig:
        with Agent(rig.socket_path) as agent:
            agent.expect(protocol.Warm)
            rig.start(agent, "sleep", "100", secrets={"TOKEN": TOKEN})
            agent.expect(protocol.Started)
        with Agent(rig.socket_path, "inc2") as successor:
            running = successor.expect(protocol.Hello).attempt
    assert running is not None
    assert running.secrets == {"TOKEN": TOKEN}
    assert TOKEN not in repr(running)


def test_the_log_is_whole_when_the_end_is_told() -> None:
    with launcher() as rig, Agent(rig.socket_path) as agent:
        for printed, logged in (("x hf_Ab", b"x hf_Ab"), ("x hf_Abcdef", b"x ***")):
            rig.run(agent, "printf", printed, secrets={"TOKEN": TOKEN})
            assert rig.log() == logged
