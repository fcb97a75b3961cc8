"""Texts and quantities of Kubernetes, in the words of a job file. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from fractions import Fraction
from math import ceil

from supervisor.contract.job import written
from supervisor.contract.job.placeholders import fill, problems

_REFERENCE = re.compile(r"\$(?:(?P<dollar>\$)|\((?P<name>[^)]*)\))")
_QUANTITY = re.compile(
    r"(?P<number>[+-]?(?:\d{1,30}(?:\.\d{0,30})?|\.\d{1,30}))"
    r"(?:(?P<suffix>[KMGTPE]i|[numkMGTPE])|[eE](?P<power>[+-]?\d{1,2}))?",
    re.ASCII,
)
_SUFFIXES = {name: Fraction(1000) ** power for power, name in enumerate("num", start=-3)}
_SUFFIXES |= {name: Fraction(1000) ** power for power, name in enumerate("kMGTPE", start=1)}
_SUFFIXES |= {f"{name}i": Fraction(1024) ** power for power, name in enumerate("KMGTPE", start=1)}


def expand(text: str, variables: Mapping[str, str]) -> str:
    """The text with `$(VAR)` replaced, as Kubernetes does it.

    A variable that is not known stays as it is written, and `$$` is one `$`.
    """
    return _REFERENCE.sub(
        lambda found: "$" if found["dollar"] else variables.get(found["name"], found[0]), text
    )


def growth(text: str, variables: Mapping[str, str]) -> int:
    """The characters that `expand` puts into the text."""
    return sum(len(variables.get(found["name"] or "", "")) for found in _REFERENCE.finditer(text))


def referenced(text: str) -> frozenset[str]:
    """The names in `$(VAR)` of a text."""
    return frozenset(found["name"] for found in _REFERENCE.finditer(text) if not found["dollar"])


def literal(text: str) -> str:
    """The text as a job file has to write it, where a word in braces is a placeholder."""
    known = frozenset(re.findall(r"[\w.-]+", text))
    if fill(text, dict.fromkeys(known, "")) == text and not any(problems(text, known)):
        return text
    doubled, opened = "", 0
    for character in text:
        if character == "{":
            opened += 1
        twice = character == "{" or (character == "}" and opened > 0)
        if character == "}" and opened:
            opened -= 1
        doubled += character * 2 if twice else character
    return doubled


def quantity(value: object) -> Fraction | None:
    """The value of `500m`, `4Gi`, `1e3` or a number; None if it is no quantity, or below 0."""
    if isinstance(value, bool):
        return None
    found = _QUANTITY.fullmatch(str(value)) if isinstance(value, str | int | float) else None
    if found is None:
        return None
    number = Fraction(found["number"].rstrip(".")) * _SUFFIXES.get(found["suffix"] or "", Fraction(1))
    number *= Fraction(10) ** int(found["power"] or 0)
    return number if number >= 0 else None


def size(number: Fraction) -> str:
    """A number of bytes as a job file has it, rounded up."""
    return written.size(ceil(number)) if number else "0B"


def decimal(number: Fraction) -> int | float:
    """A whole number as one, any other as a decimal number."""
    return int(number) if number.denominator == 1 else float(number)
