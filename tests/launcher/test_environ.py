"""The variables that keep a cluster's own calls from a proxy."""

from __future__ import annotations

import pytest

from agent.inside.launcher.environ import unproxied

HOSTS = ("10.0.0.1", "10.0.0.2")
BOTH = "10.0.0.1,10.0.0.2"


@pytest.mark.parametrize(
    ("env", "told"),
    [
        ({}, {}),
        ({"no_proxy": "x", "http_proxy": ""}, {}),
        ({"http_proxy": "p"}, {"no_grpc_proxy": BOTH, "no_proxy": BOTH, "NO_PROXY": BOTH}),
        (
            {"HTTPS_PROXY": "p", "no_proxy": "a", "NO_PROXY": "b"},
            {"no_grpc_proxy": f"a,{BOTH}", "no_proxy": f"a,{BOTH}", "NO_PROXY": f"b,{BOTH}"},
        ),
        ({"grpc_proxy": "p", "no_proxy": "*", "NO_PROXY": "*"}, {"no_grpc_proxy": f"*,{BOTH}"}),
    ],
)
def test_no_proxy_stands_between_the_tasks_of_a_cluster(env: dict[str, str], told: dict[str, str]) -> None:
    assert unproxied(env, HOSTS) == told
