"""Fixtures that the launcher's tests share."""

import socket

import pytest


@pytest.fixture
def free() -> int:
    """The first of ten ports that nobody uses at the moment."""
    for low in range(21_000, 29_000, 10):
        try:
            for port in range(low, low + 10):
                with socket.socket() as probe:
                    probe.bind(("0.0.0.0", port))
        except OSError:
            continue
        return low
    raise AssertionError("no ten free ports in a row")
