#!/usr/bin/env bash
# get-browser.sh: see to it that there is a browser for the tests of the page; install Debian's chromium when missing.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/apt.sh"

if [[ $# -gt 0 ]]; then
    echo "usage: get-browser.sh" >&2
    exit 2
fi
if command -v chromium >/dev/null && command -v chromedriver >/dev/null; then
    exit 0
fi
apt_install "a browser is needed" "install chromium, or run: sudo apt-get install chromium chromium-driver" chromium chromium-driver
if ! command -v chromedriver >/dev/null; then
    echo "Debian's chromium-driver is installed, but there is still no chromedriver" >&2
    exit 1
fi
