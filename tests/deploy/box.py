"""A real systemd as the first process of namespaces, with an /etc, a /var, a /run and a cgroup of its own.

Nothing of it outlives its `close`, and the systemd of this machine, if there is one, does not know of it.
"""

from __future__ import annotations

import shlex
import shutil
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

T = TypeVar("T")
ROOT = Path(__file__).resolve().parents[2]
NAME = "box"
PROGRAM = Path("/lib/systemd/systemd")
TARGETS = ("sysinit", "basic", "multi-user", "shutdown", "network-online")

_NEEDED = """
mount -t tmpfs tmpfs {scratch}
cd {scratch}
mkdir group lower upper work both
mount -t cgroup -o none,name=systemd cgroup group
mount -t overlay overlay -o lowerdir=lower,upperdir=upper,workdir=work both
"""
_JOIN = """
mount -t cgroup -o none,name=systemd cgroup {cgroups}
mkdir -p {cgroups}/{group}
echo 0 > {cgroups}/{group}/cgroup.procs
exec unshare --pid --ipc --uts --cgroup --fork --kill-child bash -euc {inside}
"""
_INSIDE = """
mount -t proc proc /proc
for each in /etc /var {closed}; do
    over={scratch}/over$each
    mkdir -p -m 0755 $over/upper $over/work
    mount -t overlay overlay -o lowerdir=$each,upperdir=$over/upper,workdir=$over/work $each
done
mount -t tmpfs tmpfs /run
mkdir {scratch}/controllers
mount --rbind /sys/fs/cgroup {scratch}/controllers
mount -t tmpfs tmpfs /sys/fs/cgroup
mkdir /sys/fs/cgroup/systemd
mount -t cgroup -o none,name=systemd cgroup /sys/fs/cgroup/systemd
echo {name} > /etc/hostname
echo "127.0.0.1 {name}" >> /etc/hosts
rm -rf /etc/systemd/system
mkdir -p /etc/systemd/system /run/systemd/system
for each in {targets}; do
    printf '[Unit]\\nDefaultDependencies=no\\n' > /etc/systemd/system/$each.target
done
exec env -i container=box SYSTEMD_UNIT_PATH=/etc/systemd/system PATH=/usr/bin:/bin:/sbin {program} \\
    --system --unit=basic.target --log-target=console --show-status=no
"""


def wait_for(what: str, found: Callable[[], T | None], within_s: float) -> T:
    """The first result of `found` that is neither None nor false; fails after `within_s`."""
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        value = found()
        if value:
            return value
        time.sleep(0.1)
    raise AssertionError(f"{what}: not within {within_s} s")


@contextmanager
def scratch_directory() -> Iterator[Path]:
    """Not in pytest's own directories, which other users may not enter, nor in /var, which is a box's own."""
    found = Path(tempfile.mkdtemp(prefix="tfsup-systemd-", dir="/tmp"))
    found.chmod(0o755)
    try:
        yield found
    finally:
        shutil.rmtree(found)


def _closed(*paths: Path) -> list[str]:
    """Directories on the way to these that not everybody may enter; above all others first."""
    ways = {each for path in paths for each in (path, *path.parents)}
    return sorted(str(each) for each in ways if not each.stat().st_mode & stat.S_IXOTH)


def _require(scratch: Path) -> None:
    """Fail with what this machine lacks: it is easily taken for a systemd that does not start."""
    asked = subprocess.run(
        ["unshare", "--mount", "--propagation", "private", "bash", "-euc", _NEEDED.format(scratch=scratch)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert asked.returncode == 0, (
        "tests/deploy needs root, and a kernel that mounts overlays and a cgroup v1 hierarchy without "
        f"controllers (name=systemd): {asked.stderr}"
    )


class Box:
    """Use as a context manager. `scratch` is an empty directory on a real file system, readable by all.

    In there, `scratch/controllers` is what this machine has at /sys/fs/cgroup.
    """

    def __init__(self, scratch: Path) -> None:
        self._scratch = scratch
        self._cgroups = scratch / "cgroups"
        self._group = f"tfsup-{scratch.name}"
        self._process: subprocess.Popen[bytes] | None = None
        self._pid = 0

    def __enter__(self) -> Self:
        _require(self._scratch)
        self._cgroups.mkdir()
        inside = _INSIDE.format(
            scratch=self._scratch,
            name=NAME,
            targets=" ".join(TARGETS),
            program=PROGRAM,
            closed=" ".join(_closed(ROOT, Path(sys.base_prefix))),
        )
        outside = _JOIN.format(cgroups=self._cgroups, group=self._group, inside=shlex.quote(inside))
        with (self._scratch / "start.log").open("wb") as log:
            self._process = subprocess.Popen(
                ["unshare", "--mount", "--propagation", "private", "bash", "-euc", outside],
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
            )
        try:
            self._pid = wait_for("systemd", self._started, 60)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _started(self) -> int | None:
        assert self._process is not None
        assert self._process.poll() is None, self.logs()
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text().split()
        if not children:
            return None
        self._pid = int(children[0])
        state = self.run("systemctl", "is-active", "basic.target", check=False)
        return self._pid if state.stdout.strip() == "active" else None

    def run(
        self, *command: str, check: bool = True, timeout_s: float = 120
    ) -> subprocess.CompletedProcess[str]:
        """Run a command in there, as root."""
        enter = ["nsenter", "--target", str(self._pid), "--mount", "--pid", "--ipc", "--uts", "--cgroup"]
        done = subprocess.run(
            [*enter, "--", *command], capture_output=True, text=True, check=False, timeout=timeout_s
        )
        assert not check or done.returncode == 0, f"{command}: {done.stdout}{done.stderr}{self.logs()}"
        return done

    def show(self, unit: str, name: str) -> str:
        """A property of a unit."""
        return self.run("systemctl", "show", "--value", "--property", name, unit).stdout.strip()

    def main_pid(self, unit: str) -> int:
        """Its main process, as this machine numbers it; 0 while it has none."""
        inner = int(self.show(unit, "MainPID"))
        for status in Path("/proc").glob("[0-9]*/status") if inner else ():
            try:
                lines = status.read_text().splitlines()
            except OSError:
                continue
            numbers = next((line.split()[1:] for line in lines if line.startswith("NSpid:")), [])
            if numbers[1:] == [str(inner)] and self._is_inside(int(numbers[0])):
                return int(numbers[0])
        return 0

    def _is_inside(self, pid: int) -> bool:
        try:
            own, box = (Path(f"/proc/{each}/ns/pid").readlink() for each in (pid, self._pid))
        except OSError:
            return False
        return own == box

    def logs(self) -> str:
        """The logs of systemd and its services."""
        return "".join(
            f"\n-- {path.name} --\n{path.read_text(errors='replace')[-4000:]}"
            for path in sorted(self._scratch.glob("*.log"))
        )

    def close(self) -> None:
        """Kill all of it, and remove its cgroup."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        forget = (
            f"mount -t cgroup -o none,name=systemd cgroup {self._cgroups} && cd {self._cgroups} && "
            f"for _ in $(seq 300); do find {self._group} -depth -type d -exec rmdir {{}} + 2>/dev/null; "
            f"[ -d {self._group} ] || exit 0; sleep 0.1; done; exit 1"
        )
        subprocess.run(["unshare", "--mount", "--propagation", "private", "bash", "-c", forget], check=True)
