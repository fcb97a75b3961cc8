#!/usr/bin/env bash
# get-docker.sh: see to it that the tests can start a dockerd of their own and make an image; install Debian's when missing.
# Starts nothing, and leaves a dockerd that is already there alone.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/apt.sh"

if [[ $# -gt 0 ]]; then
    echo "usage: get-docker.sh" >&2
    exit 2
fi
PATH="$PATH:/usr/sbin:/sbin"
packages=()
add_unless() {
    command -v "$1" >/dev/null || packages+=("$2")
}
add_unless dockerd docker.io
add_unless iptables iptables
add_unless mmdebstrap mmdebstrap
if [[ ${#packages[@]} -eq 0 ]]; then
    exit 0
fi
apt_install "dockerd, iptables and mmdebstrap are needed" \
    "install them, or run: sudo apt-get install ${packages[*]}" "${packages[@]}"
for program in dockerd iptables mmdebstrap; do
    if ! command -v "$program" >/dev/null; then
        echo "Debian's ${packages[*]} installed, but there is still no $program" >&2
        exit 1
    fi
done
