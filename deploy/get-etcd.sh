#!/usr/bin/env bash
# get-etcd.sh: print the path of an etcd server on this machine; install Debian's when there is none.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/apt.sh"

if command -v etcd; then
    exit 0
fi
apt_install "etcd is needed and not in PATH" \
    "put an etcd 3.4 or newer in PATH, or run: sudo apt-get install etcd-server" etcd-server
if ! command -v etcd; then
    echo "Debian's etcd-server is installed, but there is still no etcd in PATH" >&2
    exit 1
fi
