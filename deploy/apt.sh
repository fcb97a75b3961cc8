#!/usr/bin/env bash
# apt.sh: sourced by the scripts of this directory that may install what they need from Debian.
set -euo pipefail

# apt_install WHAT HOW PACKAGE...: install packages without a word. Where that cannot be done, end the script with
# the reason: WHAT is missing, and HOW a person gets it.
apt_install() {
    local what="$1" how="$2" log policy=/usr/sbin/policy-rc.d
    shift 2
    if [[ "$(id -u)" -ne 0 ]]; then
        echo "$what; $how" >&2
        exit 1
    fi
    if ! command -v apt-get >/dev/null; then
        echo "$what, and this system has no apt-get; $how" >&2
        exit 1
    fi
    # Packages would start services of their own, on the standard ports. A policy-rc.d that answers 101 is Debian's
    # way to say "do not"; one that the administrator has put there is left alone.
    if [[ ! -e "$policy" ]]; then
        printf '#!/bin/sh\nexit 101\n' >"$policy"
        chmod 755 "$policy"
        trap 'rm -f /usr/sbin/policy-rc.d' EXIT
    fi
    log="$(mktemp)"
    if ! { apt_get_install "$@" || { apt-get update && apt_get_install "$@"; }; } >"$log" 2>&1; then
        tail -n 15 "$log" >&2
        echo "Debian's $* could not be installed (see above, and $log); $how" >&2
        exit 1
    fi
    rm -f "$log"
}

apt_get_install() {
    DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends "$@"
}
