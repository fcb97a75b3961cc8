#!/usr/bin/env bash
# get-fuse.sh: see to it that directories can be mounted here (checkpoint.mode: mounted); install Debian's fuse3 when missing.
set -euo pipefail

if [[ $# -gt 0 ]]; then
    echo "usage: get-fuse.sh" >&2
    exit 2
fi
how="install libfuse 3 and fusermount3, or run: sudo apt-get install fuse3"
complete() {
    command -v fusermount3 >/dev/null && ldconfig -p | grep -q 'libfuse3\.so'
}
if [[ ! -c /dev/fuse ]]; then
    echo "/dev/fuse is missing: load the module (modprobe fuse), or give the container --device /dev/fuse" >&2
    exit 1
fi
PATH="$PATH:/usr/sbin:/sbin"
if complete; then
    exit 0
fi
if [[ "$(id -u)" -ne 0 ]]; then
    echo "libfuse 3 is needed; $how" >&2
    exit 1
fi
if ! command -v apt-get >/dev/null; then
    echo "libfuse 3 is needed, and this system has no apt-get; $how" >&2
    exit 1
fi

log="$(mktemp)"
install() {
    apt-get install --yes --no-install-recommends fuse3
}
export DEBIAN_FRONTEND=noninteractive
if ! { install || { apt-get update && install; }; } >"$log" 2>&1; then
    tail -n 15 "$log" >&2
    echo "Debian's fuse3 could not be installed (see above, and $log); $how" >&2
    exit 1
fi
rm -f "$log"
if ! complete; then
    echo "Debian's fuse3 is installed, but there is still no libfuse 3 or no fusermount3" >&2
    exit 1
fi
