#!/usr/bin/env bash
# build-etcd.sh DIR: build the current etcd that the contract suite is run against, as DIR/etcd.
#
# Exit codes: 0 built, or already there; 3 no Go new enough on this machine; anything else: the build failed.
set -euo pipefail

if [[ $# -ne 1 ]]; then
    echo "usage: build-etcd.sh DIR" >&2
    exit 2
fi

source_dir="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)/etcd-3.7"
target_dir="$1"
wanted_etcd="$(sed -n 's|^.*go\.etcd\.io/etcd/server/v3 \(v[0-9.]*\).*$|\1|p' "$source_dir/go.mod")"
wanted_go="$(awk '$1 == "go" {print $2}' "$source_dir/go.mod")"

if [[ -x "$target_dir/etcd" ]] && "$target_dir/etcd" --version | grep -qxF "etcd Version: ${wanted_etcd#v}"; then
    exit 0
fi

# `go env GOVERSION` prints go1.26.8; Go releases older than 1.16 lack it and are too old anyway.
if ! have_go="$(go env GOVERSION 2>/dev/null)" || [[ -z "$have_go" ]]; then
    echo "etcd ${wanted_etcd#v} was not built: it needs Go $wanted_go or newer, and there is no go in PATH." >&2
    exit 3
fi
oldest="$(printf '%s\n' "${have_go#go}" "$wanted_go" | sort -V | head -n 1)"
if [[ "$oldest" != "$wanted_go" ]]; then
    echo "etcd ${wanted_etcd#v} was not built: it needs Go $wanted_go or newer, and this machine has ${have_go#go}." >&2
    exit 3
fi

mkdir -p "$target_dir"
target_dir="$(cd "$target_dir" && pwd)"
partial="$target_dir/etcd.partial.$$"
trap 'rm -f "$partial"' EXIT
echo "building etcd ${wanted_etcd#v} with Go ${have_go#go} (about a minute, once)" >&2
(cd "$source_dir" && CGO_ENABLED=0 go build -trimpath -mod=readonly -o "$partial" .)
mv "$partial" "$target_dir/etcd"
