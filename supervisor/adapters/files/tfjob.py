"""TFJob manifests: read where a job file is expected, and shown as the job file that they become."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping

from ruamel.yaml import YAML

from supervisor.adapters.files.yaml_file import Document, WrittenFloat, WrittenInt
from supervisor.contract.job.tfjob.convert import convert

_WHOLE = re.compile(r"0|-?[1-9]\d{0,17}", re.ASCII)
_BROKEN = re.compile(r"-?\d{1,15}\.\d{1,15}", re.ASCII)


def as_job_file(document: Document, name: str | None) -> tuple[Document, bool]:
    """The job file that a manifest becomes, and whether the job is only recorded.

    `name`: overrides the one in the manifest. Raises UserError with all errors.
    """
    assert isinstance(document.value, dict)
    manifest: dict[str, object] = document.value
    if name is not None:
        metadata = manifest.get("metadata")
        manifest = {
            **manifest,
            "metadata": {**(metadata if isinstance(metadata, dict) else {}), "name": name},
        }
    made = convert(manifest, _scalar)
    for each in made.findings.problems:
        document.problem(each.where, each.text)
    document.raise_problems()
    notes = [document.place(note.where, note.text) for note in made.findings.notes]
    return Document(document.source, made.job, document.lines, written=made.written, notes=notes), made.hold


def text_of(document: Document) -> str:
    """A job file's document as YAML."""
    stream = io.StringIO()
    yaml = YAML()
    yaml.width = 110
    yaml.indent(mapping=2, sequence=4, offset=2)
    yaml.dump(_plain(document.value), stream)
    return stream.getvalue()


def _scalar(text: str) -> object:
    """A number, true, false, or the text: as YAML reads it, where that is written in one way only."""
    if text in ("true", "false"):
        return text == "true"
    if _WHOLE.fullmatch(text):
        whole = WrittenInt(text)
        whole.written = text
        return whole
    if _BROKEN.fullmatch(text) and str(float(text)) == text:
        broken = WrittenFloat(text)
        broken.written = text
        return broken
    return text


def _plain(value: object) -> object:
    """Values of the types that YAML's writer knows."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, WrittenInt):
        return int(value)
    return float(value) if isinstance(value, WrittenFloat) else value
