"""YAML files of users: all errors of a file are reported at once, each as `FILE:LINE: FIELD: error; remedy`.

The node tree is read instead of constructed objects: it knows lines and duplicate keys, keeps numbers as they
were written, runs no constructors, and an alias bomb is stopped by counting nodes.
"""

from __future__ import annotations

import difflib
import types
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, ClassVar, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, ValidationError
from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode
from ruamel.yaml.reader import ReaderError

from supervisor.contract.errors import NotFound, UserError

MAX_BYTES = 256 * 1024
MAX_DEPTH = 32
MAX_NODES = 20_000
MAX_NUMBER = 100
_ANOTHER = "but found another document"

Where = tuple[str | int, ...]
M = TypeVar("M", bound="Strict")


class Strict(BaseModel):
    """Base of all file models: no unknown keys, no silent conversions, no changes afterwards.

    Attributes:
        reasons: `spelling` of a key that users may expect -> the reason why there is none.
    """

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, arbitrary_types_allowed=True)
    reasons: ClassVar[Mapping[str, str]] = {}


class WrittenInt(int):
    """An integer that remembers how it was written, so that `--rate 1_0` reaches a command unchanged."""

    written: str


class WrittenFloat(float):
    """A float that remembers how it was written."""

    written: str


@dataclass(slots=True)
class Document:
    """A parsed file: plain values, the line of each field, and the problems found so far.

    Attributes:
        problems: the line, the text, and of a missing key the places where it may stand.
        misspelt: keys that are there, by a name that is not theirs. Nothing says that they are missing.
        written: where the values were made from a file of another format: the field of that file that a field
            was made of. Lines are by those fields, and errors name them.
        notes: what the reader of such a file should know, beside errors.
    """

    source: str
    value: object
    lines: dict[Where, int] = field(default_factory=dict)
    problems: list[tuple[int, str, tuple[Where, ...]]] = field(default_factory=list)
    misspelt: set[Where] = field(default_factory=set)
    written: Callable[[Where], Where] = tuple
    notes: list[str] = field(default_factory=list)

    def problem(self, where: Where, text: str, *missing: Where) -> None:
        """Add an error about a field; its line is that of the field, or of the nearest parent that exists.

        `missing`: the places of a key, if the error is that it stands at none of them.
        """
        self.problems.append((self.line(where), self.place(where, text), missing))

    def place(self, where: Where, text: str) -> str:
        """`FILE:LINE: FIELD: text`."""
        name = spell(self.written(where))
        return f"{self.source}:{self.line(where)}: {name + ': ' if name else ''}{text}"

    def line(self, where: Where) -> int:
        """Line of a field, from 1."""
        where = self.written(where)
        while where and where not in self.lines:
            where = where[:-1]
        return self.lines.get(where, 1)

    def raise_problems(self) -> None:
        """Raise one UserError with every problem, in the order of the file; return if there is none."""
        found = [each for each in self.problems if self.misspelt.isdisjoint(each[2])]
        if found:
            unique = dict.fromkeys(text for _, text, _ in sorted(found, key=lambda item: item[0]))
            raise UserError("\n".join(unique))


def spelling(key: str) -> str:
    """One spelling for `CapAdd`, `cap_add` and `cap-add`."""
    return key.replace("_", "").replace("-", "").lower()


def spell(where: Where) -> str:
    """`roles.worker.command[2]`."""
    text = ""
    for part in where:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text


def read(path: Path) -> Document:
    """Parse a file; raises NotFound, or UserError when it is too large, not text or not YAML."""
    try:
        with path.open("rb") as stream:
            raw = stream.read(MAX_BYTES + 1)
    except FileNotFoundError as error:
        raise NotFound(f"{path}: no such file") from error
    except IsADirectoryError as error:
        raise UserError(f"{path}: a directory; name the file in it") from error
    except OSError as error:
        raise UserError(f"{path}: cannot read it: {error.strerror}") from error
    if len(raw) > MAX_BYTES:
        raise UserError(f"{path}: larger than {MAX_BYTES // 1024} KiB; is this the right file?")
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise UserError(f"{path}:{line}: not UTF-8 text; save the file as UTF-8") from error
    return parse(text, str(path))


