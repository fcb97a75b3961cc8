#!/usr/bin/env bash
# lock-alone.sh PIP REQUIREMENT...: print a lock of packages that are installed without their dependencies.
# tf_keras asks for the package `tensorflow`, whose CUDA build would be put over tensorflow-cpu.
set -euo pipefail

if [[ $# -lt 2 ]]; then
    echo "usage: lock-alone.sh PIP REQUIREMENT..." >&2
    exit 2
fi
pip="$1"
shift
wheels="$(mktemp -d)"
trap 'rm -rf "$wheels"' EXIT
"$pip" download --quiet --no-deps --only-binary :all: --dest "$wheels" "$@" >&2
echo '# Installed with --no-deps, because they would bring another build of TensorFlow; written by `make lock`.'
for wheel in "$wheels"/*.whl; do
    name="$(basename "$wheel")"
    version="${name#*-}"
    distribution="${name%%-*}"
    echo "${distribution//_/-}==${version%%-*} \\"
    echo "    --hash=sha256:$(sha256sum "$wheel" | cut -d ' ' -f 1)"
done
