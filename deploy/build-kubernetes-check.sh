#!/usr/bin/env bash
# build-kubernetes-check.sh DIR: build the validation of Kubernetes's API server, without a server, as DIR/check.
#
# Exit codes: 0 built, or already there; 3 no Go new enough on this machine; anything else: the build failed.
set -euo pipefail

if [[ $# -ne 1 ]]; then
    echo "usage: build-kubernetes-check.sh DIR" >&2
    exit 2
fi

source_dir="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)/kubernetes-1.37"
mkdir -p "$1"
target_dir="$(cd "$1" && pwd)"
made_of="$(cat "$source_dir"/{go.mod,go.sum,main.go} | sha256sum | cut -d ' ' -f 1)"
if [[ -x "$target_dir/check" && "$(cat "$target_dir/made-of" 2>/dev/null)" == "$made_of" ]]; then
    exit 0
fi

wanted_go="$(awk '$1 == "go" {print $2}' "$source_dir/go.mod")"
have_go="$(go env GOVERSION 2>/dev/null || true)"
oldest="$(printf '%s\n' "${have_go#go}" "$wanted_go" | sort -V | head -n 1)"
if [[ -z "$have_go" || "$oldest" != "$wanted_go" ]]; then
    echo "the check of manifests was not built: it needs Go $wanted_go or newer in PATH; found: ${have_go:-none}." >&2
    exit 3
fi

partial="$target_dir/check.partial.$$"
trap 'rm -f "$partial"' EXIT
echo "building the validation of Kubernetes 1.37 with Go ${have_go#go} (some minutes, once)" >&2
(cd "$source_dir" && CGO_ENABLED=0 go build -trimpath -mod=readonly -o "$partial" .)
mv "$partial" "$target_dir/check"
echo "$made_of" >"$target_dir/made-of"
