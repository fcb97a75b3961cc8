"""A store of shipped code in a directory, which holds the programs of all users."""

from __future__ import annotations

import stat

from recovery.formats.paths import MARKER
from recovery.io.files import GoOn, mapped_errors
from recovery.stores.local import LocalStore
from supervisor.contract.errors import Refused, StoreUnreachable

_ALL_USERS = stat.S_IRWXO


class CodeDirectory(LocalStore):
    """As `LocalStore`, in a directory that the operator has made, and that is closed to other users.

    Its first upload makes it a store. Without its file system there may be another directory of that name, on
    the supervisor's own disk, from which no agent can read. So it is neither made, nor a mount point.
    """

    def _prepare(self, go_on: GoOn) -> None:
        with mapped_errors(f"use {self._root} for code"):
            try:
                mode = stat.S_IMODE(self._root.stat().st_mode)
            except FileNotFoundError as error:
                raise StoreUnreachable(
                    f"{self._root} does not exist; is its file system mounted? If it is, make the directory "
                    "with mode 0700"
                ) from error
            if self._root.is_mount() and not (self._root / MARKER).exists():
                raise Refused(
                    f"{self._root} is a mount point, which is there without its file system too; name a "
                    "directory below it"
                )
            if mode & _ALL_USERS:
                raise Refused(
                    f"{self._root} has mode {mode:04o}, with which all users of the machine can reach the "
                    f"programs in it; run `chmod o= {self._root}`, and give agents of another user the right "
                    "to read by their group"
                )
        super()._prepare(go_on)
