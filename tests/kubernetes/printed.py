"""The output of `supervisorctl kubernetes manifests`, read back."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from click.testing import CliRunner
from ruamel.yaml import YAML

from supervisor.cli.main import cli
from supervisor.contract.errors import UserError

LEAST = ("training", "--image", "tfsup/cluster:1", "--etcd", "etcd-1:2379", "--claim", "checkpoints")
"""The command with as few options as it takes."""
Document = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Printed:
    """The text, and its documents by kind and name."""

    text: str
    documents: Mapping[tuple[str, str], Document]

    def find(self, kind: str, name: str) -> Document:
        """A document."""
        return self.documents[(kind, name)]

    def pod(self, name: str) -> Document:
        """The specification of the pods of a StatefulSet."""
        found: Document = self.find("StatefulSet", name)["spec"]["template"]["spec"]
        return found

    def commands(self, program: str) -> list[str]:
        """The commands in the comment that begin with a word."""
        lines = (line.removeprefix("# ") for line in self.text.splitlines() if line.startswith("#"))
        return [line for line in lines if line.startswith(f"{program} ")]


@functools.cache
def manifests(*words: str) -> Printed:
    """Run the command. Raises UserError as it does."""
    done = CliRunner().invoke(cli, ["kubernetes", "manifests", *words])
    if isinstance(done.exception, UserError):
        raise done.exception
    assert done.exit_code == 0, done.output
    documents = list(YAML(typ="safe").load_all(done.stdout))
    return Printed(done.stdout, {(each["kind"], each["metadata"]["name"]): each for each in documents})


def hadoop(directory: Path) -> Sequence[str]:
    """Options for an HDFS."""
    site = (
        "<configuration><property><name>fs.defaultFS</name><value>hdfs://10.1.0.7:8020</value></property>"
        "</configuration>"
    )
    (directory / "core-site.xml").write_text(site)
    return (
        "--hadoop-conf",
        str(directory),
        "--reach",
        "10.1.0.0/16:8020",
        "--reach",
        "10.1.0.0/16:9866-9867",
    )


CHOICES = (
    ("--gpus", "2"),
    ("--drain-as", "keeper"),
    ("--agents", "3", "--supervisors", "1"),
    ("--etcd", "10.0.0.2:2379", "--etcd", "[fd00::2]:2379"),
)


def choices(directory: Path) -> list[tuple[str, ...]]:
    """The options that change what there is: each alone, none, and all."""
    hdfs = ("training", "--image", "tfsup/cluster:1", "--etcd", "etcd-1:2379", *hadoop(directory))
    return [LEAST, *(LEAST + each for each in CHOICES), hdfs, (*LEAST, *hdfs[5:], *itertools.chain(*CHOICES))]


def allowed(rules: list[Document]) -> set[tuple[str, str]]:
    """Who, and to which ports: a component, a network, or anybody."""
    found = set()
    for rule in rules:
        for peer in rule.get("from") or rule.get("to") or [{}]:
            labels = peer.get("podSelector", {}).get("matchLabels", {})
            who = next(iter(labels.values()), peer.get("ipBlock", {}).get("cidr", "anybody"))
            for each in rule["ports"]:
                last = f"-{each['endPort']}" if "endPort" in each else ""
                found.add((who, f"{each['protocol']}:{each.get('port', 'any')}{last}"))
    return found
