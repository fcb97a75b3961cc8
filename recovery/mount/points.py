"""Mount points: the directories below mounts, and the removal of dead mounts. Blocking."""

from __future__ import annotations

import ctypes
import errno
import os
import re
import shutil
import subprocess
from pathlib import Path

from recovery.io.files import mapped_errors
from supervisor.adapters.failpoints import effect
from supervisor.contract.errors import Refused, StoreUnreachable

_MNT_DETACH = 2
_UMOUNT_NOFOLLOW = 8
_MS_RDONLY, _MS_NOSUID, _MS_NODEV, _MS_NOEXEC = 1, 2, 4, 8
_ESCAPED = re.compile(r"\\([0-7]{3})")
_MOST_LAYERS = 32
_FUSERMOUNT_S = 10.0


def prepare_point(directory: Path) -> None:
    """Make an empty directory to mount on. No process can write in it while nothing is mounted there.

    Otherwise a program that saves while a mount is being healed would write to this node's disk. This
    protection needs root: other users may mount only on directories that they can write to. Raises
    StoreUnreachable, Refused.
    """
    take_away(directory)
    with mapped_errors(f"make {directory}"), effect("mount.make_point"):
        directory.mkdir(parents=True, exist_ok=True)
    if os.geteuid() != 0:
        return
    flags = _MS_RDONLY | _MS_NOSUID | _MS_NODEV | _MS_NOEXEC
    call = ctypes.CDLL(None, use_errno=True).mount
    with effect("mount.cover"):
        done = call(b"tfsup-empty", os.fsencode(directory), b"tmpfs", flags, b"size=4k,mode=555")
    if done != 0:
        code = ctypes.get_errno()
        raise StoreUnreachable(f"cannot mount on {directory}: {os.strerror(code)}")


def take_away(directory: Path) -> None:
    """Detach all mounts on a directory, including dead and hung ones and those in use.

    Raises StoreUnreachable, Refused.
    """
    for _ in range(_MOST_LAYERS):
        if layers(directory) == 0:
            return
        with effect("mount.detach"):
            _detach(directory)
    raise StoreUnreachable(f"{directory} stays mounted, however often it is unmounted")


def take_away_below(parent: Path) -> None:
    """Detach all mounts below a directory. Raises as `take_away`."""
    inside = f"{parent}/"
    for point in sorted({each for each in mount_points() if each.startswith(inside)}, reverse=True):
        take_away(Path(point))


def remove_point(directory: Path) -> None:
    """Unmount, and remove the empty directory.

    Raises StoreUnreachable, Conflict (a file is in the directory).
    """
    take_away(directory)
    with mapped_errors(f"remove {directory}"), effect("mount.remove_point"):
        if directory.exists():
            directory.rmdir()


def points_below(parent: Path) -> tuple[Path, ...]:
    """Every mount point directly in `parent`, sorted."""
    return tuple(sorted({Path(point) for point in mount_points() if Path(point).parent == parent}))


def layers(directory: Path) -> int:
    """The number of mounts on a directory, from the kernel's table."""
    return mount_points().count(str(directory))


def mount_points() -> list[str]:
    """Every mount point of this process's namespace, in the order of the kernel."""
    with Path("/proc/self/mountinfo").open(encoding="utf-8", errors="surrogateescape") as table:
        return [_ESCAPED.sub(lambda found: chr(int(found[1], 8)), line.split(" ")[4]) for line in table]


def _detach(directory: Path) -> None:
    call = ctypes.CDLL(None, use_errno=True).umount2
    if call(os.fsencode(directory), _MNT_DETACH | _UMOUNT_NOFOLLOW) == 0:
        return
    code = ctypes.get_errno()
    if code in {errno.EINVAL, errno.ENOENT}:
        return  # another agent of this machine was faster
    tool = shutil.which("fusermount3")
    if code != errno.EPERM or tool is None:
        raise StoreUnreachable(f"cannot unmount {directory}: {os.strerror(code)}")
    try:
        with mapped_errors(f"run {tool}"):
            done = subprocess.run(
                [tool, "-u", "-z", "-q", "--", str(directory)],
                check=False,
                timeout=_FUSERMOUNT_S,
                capture_output=True,
            )
    except subprocess.TimeoutExpired as error:
        raise StoreUnreachable(f"cannot unmount {directory}: {tool} hangs") from error
    if done.returncode != 0 and layers(directory):
        raise Refused(f"cannot unmount {directory}: {done.stderr.decode(errors='replace').strip()}")
