"""An agent that dies at any effect of making an environment leaves nothing that is taken for a whole one."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

from agent.environments import store
from supervisor.adapters import failpoints
from supervisor.contract.job.spec import EnvironmentRef
from tests.environments.site import QuickInstaller, Site, make_wheel

OF_STORE = ("begin", "wheels", "open_wheels", "seal", "record", "clear")
POINTS = tuple(f"environment.{name}.{when}" for name in OF_STORE for when in ("before", "after"))
OF_SWEEP = tuple(
    f"environment.{name}.{when}" for name in ("forget", "remove") for when in ("before", "after")
)


def dies_at(point: str, site: Site, ref: EnvironmentRef, *, sweeps: bool = False) -> None:
    """Have a child make the environment, or sweep, and die at the point by SIGKILL."""
    sys.stdout.flush()
    child = os.fork()
    if not child:

        def reach(reached: str, _error: object) -> None:
            if reached == point:
                os.kill(os.getpid(), signal.SIGKILL)

        failpoints.install(reach)
        node = site.again()
        try:
            asyncio.run(node.keep(frozenset()) if sweeps else node.ensure(ref, str(site.work)))
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status), f"{point} was not reached"


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path, QuickInstaller())


@pytest.mark.parametrize("point", POINTS)
def test_a_half_made_environment_is_never_used(site: Site, point: str) -> None:
    ref = site.lock(make_wheel(site.wheels))
    dies_at(point, site, ref)
    recorded = (site.directory / f"{ref.key}.json").exists()
    assert recorded is (
        point in ("environment.record.after", "environment.clear.before", "environment.clear.after")
    )
    before = site.names()
    made = asyncio.run(site.make(ref, site.again()))
    assert (made / "tiny.py").read_text() == "1.0"
    assert (made.name in before) is recorded, "what was begun is not gone on with"
    asyncio.run(site.again().keep(frozenset({ref.key})))
    assert site.names() == {made.name, f"{ref.key}.json"}


@pytest.mark.parametrize("point", OF_SWEEP)
def test_a_half_removed_environment_is_never_used(
    site: Site, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    monkeypatch.setattr(store, "KEPT_UNUSED", 0)
    ref = site.lock(make_wheel(site.wheels))
    asyncio.run(site.make(ref))
    dies_at(point, site, ref, sweeps=True)
    made = asyncio.run(site.make(ref, site.again()))
    assert (made / "tiny.py").read_text() == "1.0"
    asyncio.run(site.again().keep(frozenset({ref.key})))
    assert made.name in site.names()
