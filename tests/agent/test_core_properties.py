"""The core against launchers that obey the protocol, in any order of events, with losses and restarts."""

from __future__ import annotations

import pytest

from tests.agent.core_machine import CoreMachine

TestCore = pytest.mark.timeout(300)(CoreMachine.TestCase)
