"""Addresses: whatever the host is, what is joined is split again, and IPv6 has its brackets everywhere."""

from __future__ import annotations

import ipaddress
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.core.instructions import Reach
from agent.core.prepared import address_of
from agent.core.state import HoldState, PortReservation
from supervisor.adapters.certificates.tls import is_local, is_unspecified
from supervisor.adapters.etcd.endpoints import Endpoint
from supervisor.contract.addresses import bare, bracketed, is_at, join, port_of, split_host_port
from supervisor.contract.desired import ClusterSpec, RoleAddresses
from supervisor.contract.errors import UserError
from supervisor.contract.ids import task_id
from supervisor.contract.job.tf_config import placeholder_values, tf_config

NAMES = st.from_regex(r"[a-z][a-z0-9.-]{0,20}", fullmatch=True)
HOSTS = NAMES | st.ip_addresses().map(str) | st.ip_addresses(v=6).map(lambda each: f"[{each}]")
PORTS = st.integers(0, 65_535)


@given(HOSTS, PORTS)
def test_what_is_joined_is_split_again(host: str, port: int) -> None:
    address = join(host, port)
    assert split_host_port(address) == (bare(host), port)
    assert address == join(bracketed(host), port) == join(bare(host), port)
    assert port_of(address) == port
    assert is_at(address, host)
    assert is_at(address, bare(host))
    assert not is_at(address, f"{bare(host)}0")


@given(st.ip_addresses(v=6), PORTS)
def test_ipv6_without_brackets_is_no_address(host: ipaddress.IPv6Address, port: int) -> None:
    with pytest.raises(UserError, match="ipv6"):
        split_host_port(f"{host}:{port}")


@given(HOSTS, st.integers(1, 65_535))
def test_a_task_is_told_of_in_one_form(host: str, port: int) -> None:
    address = address_of(Reach(host), PortReservation("j", "p", "worker.0", "l", HoldState.HELD, port=port))
    assert address == join(host, port)
    spec = ClusterSpec("j", 1, "p", (RoleAddresses("worker", (address, "other:1")),))
    assert json.loads(tf_config(spec, task_id("j", "worker", 0)))["cluster"]["worker"][0] == address
    values = placeholder_values(spec, task_id("j", "worker", 0), "/c")
    assert values["worker_hosts"] == f"{address},other:1"
    assert (values["host"], values["port"]) == (bare(host), str(port))


@given(st.ip_addresses(v=6), st.integers(1, 65_535))
def test_an_endpoint_of_etcd_has_its_brackets(host: ipaddress.IPv6Address, port: int) -> None:
    address = join(str(host), port)
    assert Endpoint.parse(f"http://{address}", None).target == f"ipv6:{address}"
    assert is_local(address) is host.is_loopback
    assert is_unspecified(address) is host.is_unspecified
