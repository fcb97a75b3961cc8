#!/usr/bin/env bash
# make-venv.sh DIR: create a virtual environment with Python 3.11 ($PYTHON names another interpreter).
set -euo pipefail

if [[ $# -ne 1 ]]; then
    echo "usage: make-venv.sh DIR" >&2
    exit 2
fi
venv="$1"
python="${PYTHON:-python3.11}"

usable() {
    command -v "$python" >/dev/null && "$python" -c 'import ensurepip, venv' 2>/dev/null
}

if ! usable && [[ "$(id -u)" -eq 0 ]] && command -v apt-get >/dev/null; then
    export DEBIAN_FRONTEND=noninteractive
    log="$(mktemp)"
    if ! { apt-get update && apt-get install --yes --no-install-recommends python3.11-venv; } >"$log" 2>&1; then
        tail -n 15 "$log" >&2
    fi
    rm -f "$log"
fi
if ! command -v "$python" >/dev/null; then
    echo "Python 3.11 is needed and $python is not in PATH; run: sudo apt-get install python3.11-venv" >&2
    exit 1
fi
if ! usable; then
    echo "$python cannot create virtual environments; run: sudo apt-get install python3.11-venv" >&2
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
