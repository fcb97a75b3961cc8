#!/usr/bin/env bash
# get-nft.sh: see to it that an agent can keep a firewall here (`firewall: true`); install Debian's nftables when missing.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/apt.sh"

if [[ $# -gt 0 ]]; then
    echo "usage: get-nft.sh" >&2
    exit 2
fi
PATH="$PATH:/usr/sbin:/sbin"
if command -v nft >/dev/null; then
    exit 0
fi
apt_install "nft is needed" "install nft, or run: sudo apt-get install nftables" nftables
if ! command -v nft >/dev/null; then
    echo "Debian's nftables is installed, but there is still no nft" >&2
    exit 1
fi
