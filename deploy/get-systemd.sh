#!/usr/bin/env bash
# get-systemd.sh: see to it that a systemd can be started in namespaces (tests/deploy), and openssl; install Debian's.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/apt.sh"

if [[ $# -gt 0 ]]; then
    echo "usage: get-systemd.sh" >&2
    exit 2
fi
PATH="$PATH:/usr/sbin:/sbin"
complete() {
    local program
    for program in systemctl systemd-analyze openssl nsenter unshare runuser useradd mount; do
        command -v "$program" >/dev/null || return 1
    done
    [[ -x /lib/systemd/systemd ]]
}
if complete; then
    exit 0
fi
apt_install "systemd, openssl and tools for namespaces are needed" \
    "install them, or run: sudo apt-get install systemd openssl util-linux mount passwd" systemd openssl util-linux mount passwd
if ! complete; then
    echo "Debian's systemd, openssl, util-linux and passwd are installed, but a program of theirs is missing" >&2
    exit 1
fi
