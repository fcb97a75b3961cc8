"""NetworkPolicies: pods have the connections that tf-supervisor makes, and no others.

Policies add up. Where programs need more, one more policy of the user's own allows it.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence

from supervisor.cli.kubernetes.wanted import AGENT, AGENT_PORT, HIGH, HTTP_PORT, LOW, PORT, SUPERVISOR, Wanted
from supervisor.contract.addresses import bare, split_host_port

CLIENT = {"tf-supervisor/client": "true"}
"""The label of pods, in any namespace, that may connect to supervisors and to the HTTP doors."""
COMPONENT = "app.kubernetes.io/component"
Rule = dict[str, object]


def policies(wanted: Wanted) -> list[tuple[str, dict[str, object]]]:
    """The name and the specification of each policy. The first one forbids everything."""
    outside: list[Rule] = [*_etcd(wanted), *_reach(wanted), {"ports": [_port(53, "UDP"), _port(53)]}]
    # NCCL listens at any port.
    tasks: list[Rule] = [{"protocol": "TCP"}] if wanted.gpus else [_range(LOW, HIGH)]
    from_agents: Rule = {"from": [_pods(AGENT)], "ports": tasks}
    to_agents: Rule = {"to": [_pods(AGENT)], "ports": tasks}
    return [
        ("nothing-else", {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}),
        (
            SUPERVISOR,
            _policy(
                SUPERVISOR,
                [
                    {"from": [_pods(AGENT)], "ports": [_port(PORT)]},
                    _clients(PORT, HTTP_PORT),
                ],
                [{"to": [_pods(AGENT)], "ports": [_port(AGENT_PORT)]}, *outside],
            ),
        ),
        (
            AGENT,
            _policy(
                AGENT,
                [
                    {"from": [_pods(SUPERVISOR)], "ports": [_port(AGENT_PORT)]},
                    from_agents,
                    _clients(HTTP_PORT),
                ],
                [
                    {"to": [_pods(SUPERVISOR)], "ports": [_port(PORT)]},
                    to_agents,
                    *outside,
                ],
            ),
        ),
    ]


def _policy(component: str, ingress: Sequence[Rule], egress: Sequence[Rule]) -> dict[str, object]:
    return {
        "podSelector": {"matchLabels": {COMPONENT: component}},
        "policyTypes": ["Ingress", "Egress"],
        "ingress": list(ingress),
        "egress": list(egress),
    }


def _etcd(wanted: Wanted) -> list[Rule]:
    """A policy knows no names: an etcd that has one may be anywhere, at its port."""
    found: list[Rule] = []
    for endpoint in wanted.etcd:
        host, port = split_host_port(endpoint)
        try:
            address = ipaddress.ip_address(bare(host))
        except ValueError:
            rule: Rule = {"ports": [_port(port)]}
        else:
            block = {"ipBlock": {"cidr": f"{address}/{address.max_prefixlen}"}}
            rule = {"to": [block], "ports": [_port(port)]}
        if rule not in found:
            found.append(rule)
    return found


def _reach(wanted: Wanted) -> list[Rule]:
    return [
        {"to": [{"ipBlock": {"cidr": each.network}}], "ports": [_range(each.low, each.high)]}
        for each in wanted.reach
    ]


def _clients(*ports: int) -> Rule:
    peer = {"namespaceSelector": {}, "podSelector": {"matchLabels": CLIENT}}
    return {"from": [peer], "ports": [_port(each) for each in ports]}


def _pods(component: str) -> Rule:
    return {"podSelector": {"matchLabels": {COMPONENT: component}}}


def _port(port: int, protocol: str = "TCP") -> Rule:
    return {"protocol": protocol, "port": port}


def _range(low: int, high: int) -> Rule:
    return _port(low) | ({"endPort": high} if high > low else {})
