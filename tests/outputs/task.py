"""A task with outputs: its name, its job's life and what its first attempt asks for."""

from __future__ import annotations

from agent.core.instructions import PrepareOutputs
from supervisor.contract.ids import AttemptId, TaskId

UUID = "uuid-1"
TASK = TaskId("job", "worker", 0)
FIRST = PrepareOutputs(AttemptId(TASK, 1, 1), UUID, "memory://", 1 << 30)
