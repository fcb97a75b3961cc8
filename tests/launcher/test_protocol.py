"""The wire format, and what keeps the launcher loadable by the job's own interpreter."""

import ast
import json
import sys
from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.inside import protocol
from tests.launcher.harness import INSIDE

_TEXT = st.text(max_size=20)
_BY_HINT = {
    "int": st.integers(-(2**53), 2**53),
    "str": _TEXT,
    "bool": st.booleans(),
    "dict[str, str]": st.dictionaries(_TEXT, _TEXT, max_size=3),
    "dict[str, list[str]]": st.dictionaries(_TEXT, st.lists(_TEXT, max_size=3), max_size=3),
    "tuple[str, ...]": st.lists(_TEXT, max_size=3).map(tuple),
    "tuple[int, ...]": st.lists(st.integers(0, 65535), max_size=3).map(tuple),
}


def _values(hint: str) -> st.SearchStrategy[object]:
    if hint.endswith(" | None"):
        return st.none() | _values(hint.removesuffix(" | None"))
    for kind in (protocol.HeldPort, protocol.RunningAttempt, protocol.Exited):
        if hint == kind.__name__:
            return _messages(kind)
        if hint == f"tuple[{kind.__name__}, ...]":
            return st.lists(_messages(kind), max_size=2).map(tuple)
    return _BY_HINT[hint]


def _messages(kind: type) -> st.SearchStrategy[object]:
    return st.builds(kind, **{each.name: _values(str(each.type)) for each in fields(kind)})


@given(st.sampled_from(list(protocol.MESSAGES.values())).flatmap(_messages))
def test_every_message_survives_the_wire(message: object) -> None:
    line = protocol.encode(message)
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    assert protocol.decode(line) == message


def test_unknown_types_and_fields_are_skipped() -> None:
    assert protocol.decode(b'{"type": "from_the_future"}') is None
    assert protocol.decode(b'{"type": "ack_exit", "attempt": "a", "mood": 1}') == protocol.AckExit("a")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b"nonsense", "not JSON"),
        (b"[1]", "not an object"),
        (b'{"type": "kill"}', "Kill.attempt is missing"),
        (b'{"type": "kill", "attempt": 5}', "Kill.attempt: expected str, found int"),
        (b'{"type": "grant", "stamp_ms": true, "remaining_ms": 1, "incarnation": "i"}', "Grant.stamp_ms"),
        (
            b'{"type": "reserve", "reservation": "r", "low": 1, "high": 2, "lock_dir": "", "avoid": ["x"]}',
            "avoid",
        ),
        (
            b'{"type": "peers", "attempt": "a", "cluster": {"ps": "h:1"}}',
            "Peers.cluster: not an object of lists",
        ),
    ],
)
def test_wrong_lines_name_what_is_wrong(line: bytes, words: str) -> None:
    with pytest.raises(protocol.ProtocolError, match=words):
        protocol.decode(line)


@given(st.lists(st.binary(max_size=30).map(lambda raw: raw.replace(b"\n", b"")), max_size=8), st.data())
def test_lines_are_cut_the_same_wherever_the_stream_is(lines: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(line + b"\n" for line in lines)
    buffer, cut = protocol.LineBuffer(), []
    while stream:
        size = data.draw(st.integers(1, len(stream)))
        cut += buffer.feed(stream[:size])
        stream = stream[size:]
    assert cut == [line for line in lines if line]


def test_a_line_without_end_is_refused() -> None:
    buffer = protocol.LineBuffer()
    buffer.feed(b"x" * protocol.MAX_LINE_BYTES)
    with pytest.raises(protocol.ProtocolError, match="more than"):
        buffer.feed(b"x")


@pytest.mark.parametrize("path", sorted(INSIDE.rglob("*.py")), ids=lambda path: str(path.relative_to(INSIDE)))
def test_inside_is_python_3_8_and_standard_library_alone(path: object) -> None:
    source = (INSIDE / str(path)).read_text()
    tree = ast.parse(source, feature_version=(3, 8))
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names = [node.module or ""]
        for name in names:
            assert name.partition(".")[0] in sys.stdlib_module_names, name


def test_a_config_as_an_agent_writes_it() -> None:
    config = protocol.LauncherConfig(1, "id", "job", "/s", "/d", preload=("json",), env={"A": "b"})
    assert (
        protocol.from_plain(protocol.LauncherConfig, json.loads(json.dumps(protocol.to_plain(config))))
        == config
    )
