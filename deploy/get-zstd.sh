#!/usr/bin/env bash
# get-zstd.sh: see to it that a node here can unpack environments in .tar.zst; install Debian's zstd when missing.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/apt.sh"

if [[ $# -gt 0 ]]; then
    echo "usage: get-zstd.sh" >&2
    exit 2
fi
if command -v zstd >/dev/null; then
    exit 0
fi
apt_install "zstd is needed" "install zstd, or run: sudo apt-get install zstd" zstd
