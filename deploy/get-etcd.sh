#!/usr/bin/env bash
# get-etcd.sh: print the path of an etcd server on this machine; install Debian's when there is none.
set -euo pipefail

if command -v etcd; then
    exit 0
fi

how="put an etcd 3.4 or newer in PATH, or run: sudo apt-get install etcd-server"
if [[ "$(id -u)" -ne 0 ]]; then
    echo "etcd is needed and not in PATH; $how" >&2
    exit 1
fi
if ! command -v apt-get >/dev/null; then
    echo "etcd is needed, is not in PATH, and this system has no apt-get; put an etcd 3.4 or newer in PATH" >&2
    exit 1
fi

# The package would start a service of its own on the standard ports. A policy-rc.d that answers 101 is
# Debian's way to say "do not"; one that the administrator has put there is left alone.
policy=/usr/sbin/policy-rc.d
if [[ ! -e "$policy" ]]; then
    printf '#!/bin/sh\nexit 101\n' >"$policy"
    chmod 755 "$policy"
    trap 'rm -f "$policy"' EXIT
fi

log="$(mktemp)"
install() {
    apt-get install --yes --no-install-recommends etcd-server
}
export DEBIAN_FRONTEND=noninteractive
if ! { install || { apt-get update && install; }; } >"$log" 2>&1; then
    tail -n 15 "$log" >&2
    echo "Debian's etcd-server could not be installed (see above, and $log); $how" >&2
    exit 1
fi
rm -f "$log"
if ! command -v etcd; then
    echo "Debian's etcd-server is installed, but there is still no etcd in PATH" >&2
    exit 1
fi
