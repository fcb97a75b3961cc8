"""The fields of a manifest against the table: unknown and refused ones, wrong types. Pure."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from supervisor.contract.job.container import Objection, Where
from supervisor.contract.job.tfjob.fields import PREFIX, Field, FieldType, Node, Treatment, tree
from supervisor.contract.job.tfjob.texts import quantity


@dataclass(slots=True)
class Findings:
    """A word to the reader of the manifest.

    Attributes:
        problems: errors, by field of the manifest.
        notes: fields without effect, each row of the table once, and choices that were made.
        readable: no field has a wrong type, so the manifest can be converted.
    """

    problems: list[Objection] = field(default_factory=list)
    notes: list[Objection] = field(default_factory=list)
    readable: bool = True
    noted: set[str] = field(default_factory=set)

    def problem(self, where: Where, text: str) -> None:
        """Add an error."""
        self.problems.append(Objection(where, text))

    def note(self, where: Where, text: str) -> None:
        """Add a note; one of several that say the same."""
        if text not in self.noted:
            self.noted.add(text)
            self.notes.append(Objection(where, text))


def check(manifest: Mapping[str, object]) -> Findings:
    """Compare every field of a manifest with the table."""
    findings = Findings()
    _walk(findings, manifest, tree(), ())
    return findings


def near(word: str, known: Iterable[str]) -> str:
    """`; did you mean 'x'?`, or the list of known words if none is near; empty if there is none."""
    options = sorted(known)
    if not options:
        return ""
    found = difflib.get_close_matches(word, options, n=1, cutoff=0.6)
    if not found:
        lowered = {option.lower(): option for option in options}
        found = [lowered[each] for each in difflib.get_close_matches(word.lower(), lowered, n=1, cutoff=0.6)]
    return f"; did you mean {found[0]!r}?" if found else f"; known here: {', '.join(options)}"


def _walk(findings: Findings, value: object, node: Node, where: Where) -> None:
    row = node.row
    if value is None:
        return  # as if it were not there, as in Kubernetes
    if row is not None and not _judge(findings, value, row, where):
        return
    if "[]" in node.below and isinstance(value, list):
        for index, item in enumerate(value):
            _item(findings, item, node.below["[]"], (*where, index))
    elif "*" in node.below and isinstance(value, Mapping):
        for key, item in value.items():
            _item(findings, item, node.below["*"], (*where, str(key)))
    elif node.below and isinstance(value, Mapping):
        for key, item in value.items():
            if key in node.below:
                _walk(findings, item, node.below[key], (*where, key))
            else:
                merge = "a merge key is not read; write the fields out" if key == "<<" else ""
                told = merge or "unknown field" + near(str(key), node.below)
                findings.problem((*where, str(key)), told)


def _item(findings: Findings, value: object, node: Node, where: Where) -> None:
    if value is None:
        findings.readable = False
        findings.problem(where, "is empty; fill it in or remove it")
    else:
        _walk(findings, value, node, where)


def _judge(findings: Findings, value: object, row: Field, where: Where) -> bool:
    """Whether the fields below are to be looked at."""
    match row.treatment:
        case Treatment.IGNORED:
            return False
        case Treatment.REFUSED:
            if value not in (False, "", [], {}):
                findings.problem(where, f"is refused: {row.text}")
            return False
        case Treatment.NO_EFFECT:
            if value not in (False, "", [], {}):
                findings.note(where, f"has no effect: {row.text}")
            return False
        case Treatment.HONOURED | Treatment.ANNOTATED:
            if not _fits(value, row.type):
                findings.readable = False
                findings.problem(where, f"must be {row.type.value}")
                return False
            return True


def _fits(value: object, kind: FieldType) -> bool:
    match kind:
        case FieldType.TEXT:
            return isinstance(value, str)
        case FieldType.WHOLE:
            return isinstance(value, int) and not isinstance(value, bool)
        case FieldType.FLAG:
            return isinstance(value, bool)
        case FieldType.QUANTITY:
            return quantity(value) is not None
        case FieldType.TEXTS:
            return isinstance(value, list) and all(isinstance(item, str) for item in value)
        case FieldType.MAP:
            return isinstance(value, Mapping) and all(isinstance(item, str) for item in value.values())
        case FieldType.LIST:
            return isinstance(value, list)
        case FieldType.OBJECT:
            return isinstance(value, Mapping)
        case FieldType.ANY:
            return True


def own(annotations: Mapping[str, str]) -> dict[str, str]:
    """The annotations that are read, by the field that each names."""
    return {key.removeprefix(PREFIX): text for key, text in annotations.items() if key.startswith(PREFIX)}
