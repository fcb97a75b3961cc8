#!/usr/bin/env bash
# get-fuse.sh: see to it that directories can be mounted here (checkpoint.mode: mounted); install Debian's fuse3 when missing.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/apt.sh"

if [[ $# -gt 0 ]]; then
    echo "usage: get-fuse.sh" >&2
    exit 2
fi
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
apt_install "libfuse 3 is needed" "install libfuse 3 and fusermount3, or run: sudo apt-get install fuse3" fuse3
if ! complete; then
    echo "Debian's fuse3 is installed, but there is still no libfuse 3 or no fusermount3" >&2
    exit 1
fi
