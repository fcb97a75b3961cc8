"""Threads that ask for the user of a job, and processes that run for users."""

from __future__ import annotations

import threading
from contextlib import suppress

import psutil
import pytest

from agent.host.task_users import OneUser, User


def threads_that_ask_for_users(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A list that gets the identity of each thread that does."""
    threads, of = list[int](), OneUser.of

    def noting(users: OneUser, job_uuid: str) -> User:
        threads.append(threading.get_ident())
        return of(users, job_uuid)

    monkeypatch.setattr(OneUser, "of", noting)
    return threads


def processes_of_users() -> list[psutil.Process]:
    """The processes in which this one reaches stores as other users. One that has ended is none."""
    found = []
    for child in psutil.Process().children():
        with suppress(psutil.NoSuchProcess):
            if "recovery.stores.user_process" in child.cmdline():
                found.append(child)
    return found
