"""Attacks by the text of a job file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from tests.attacks.attack import Attack, Refused

_PLAIN: Mapping[str, object] = {
    "name": "x",
    "strategy": "plain",
    "command": ["true"],
    "roles": {"worker": {"count": 1}},
}


def _refused(attack: str, tries: str, says: str, text: str = "", /, **job: object) -> Attack:
    return Attack(name=attack, tries=tries, ends=Refused(says), text=text, job=job)


def _text(**changes: object) -> str:
    return json.dumps({**_PLAIN, **changes})


def _link(home: Path) -> None:
    (home / "shadow").symlink_to("/etc/shadow")


def _laughs() -> str:
    levels = ["l0: &l0 [lol]", *(f"l{n}: &l{n} [{', '.join([f'*l{n - 1}'] * 10)}]" for n in range(1, 12))]
    return "\n".join([*levels, _lines()])


def _lines() -> str:
    return "\n".join(f"{name}: {json.dumps(value)}" for name, value in _PLAIN.items())


ATTACKS = (
    _refused("name-of-a-path", "a job named ../../etc", "name", name="../../etc/passwd"),
    _refused("name-with-nul", "a job's name with NUL and newlines", "name", name="a\0b\nc"),
    _refused("deep-yaml", "100,000 lists inside each other", "deep|levels", "name: " + "[" * 100_000),
    _refused("billion-laughs", "aliases of aliases: 10^11 values", "alias|values|large", _laughs()),
    _refused("alias-to-itself", "an alias to what it is in", ".", "name: &a [*a]\n" + "roles: *a"),
    _refused(
        "yaml-object",
        "a Python object by a tag",
        "tag|YAML|text",
        "name: !!python/object/apply:os.system ['touch /tmp/planted']",
    ),
    _refused("large-file", "a file of 50 MB", "256 KiB|large|KiB", "#" + "x" * (50 << 20)),
    _refused(
        "no-utf8-file", "a file with control characters and half characters", ".", _text(env={"A": "\ud800"})
    ),
    _refused(
        "key-twice",
        "the same key twice: one for who reads, one for who runs",
        "twice|duplicate",
        _lines() + "\nname: y",
    ),
    _refused("merge-keys", "merge keys, complex keys and sets", ".", "<<: {name: a}\n? [a]\n: b\n"),
    _refused("unknown-key", "a key that another release might know", "privileged", privileged=True),
    _refused(
        "huge-number",
        "a count of 400 digits",
        "count",
        roles={"worker": {"count": int("9" * 400)}},
    ),
    _refused("negative-count", "a count of -1", "count", roles={"worker": {"count": -1}}),
    _refused(
        "no-number",
        "infinite CPUs, a count that is no number",
        "cpus|count",
        _text(roles={"worker": {"count": 1, "resources": {"cpus": float("inf")}}}),
    ),
    _refused("10000-tasks", "10,000 tasks", "tasks|count", roles={"worker": {"count": 10_000}}),
    _refused(
        "duration-without-end",
        "durations of 10^30 days, below 0, and none at all",
        "wall_time",
        limits={"wall_time": "1" + "0" * 30 + "d"},
    ),
    _refused(
        "pattern-without-end",
        "a pattern whose counts multiply to 10^9",
        "patterns",
        progress={"patterns": [r"((?:(?:a{1000}){1000}){1000})"]},
    ),
    _refused(
        "pattern-of-5000", "a pattern of 5,000 parentheses", "patterns", progress={"patterns": ["(" * 5000]}
    ),
    _refused(
        "placeholders",
        "a command with 3,500 placeholders",
        "command",
        command=["sh", "-c", "{worker_hosts}" * 3500],
        roles={"worker": {"count": 100}},
    ),
    _refused(
        "variable-with-nul", "variables with NUL, and with = in their names", "env", env={"A=B": "a\0b"}
    ),
    _refused("code-is-etc", "`code.dir: /etc`", "code", code={"dir": "/etc"}),
    _refused(
        "code-with-dots", "`code.dir` far above the file", "code", code={"dir": "../../../../../../etc"}
    ),
    Attack(
        name="exclude-without-end",
        tries="an exclude pattern of 10,000 stars",
        job={"code": {"dir": ".", "exclude": ["**/" * 10_000 + "["]}},
    ),
    _refused(
        "container-root",
        "a container with the node's root, its processes and privileges",
        "container",
        container={"mounts": [{"source": "/", "target": "/host"}], "privileged": True},
    ),
    _refused(
        "gpus-without-end",
        "10^12 GPUs, a GPU with number -1",
        "gpus",
        roles={"worker": {"count": 1, "resources": {"gpus": 10**12}}},
    ),
    Attack(
        name="shipped-link",
        tries="a link to /etc/shadow in what is shipped",
        files=_link,
        ends=Refused("shadow"),
    ),
)
