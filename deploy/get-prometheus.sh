#!/usr/bin/env bash
# get-prometheus.sh: see to it that the tests can start a Prometheus and an Alertmanager of their own; install Debian's
# when missing. Starts nothing, and leaves services that are already there alone.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/apt.sh"

if [[ $# -gt 0 ]]; then
    echo "usage: get-prometheus.sh" >&2
    exit 2
fi
packages=()
add_unless() {
    command -v "$1" >/dev/null || packages+=("$2")
}
add_unless prometheus prometheus
add_unless promtool prometheus
add_unless prometheus-alertmanager prometheus-alertmanager
if [[ ${#packages[@]} -eq 0 ]]; then
    exit 0
fi
apt_install "prometheus, promtool and prometheus-alertmanager are needed" \
    "install them, or run: sudo apt-get install prometheus prometheus-alertmanager" "${packages[@]}"
for program in prometheus promtool prometheus-alertmanager; do
    if ! command -v "$program" >/dev/null; then
        echo "Debian's ${packages[*]} installed, but there is still no $program" >&2
        exit 1
    fi
done
