#!/usr/bin/env bash
# get-cc.sh: see to it that the tests can compile their NVML without GPUs (chaos/fake_nvml.c); install Debian's gcc when missing.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/apt.sh"

if [[ $# -gt 0 ]]; then
    echo "usage: get-cc.sh" >&2
    exit 2
fi
compiles() {
    command -v gcc >/dev/null && echo '#include <stdio.h>' | gcc -fsyntax-only -xc - 2>/dev/null
}
if compiles; then
    exit 0
fi
apt_install "a C compiler is needed" "install gcc, or run: sudo apt-get install gcc libc6-dev" gcc libc6-dev
if ! compiles; then
    echo "Debian's gcc is installed, but it does not compile" >&2
    exit 1
fi
