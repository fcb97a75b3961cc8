"""A store of code for an embedded cluster, which has none of itself."""

from __future__ import annotations

import json

from supervisor.cli.local.cluster import LocalCluster


def give_code_store(cluster: LocalCluster, uri: str) -> None:
    """Configure the store of code of a cluster that runs, and start its supervisors again."""
    for name in cluster.layout.supervisors(cluster.layout.read()):
        file = cluster.layout.config(name)
        body = json.loads(file.read_text().partition("\n")[2])
        file.write_text("# Changed by a test.\n" + json.dumps(body | {"code_store": uri}))
        cluster.kill_member(name)
