"""The members of etcd, and the calls that look after their databases."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

QUICK_BYTES = 64 << 20
"""A member with this much data or less was seen to be defragmented in about half a second (decision 0071)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EtcdMember:
    """The status of a member.

    Attributes:
        endpoint: its address in the configuration.
        member_id: its number in etcd; 0 if it did not answer.
        leads: it leads etcd's members.
        revision: the newest revision that it has applied.
        file_bytes: the size of its database file, which counts for the quota.
        used_bytes: the part of the file that holds data. The rest is free for reuse.
        quota_bytes: its quota; 0 where it does not tell, before etcd 3.6.
        full: a member has raised the alarm NOSPACE: etcd takes no writes.
        corrupt: a member has raised the alarm CORRUPT.
        problem: why it did not answer; empty if it did.
        refused: it answered, but does not show its status to this user.
    """

    endpoint: str
    member_id: int = 0
    leads: bool = False
    revision: int = 0
    file_bytes: int = 0
    used_bytes: int = 0
    quota_bytes: int = 0
    full: bool = False
    corrupt: bool = False
    problem: str = ""
    refused: bool = False


class EtcdMaintenance(Protocol):
    """Calls about etcd as a whole. Where etcd has users, some need its role root.

    Raises Refused without the right, CoordinationUnreachable.
    """

    async def members(self) -> Sequence[EtcdMember]:
        """The status of each configured member."""

    async def compact(self, revision: int) -> None:
        """Forget values that were replaced before `revision`; not an error if they are forgotten already."""

    async def defragment(self, endpoint: str) -> None:
        """Rewrite a member's file without its free space. The member answers nothing meanwhile."""

    async def disarm(self) -> None:
        """End the alarm NOSPACE of every member. A member that is still full raises it again."""
