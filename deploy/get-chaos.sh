#!/usr/bin/env bash
# get-chaos.sh: see to it that nodes with networks can be made here (chaos/cluster); install Debian's iproute2 and iptables.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/apt.sh"

if [[ $# -gt 0 ]]; then
    echo "usage: get-chaos.sh" >&2
    exit 2
fi
PATH="$PATH:/usr/sbin:/sbin"
complete() {
    local program
    for program in ip tc iptables iptables-save nsenter mount; do
        command -v "$program" >/dev/null || return 1
    done
}
if complete; then
    exit 0
fi
apt_install "tools for networks of nodes are needed" "install ip, tc, iptables and nsenter, or run: sudo apt-get install iproute2 iptables util-linux mount" \
    iproute2 iptables util-linux mount
if ! complete; then
    echo "Debian's iproute2, iptables and util-linux are installed, but one of ip, tc, iptables, nsenter, mount is missing" >&2
    exit 1
fi
