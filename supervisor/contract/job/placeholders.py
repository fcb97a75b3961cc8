"""Placeholders in the texts of a job file: the words of a command and the values of environment variables.

| in the file | what the program gets |
|---|---|
| `{task_index}` | the value of that placeholder; a word in braces that is no placeholder is an error |
| `{{task_index}}`, `{{"a": 1}}` | `{task_index}`, `{"a": 1}`: `{{` is one brace, and so is its `}}` |
| `${HOME}` | the same text: it is the shell's variable |
| `{"a": {"b": 1}}`, `{print $1}`, `[0-9]{3}`, `{}` | the same text: nothing in braces there is a word |
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping

from supervisor.contract.job.spec import CHIEF_ROLES

MODEL_BASE = "model_base"
"""The placeholder for the directory that model servers poll, in jobs that publish models."""

OF_TASK = (
    "job_name",
    "task_index",
    "checkpoint_dir",
    "output_dir",
    "all_outputs",
    MODEL_BASE,
    "address",
    "host",
    "port",
    "protocol",
)
"""Placeholders with a value in every task, beside `{ROLE_hosts}` and `{data.NAME}`."""

CLASSIC_ROLES = (*CHIEF_ROLES, "ps", "worker")
"""Roles that programs have flags for. Their hosts are empty in a job without the role."""

_WORD = r"[A-Za-z_][\w.-]*|[0-9][\w.-]*_hosts"
_TOKEN = re.compile(rf"(?P<brace>\{{\{{|\}}\}})|\$\{{(?P<shell>{_WORD})\}}|\{{(?P<word>{_WORD})\}}", re.ASCII)
_EARLIER = re.compile(r"\{([A-Za-z0-9][A-Za-z0-9_.-]*)\}")
_EARLIER_WORDS = frozenset({"job_name", "task_index", "checkpoint_dir", "host", "port", "protocol"})


def known_words(roles: Iterable[str], data: Iterable[str] = ()) -> frozenset[str]:
    """The placeholders of a job with these roles, and data of these names."""
    hosts = {f"{role}_hosts" for role in (*CLASSIC_ROLES, *roles)}
    return frozenset(OF_TASK) | hosts | {f"data.{name}" for name in data}


def words_in(text: str) -> tuple[str, ...]:
    """The placeholders in a text, known or not, in their order."""
    return tuple(match["word"] for match in _tokens(text) if match["word"])


def fill(text: str, values: Mapping[str, str]) -> str:
    """The text with its placeholders replaced and its doubled braces halved.

    A placeholder without a value stays as it is. Values are not filled in again themselves.
    """
    return _TOKEN.sub(_Filler(values), text) if "{" in text else text


def without_placeholders(env: Mapping[str, str]) -> dict[str, str]:
    """The variables whose values are known before a generation has its addresses."""
    return {name: fill(value, {}) for name, value in env.items() if not words_in(value)}


def fill_earlier(text: str, values: Mapping[str, str]) -> str:
    """Fill a command that an earlier release recorded: it knew fewer placeholders, and no doubled braces."""

    def value(match: re.Match[str]) -> str:
        word = match[1]
        known = word in _EARLIER_WORDS or word.endswith("_hosts")
        return values.get(word, match[0]) if known else match[0]

    return _EARLIER.sub(value, text)


def problems(text: str, known: frozenset[str]) -> Iterator[str]:
    """The errors in a text of a job file, each with its correction."""
    for match in _tokens(text):
        word, shell = match["word"], match["shell"]
        if word and word not in known:
            near = difflib.get_close_matches(word, sorted(known), n=1, cutoff=0.7)
            hint = f"did you mean {{{near[0]}}}? Known are " if near else "known are "
            listed = ", ".join(sorted(known))
            yield f"unknown placeholder {{{word}}}; {hint}{listed}; for the text itself write {{{{{word}}}}}"
        elif shell and shell in known:
            yield (
                f"${{{shell}}} would be a variable of the shell; write {{{shell}}} for the placeholder, or "
                f"${{{{{shell}}}}} for the variable"
            )


def _tokens(text: str) -> Iterator[re.Match[str]]:
    return _TOKEN.finditer(text) if "{" in text else iter(())


class _Filler:
    """Replaces each token of one text. `}}` is one brace only if it closes a `{{`."""

    def __init__(self, values: Mapping[str, str]) -> None:
        self._values = values
        self._open = 0

    def __call__(self, match: re.Match[str]) -> str:
        if match["brace"] == "{{":
            self._open += 1
            return "{"
        if match["brace"] and self._open:
            self._open -= 1
            return "}"
        return self._values.get(match["word"], match[0]) if match["word"] else match[0]
