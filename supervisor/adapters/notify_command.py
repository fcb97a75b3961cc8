"""Commands that are told of events: the message on standard input, within a bounded time."""

from __future__ import annotations

from collections.abc import Sequence

from supervisor.adapters.operator_command import executable, run
from supervisor.contract.errors import Refused

COMMAND_S = 10.0


class NotifyCommand:
    """Runs one command for each message. It has taken the message if it ends with code 0."""

    def __init__(self, command: Sequence[str]) -> None:
        """Raises Refused when there is no such program that may be executed."""
        self._command = (executable(command[0]), *command[1:])

    def __eq__(self, other: object) -> bool:
        """Whether the same command is run."""
        return isinstance(other, NotifyCommand) and self._command == other._command

    def __hash__(self) -> int:
        """As for `__eq__`."""
        return hash(self._command)

    async def send(self, message: bytes, identity: str) -> None:
        """Run it. Raises Refused for another code, or where it cannot be run, Unreachable when it is late."""
        del identity  # it is in the message
        code = (await run(self._command, COMMAND_S, message + b"\n")).code
        if code != 0:
            raise Refused(f"{self._command[0]} has ended with code {code}")