def parse(text: str, source: str) -> Document:
    """Parse YAML text; raises UserError when it is not YAML or has no mapping at its top."""
    try:
        node = YAML(typ="safe", pure=True).compose(text)
    except RecursionError as error:
        raise UserError(f"{source}:1: nested more than {MAX_DEPTH} deep; make it flatter") from error
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else 1
        if error.problem == _ANOTHER:
            raise UserError(
                f"{source}:{line}: a second document begins here; put each into a file of its own"
            ) from error
        problem = error.problem or error.context or ""
        hint = "; indent with spaces, not with tabs" if r"'\t'" in problem else ""
        raise UserError(f"{source}:{line}: not valid YAML: {problem}{hint}") from error
    except ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise UserError(
            f"{source}:{line}: character {error.character!r} is not allowed; remove it"
        ) from error
    except YAMLError as error:
        raise UserError(f"{source}:1: not valid YAML: {str(error).splitlines()[0]}") from error
    document = Document(source, {})
    if node is None or (isinstance(node, ScalarNode) and str(node.tag).endswith(":null")):
        document.problem((), f"the file is empty; it {_MAPPING}")
        return document
    if not isinstance(node, MappingNode):
        kind = "a list" if isinstance(node, SequenceNode) else "one text"
        raise UserError(f"{source}:{_line(node)}: the file is {kind}; it {_MAPPING}")
    document.value = _Converter(document).convert(node, ())
    return document


def build(model: type[M], document: Document) -> M | None:
    """Validate against `model`; errors are added to the document's problems, and None is returned."""
    try:
        return model.model_validate(document.value)
    except ValidationError as error:
        for item in error.errors(include_url=False):
            where, kind = _where(item["loc"], document), item["type"]
            text = _explain(model, where, kind, item["msg"], item.get("ctx", {}))
            document.problem(where, text, *([where] if kind == "missing" else ()))
            if kind == "extra_forbidden":
                document.misspelt |= {
                    (*where[:-1], key) for key in _near(str(where[-1]), _keys(model, where))
                }
        return None


def suggest(word: str, known: Iterable[str]) -> str:
    """`; did you mean 'x'?`, or the list of known words if none is near, or an empty text."""
    options = sorted(known)
    for near in _near(word, options):
        return f"; did you mean {near!r}?"
    return f"; known here: {', '.join(options)}" if options else ""


def _near(word: str, known: Iterable[str]) -> list[str]:
    """The known word that is meant, if one is near."""
    return difflib.get_close_matches(word, sorted(known), n=1, cutoff=0.6)


class _Converter:
    def __init__(self, document: Document) -> None:
        self._document = document
        self._nodes = 0

    def convert(self, node: Node, where: Where) -> object:
        self._nodes += 1
        source, line = self._document.source, _line(node)
        if self._nodes > MAX_NODES:
            raise UserError(
                f"{source}:{line}: more than {MAX_NODES} values (aliases expanded); make it smaller"
            )
        if len(where) > MAX_DEPTH:
            raise UserError(f"{source}:{line}: nested more than {MAX_DEPTH} deep; make it flatter")
        self._document.lines.setdefault(where, line)
        if isinstance(node, MappingNode):
            return self._mapping(node, where)
        if isinstance(node, SequenceNode):
            return [self.convert(item, (*where, index)) for index, item in enumerate(node.value)]
        assert isinstance(node, ScalarNode)
        return self._scalar(node, where)

    def _mapping(self, node: MappingNode, where: Where) -> dict[str, object]:
        values: dict[str, object] = {}
        first_line: dict[str, int] = {}
        for key_node, value_node in node.value:
            if not isinstance(key_node, ScalarNode):
                self._document.lines.setdefault(where, _line(key_node))
                self._document.problem(where, "a key must be one word; lists and mappings cannot be keys")
                continue
            key = str(key_node.value)
            if key in values:
                here = (*where, key)
                text = f"given twice, first in line {first_line[key]}; keep one of the two"
                line = _line(key_node)
                self._document.problems.append(
                    (line, f"{self._document.source}:{line}: {spell(here)}: {text}", ())
                )
                continue
            first_line[key] = _line(key_node)
            self._document.lines[(*where, key)] = _line(key_node)
            values[key] = self.convert(value_node, (*where, key))
        return values

    def _scalar(self, node: ScalarNode, where: Where) -> object:
        text, tag = str(node.value), str(node.tag).removeprefix("tag:yaml.org,2002:")
        if tag in ("str", "timestamp", "value", "merge"):
            return text
        if tag == "null":
            return None
        if tag == "bool":
            return text.lower() == "true"
        number = _number(text, tag)
        if number is None:
            self._document.problem(
                where, f"cannot read {text[:60]!r} with the tag {tag!r}; remove the tag or quote it"
            )
            return text
        return number


