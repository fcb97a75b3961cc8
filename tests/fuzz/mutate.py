"""Bytes that nobody sends by mistake, made from such as everybody sends. The same seed, the same bytes."""

from __future__ import annotations

import json
import random
import string
from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

NUMBERS = ("0", "-1", "1e999", "-1e999", "NaN", "Infinity", "1e-400", "1" + "0" * 400, "9" * 5000)
EDGES = tuple(
    str(sign * (1 << bits) + by) for sign, bits, by in product((1, -1), (31, 53, 63, 64), (-1, 0, 1))
)
TEXTS = (
    '""',
    '"\\ud800"',
    '"\\u0000"',
    '"../../etc"',
    '"/"',
    '"a\\nb"',
    '"' + "a" * 70_000 + '"',
    '"{worker_hosts}"',
    '"' + "{worker_hosts}" * 3500 + '"',
    '"(a{4294967296})"',
    '"((a+)+)$"',
    '"*a*a*a*a*b"',
    '"\\u202e\\ufeff"',
)
OTHERS = ("null", "true", "[]", "{}", "[" * 500 + "]" * 500, '{"a":' * 300 + "1" + "}" * 300, '{"v":1}')
VALUES = (*NUMBERS, *EDGES, *TEXTS, *OTHERS)
TOKENS = (
    *(value.encode() for value in VALUES),
    b"\x00",
    b"\xff\xfe",
    b"\xed\xa0\x80",
    b"\r\n",
    b"\x1b[31m",
    b"[" * 5000,
    b"{" * 5000,
    b"&a [*a]",
    b"!!python/object:os.system ",
    b"<<: *a\n",
    b"\x80\x80\x80\x80\x80\x80\x80\x80\x80\x01",
    b"PK\x03\x04",
    b"PK\x05\x06",
    b"PK\x06\x06",
)
_MARK = '"\\u0001mark\\u0001"'

Mutation = Callable[[random.Random, bytes], bytes]


def mutated(choice: random.Random, seeds: Sequence[bytes], most_bytes: int) -> bytes:
    """One of the seeds after one to eight changes of bytes."""
    data = choice.choice(seeds)
    for _ in range(1 << choice.randrange(4)):
        data = choice.choice(_MUTATIONS)(choice, data)
        if choice.random() < 0.05:
            data = _spliced(choice, data, choice.choice(seeds))
    return data[:most_bytes]


def json_mutated(choice: random.Random, seeds: Sequence[bytes]) -> bytes:
    """One of the seeds, which are JSON, with one to four of its values changed, doubled, moved or removed."""
    body = json.loads(choice.choice(seeds))
    given: list[str] = []
    for _ in range(1 + choice.randrange(4)):
        holder, at = _place(choice, body)
        what = choice.randrange(8)
        if holder is None:
            continue
        if what == 0:
            del holder[at]
        elif what == 1 and isinstance(holder, list):
            holder.extend(holder[:50])
        elif what == 2:
            other, there = _place(choice, body)
            if other is not None:
                holder[at] = json.loads(json.dumps(other[there]))
        elif what == 3 and isinstance(holder, dict):
            holder[_word(choice)] = holder[at]
        elif what == 4 and isinstance(holder[at], str):
            holder[at] = _changed_text(choice, holder[at])
        else:
            given.append(choice.choice(VALUES if what == 5 else _alike(holder[at])))
            holder[at] = "\x01mark\x01"
    text = json.dumps(body)
    for value in given:
        text = text.replace(_MARK, value, 1)
    return text.encode()


def _alike(value: object) -> tuple[str, ...]:
    """Values of the same kind, which get further."""
    if isinstance(value, str):
        return TEXTS
    return (*NUMBERS, *EDGES) if type(value) in {int, float} else OTHERS


def _place(choice: random.Random, top: object) -> tuple[Any, Any]:
    """A container below `top`, and a key or index of it; None where there is none."""
    found: tuple[Any, Any] = (None, None)
    body: Any = top
    while isinstance(body, dict | list) and body:
        at = choice.choice(list(body)) if isinstance(body, dict) else choice.randrange(len(body))
        found = body, at
        if choice.random() < 0.3:
            break
        body = body[at]
    return found


def _changed_text(choice: random.Random, text: str) -> str:
    at = choice.randrange(len(text) + 1)
    more = choice.choice(("", "/", "..", "\x00", "{", "}", "%", "\ud800", "-1", "é", " ", "9" * 30, text * 3))
    return text[:at] + more + text[at + choice.randrange(3) :]


def _word(choice: random.Random) -> str:
    return "".join(choices for choices in choice.choices(string.printable, k=choice.randrange(1, 9)))


def _flipped(choice: random.Random, data: bytes) -> bytes:
    if not data:
        return data
    found = bytearray(data)
    for _ in range(1 + choice.randrange(4)):
        found[choice.randrange(len(found))] ^= 1 << choice.randrange(8)
    return bytes(found)


def _set(choice: random.Random, data: bytes) -> bytes:
    at = choice.randrange(len(data) + 1)
    raw = choice.choice((b"\x00", b"\xff", b"\x7f", b"\x80", b"\xff\xff\xff\xff", b"\xff" * 8, bytes(8)))
    return data[:at] + raw + data[at + len(raw) :]


def _inserted(choice: random.Random, data: bytes) -> bytes:
    at = choice.randrange(len(data) + 1)
    return data[:at] + choice.choice(TOKENS) + data[at:]


def _replaced(choice: random.Random, data: bytes) -> bytes:
    at = choice.randrange(len(data) + 1)
    return data[:at] + choice.choice(TOKENS) + data[at + choice.randrange(20) :]


def _cut(choice: random.Random, data: bytes) -> bytes:
    return data[: choice.randrange(len(data) + 1)]


def _removed(choice: random.Random, data: bytes) -> bytes:
    at = choice.randrange(len(data) + 1)
    return data[:at] + data[at + choice.randrange(64) :]


def _doubled(choice: random.Random, data: bytes) -> bytes:
    at = choice.randrange(len(data) + 1)
    part = data[at : at + choice.randrange(1, 200)]
    return data[:at] + part * choice.choice((2, 3, 100)) + data[at + len(part) :]


def _spliced(choice: random.Random, data: bytes, other: bytes) -> bytes:
    return data[: choice.randrange(len(data) + 1)] + other[choice.randrange(len(other) + 1) :]


_MUTATIONS: tuple[Mutation, ...] = (
    _flipped,
    _flipped,
    _set,
    _inserted,
    _replaced,
    _cut,
    _removed,
    _doubled,
)
