"""Fixtures that the launcher's tests share."""

import pytest

from tests.support.ports import free_ports


@pytest.fixture
def free() -> int:
    """The first of ten ports that nobody uses at the moment, and no test beside this one."""
    return free_ports(10)
