"""`host:port`, with the literals of IPv6 in brackets: the only place that joins and splits one."""

from __future__ import annotations

from supervisor.contract.errors import UserError

HIGHEST_PORT = 65_535


def bracketed(host: str) -> str:
    """The host as it stands in an address: a literal of IPv6 in brackets, all else as it is."""
    return f"[{host}]" if ":" in host and not host.startswith("[") else host


def bare(host: str) -> str:
    """The host as it is given to a resolver or a flag of a program: without brackets."""
    return host[1:-1] if host.startswith("[") and host.endswith("]") else host


def join(host: str, port: int) -> str:
    """The address of a port."""
    return f"{bracketed(host)}:{port}"


def split_host_port(address: str) -> tuple[str, int]:
    """The bare host and the port of `host:port` or `[v6]:port`; raises UserError with the expected form."""
    host, colon, port = address.rstrip("/").rpartition(":")
    bracketless = bare(host)
    port_ok = port.isascii() and port.isdigit() and 0 <= int(port) <= HIGHEST_PORT
    if not (colon and port_ok and bracketless) or (":" in host and host == bracketless) or "/" in host:
        raise UserError(f"{address!r} is not an address: write host:port, [ipv6]:port or unix:/path")
    return bracketless, int(port)


def port_of(address: str) -> int:
    """The port of an address that a daemon has recorded; raises ValueError for one without."""
    return int(address.rpartition(":")[2])


def is_at(address: str, host: str) -> bool:
    """Whether it is an address of this host, as it is written."""
    return address.rpartition(":")[0] == bracketed(host)
