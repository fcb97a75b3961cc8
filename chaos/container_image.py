"""The image of the tests: Debian's Python, a shell and what TensorFlow's libraries need, made in seconds.

TensorFlow itself is not in it: the virtual environment's `site_packages()` is mounted read-only at the same
path, and PYTHONPATH names it.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

IMAGE = "tfsup-test:py311"
USER_ID = 1000
_CACHE = Path(__file__).resolve().parents[1] / "var" / "test-image"
_PACKAGES = (
    *("python3.11-minimal", "libpython3.11-stdlib", "dash", "coreutils", "sed"),
    *("libc6", "zlib1g", "libstdc++6", "libssl3", "libffi8"),
)
# No maintainer script runs: what they would have written, as far as programs ask for it.
_FINISH = f"""
ln -s python3.11 "$1/usr/bin/python3"
ln -s python3.11 "$1/usr/bin/python"
mkdir -p "$1/root" "$1/home/trainer" "$1/proc" "$1/sys" "$1/run"
chown {USER_ID}:{USER_ID} "$1/home/trainer"
chmod 1777 "$1/tmp"
: >"$1/etc/resolv.conf"
: >"$1/etc/hostname"
echo 'hosts: files dns' >"$1/etc/nsswitch.conf"
echo root:x:0:0:root:/root:/bin/sh >"$1/etc/passwd"
echo trainer:x:{USER_ID}:{USER_ID}::/home/trainer:/bin/sh >>"$1/etc/passwd"
echo root:x:0: >"$1/etc/group"
echo trainer:x:{USER_ID}: >>"$1/etc/group"
rm -rf "$1/usr/share/doc" "$1/usr/share/man" "$1/usr/share/locale"
"""


def site_packages() -> Path:
    """The directory with TensorFlow, to be mounted at the same path; its Python is 3.11 too."""
    assert sys.version_info[:2] == (3, 11), "the test image has Python 3.11"
    return Path(sysconfig.get_paths()["purelib"])


def rootfs() -> Path:
    """A tarball for `docker import`; made once per machine, whoever asks first."""
    recipe = hashlib.sha256(repr((_PACKAGES, _FINISH)).encode()).hexdigest()[:12]
    tarball = _CACHE / f"rootfs-{recipe}.tar"
    _CACHE.mkdir(parents=True, exist_ok=True)
    with (_CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not tarball.exists():
            for old in _CACHE.glob("rootfs-*"):
                old.unlink()
            _build(tarball)
    return tarball


def _build(tarball: Path) -> None:
    unfinished = tarball.with_suffix(".part.tar")
    done = subprocess.run(
        [
            *("mmdebstrap", "--variant=extract", f"--include={','.join(_PACKAGES)}"),
            "--aptopt=Acquire::Retries 3",
            *(f"--extract-hook={_FINISH}", "bookworm", str(unfinished)),
        ],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env=os.environ | {"PATH": f"{os.environ['PATH']}:/usr/sbin:/sbin", "LC_ALL": "C.UTF-8"},
    )
    assert done.returncode == 0, f"the test image could not be made:\n{done.stderr[-3000:]}"
    unfinished.rename(tarball)
