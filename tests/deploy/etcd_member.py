"""deploy/systemd/etcd.env, filled in for a member on ports of its own."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tests.deploy.box import ROOT

SAMPLE = ROOT / "deploy/systemd/etcd.env"


def environment(
    name: str, ports: Mapping[str, tuple[int, int]], certificates: Path, host: str = ""
) -> dict[str, str]:
    """The variables of this member from the sample file; `ports`: for clients and for peers, by member.

    `host`: at which all are reached instead of by their names.
    """
    text = SAMPLE.read_text().replace("THIS-HOST", name).replace("/etc/etcd/", f"{certificates}/")
    found = dict(line.split("=", 1) for line in text.splitlines() if not line.startswith("#"))
    members = [f"{each}=https://{each}:{peer}" for each, (_, peer) in ports.items()]
    assert found["ETCD_INITIAL_CLUSTER"].count(":2380") == 3
    found["ETCD_INITIAL_CLUSTER"] = ",".join(members)
    client, peer = ports[name]
    for key in (key for key in found if key.endswith("_URLS")):
        found[key] = found[key].replace(":2379", f":{client}").replace(":2380", f":{peer}")
    if host:
        for key in (key for key in found if key.endswith("_URLS") or key == "ETCD_INITIAL_CLUSTER"):
            for each in ports:
                found[key] = found[key].replace(f"//{each}:", f"//{host}:")
    return found