def _number(text: str, tag: str) -> WrittenInt | WrittenFloat | None:
    if len(text) > MAX_NUMBER:
        return None  # Python writes no number of thousands of digits in an error
    try:
        if tag == "int":
            digits = text.replace("_", "")
            signless = digits.lstrip("+-")
            whole = WrittenInt(digits, 10 if signless.isdigit() else 0)
            whole.written = text
            return whole
        if tag == "float":
            broken = WrittenFloat(text.replace("_", "").replace(".inf", "inf").replace(".nan", "nan").lower())
            broken.written = text
            return broken
    except ValueError:
        return None
    return None


def _line(node: Node) -> int:
    return int(node.start_mark.line) + 1


def _where(loc: tuple[int | str, ...], document: Document) -> Where:
    """A location without the parts that pydantic adds (union branches, `[key]`), found by walking the
    values.
    """
    where: Where = ()
    value = document.value
    for index, part in enumerate(loc):
        if isinstance(value, dict):
            if part in value:
                value = value[part]
            elif index < len(loc) - 1 or part == "[key]":
                continue
        elif isinstance(value, list) and isinstance(part, int) and part < len(value):
            value = value[part]
        else:
            continue
        where = (*where, part)
    return where


_BOUNDS = {
    "greater_than_equal": ("at least", "ge"),
    "greater_than": ("more than", "gt"),
    "less_than_equal": ("at most", "le"),
    "too_short": ("a list of at least", "min_length"),
    "too_long": ("a list of at most", "max_length"),
}
_NUMBER = "must be a number, without quotes or unit"
_WHOLE = "must be a whole number, without quotes or unit"
_MAPPING = "must be a mapping of `key: value` lines"
_PLAIN = {
    "model_type": _MAPPING,
    "dict_type": _MAPPING,
    "list_type": "must be a list, for example [a, b]",
    "string_type": "must be text; put it in quotes",
    "int_type": _WHOLE,
    "float_type": _NUMBER,
    "finite_number": _NUMBER,
    "bool_type": "must be true or false",
}


def _explain(
    model: type[BaseModel], where: Where, kind: str, message: str, context: Mapping[str, object]
) -> str:
    if kind == "extra_forbidden":
        owner = _model_at(model, where[:-1])
        return _unknown(str(where[-1]), owner)
    if kind == "missing":
        owner = _model_at(model, where[:-1])
        described = owner.model_fields.get(str(where[-1])) if owner else None
        hint = described.description if described is not None and described.description else "add it"
        return f"missing; {hint}"
    if kind == "value_error":
        return str(context.get("error", message))
    if kind in _BOUNDS:
        word, name = _BOUNDS[kind]
        return f"must be {word} {context.get(name)}"
    return _PLAIN.get(kind, message[:1].lower() + message[1:])


def _unknown(key: str, owner: type[BaseModel] | None) -> str:
    known = owner.model_fields if owner is not None else {}
    if owner is not None and issubclass(owner, Strict) and spelling(key) not in map(spelling, known):
        reason = owner.reasons.get(spelling(key))
        if reason is not None:
            return reason
    return "unknown key" + suggest(key, known)


def _keys(model: type[BaseModel], where: Where) -> Iterable[str]:
    """The keys that the mapping of a key may have."""
    owner = _model_at(model, where[:-1])
    return owner.model_fields if owner is not None else ()


def _model_at(model: type[BaseModel], where: Where) -> type[BaseModel] | None:
    hint: object = model
    for part in where:
        if isinstance(hint, type) and issubclass(hint, BaseModel):
            found = hint.model_fields.get(str(part))
            hint = _strip(found.annotation) if found is not None else None
        elif get_origin(hint) in (dict, list, tuple):
            hint = _strip(get_args(hint)[-1])
        else:
            return None
    return hint if isinstance(hint, type) and issubclass(hint, BaseModel) else None


def _strip(hint: object) -> object:
    """The first part of `X | None` or `X | Y` that is not None, without annotations."""
    if get_origin(hint) is Annotated:
        return _strip(get_args(hint)[0])
    if get_origin(hint) in (Union, types.UnionType):
        return _strip(next((arg for arg in get_args(hint) if arg is not type(None)), None))
    return hint
