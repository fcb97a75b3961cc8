"""The tables of docs/tfjob.md: every field of a TFJob, and the examples of training-operator.

`python -m tests.contract.tfjob.page` writes them; `tests/contract/test_tfjob.py` compares page and code.
"""

from __future__ import annotations

import json
import re
import tempfile
from pathlib import Path

from ruamel.yaml import YAML

from supervisor.adapters.files.jobfile import load_job_file
from supervisor.contract.errors import UserError
from supervisor.contract.job.tfjob.fields import FIELDS, MAIN, POD, REPLICA, VOLUME, Field

HERE = Path(__file__).parent
PAGE = HERE.parents[2] / "docs/tfjob.md"
EXAMPLES = HERE / "examples"
SECTIONS = (
    (f"{VOLUME}.", "Below `volumes[]` of a pod"),
    (f"{MAIN}.", "Below `containers[]` of a pod, in the one named `tensorflow`"),
    (f"{POD}.", "Below `template.spec`, the pod of a replica type"),
    (f"{REPLICA}.", "Below `spec.tfReplicaSpecs.TYPE`"),
    ("", "Of a TFJob"),
)
"""Where the paths of a table begin, and its heading; a path is in the first one that it fits."""


def fields() -> str:
    """A table for each level; fields that are told of in the same words share a row."""
    rows: dict[str, dict[tuple[str, str], list[str]]] = {start: {} for start, _ in SECTIONS}
    for row in FIELDS:
        start = next(start for start, _ in SECTIONS if row.path.startswith(start))
        if told := _told(row):
            rows[start].setdefault((row.treatment.value, told), []).append(
                f"`{row.path.removeprefix(start)}`"
            )
    parts = []
    for start, heading in reversed(SECTIONS):
        lines = [f"**{heading}**", "", "| field | treatment | what it becomes, or why not |", "|---|---|---|"]
        lines += [f"| {', '.join(names)} | {how} | {told} |" for (how, told), names in rows[start].items()]
        parts.append("\n".join(lines) + "\n")
    return "\n".join(parts)


def _told(row: Field) -> str:
    return row.text.replace("|", "\\|")


def examples() -> str:
    """What becomes of each example, as it is and with the annotations that stand in its comments."""
    lines = [
        "| example | replica types | as it is | with annotations | the program |",
        "|---|---|---|---|---|",
    ]
    for file in sorted(EXAMPLES.glob("*.yaml")):
        text = file.read_text()
        source = re.search(r"^# (examples/\S+)", text, re.MULTILINE)
        annotations = annotations_of(text)
        program = re.search(r"^# program: (.*)", text, re.MULTILINE)
        types = re.findall(r"^    (\w+):\n      replicas: (\d+)", text, re.MULTILINE)
        assert source is not None
        assert program is not None
        counts = ", ".join(f"{count} {name}" for name, count in types)
        helped = outcome(annotated(text, annotations)) if annotations else ""
        told = ", ".join(f"`{line.partition(': ')[0]}`" for line in annotations)
        with_them = f"{told}: {helped}" if annotations else ""
        name = source[1].removeprefix("examples/tensorflow/")
        lines.append(f"| `{name}` | {counts} | {outcome(text)} | {with_them} | {program[1]} |")
    return "\n".join(lines) + "\n"


def annotations_of(text: str) -> list[str]:
    """The annotations in the comments of an example, each a line of YAML."""
    return re.findall(r"^# with (\S+: .*)", text, re.MULTILINE)


def annotated(text: str, annotations: list[str]) -> str:
    """A manifest with more annotations."""
    document = YAML(typ="safe").load(text)
    document["metadata"]["annotations"] = YAML(typ="safe").load("\n".join(annotations))
    return json.dumps(document)


def outcome(text: str) -> str:
    """In a few words, what becomes of a manifest."""
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "tfjob.yaml"
        file.write_text(text)
        try:
            spec = load_job_file(file, checkpoint_base="file:///base").spec
        except UserError as error:
            told = [line.removeprefix(f"{file}:").partition(": ")[2] for line in str(error).splitlines()]
            told = [
                re.sub(r"^spec\.tfReplicaSpecs\.(\S+):", r"`\1`:", each.partition(";")[0]) for each in told
            ]
            return "refused. " + ". ".join(told)
    return f"taken, strategy `{spec.strategy.value}`"


def filled(page: str) -> str:
    """The page with the present tables in it."""
    for name, table in (("fields", fields()), ("examples", examples())):
        begin, end = f"<!-- {name}: begin -->\n", f"<!-- {name}: end -->\n"
        before, _, rest = page.partition(begin)
        page = f"{before}{begin}{table}{end}{rest.partition(end)[2]}"
    return page


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text()))
