"""Settings of a job about its program's surroundings reach the program."""

from __future__ import annotations

from pathlib import Path

from ruamel.yaml import YAML

from tests.examples.harness import Cluster


def test_the_servers_protocol_reaches_the_program_twice(cluster: Cluster, tmp_path: Path) -> None:
    document = {
        "name": "protocol",
        "strategy": "plain",
        "command": ["sh", "-c", 'echo "flag {protocol} variable $TFSUP_PROTOCOL"'],
        "roles": {"worker": {"count": 1}},
        "protocol": "grpc+verbs",
    }
    with (tmp_path / "job.yaml").open("w") as file:
        YAML(typ="safe").dump(document, file)
    job = cluster.submit(tmp_path / "job.yaml")
    job.result()
    assert job.printed(r"^(flag .*)$", "worker") == "flag grpc+verbs variable grpc+verbs"
