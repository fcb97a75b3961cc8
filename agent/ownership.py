"""Whose the files are that tasks write to, where tasks run as another user than their agent."""

from __future__ import annotations

import os
from pathlib import Path

from supervisor.contract.errors import UserError


def give(path: Path, user: tuple[int, int]) -> None:
    """Make it the container's user's; without root that is who the agent is already. Raises OSError."""
    if os.geteuid() == 0:
        os.chown(path, *user, follow_symlinks=False)


def user_of(configured: str | None) -> tuple[int, int]:
    """(uid, gid) of what runs in containers; raises UserError where this agent could not make them files."""
    own = (os.geteuid(), os.getegid())
    if configured is None:
        return (1000, 1000) if own[0] == 0 else own
    uid, gid = map(int, configured.split(":"))
    if own[0] != 0 and (uid, gid) != own:
        raise UserError(
            f"docker.user {configured}: an agent that is not root can only use its own, {own[0]}:{own[1]}"
        )
    return uid, gid


def give_tree(directory: Path, user: tuple[int, int]) -> None:
    """The same of a directory and all in it; the directory comes last, so that nobody can interfere.

    It may be that user's already, and in use: what is replaced by a link meanwhile leads nowhere else.
    """
    if os.geteuid() != 0:
        return
    for _, directories, files, parent_fd in os.fwalk(directory, topdown=False):
        for name in (*directories, *files):
            os.chown(name, *user, dir_fd=parent_fd, follow_symlinks=False)
    give(directory, user)
