#!/usr/bin/env bash
# make-venv.sh DIR: create a virtual environment with Python 3.11 ($PYTHON names another interpreter).
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/apt.sh"

if [[ $# -ne 1 ]]; then
    echo "usage: make-venv.sh DIR" >&2
    exit 2
fi
venv="$1"
python="${PYTHON:-python3.11}"

usable() {
    command -v "$python" >/dev/null && "$python" -c 'import ensurepip, venv' 2>/dev/null
}

how="run: sudo apt-get install python3.11-venv"
if ! usable; then
    apt_install "Python 3.11 with venv is needed ($python is not one)" "$how" python3.11-venv
fi
if ! usable; then
    echo "$python is not in PATH, or cannot create virtual environments; $how" >&2
    exit 1
fi
if ! "$python" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))'; then
    echo "$python is not Python 3.11, for which requirements.lock holds the exact versions" >&2
    exit 1
fi
# An interrupted creation leaves a directory without pip: begin again.
if [[ ! -x "$venv/bin/pip" ]]; then
    "$python" -m venv --clear "$venv"
fi
