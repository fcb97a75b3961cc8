#!/usr/bin/env bash
# fetch.sh tony|tensorflowonspark: fetch the tool that is compared with ours, once, into var/, and print its directory.
set -euo pipefail

here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
root="$(cd "$here/../.." && pwd)"
case "${1:-}" in
tony) target="$root/var/tony-0.4.7" wanted="$here/tony-pom.xml" ;;
tensorflowonspark) target="$root/var/tensorflowonspark-2.2.5" wanted="$here/tensorflowonspark.lock" ;;
*)
    echo "usage: fetch.sh tony|tensorflowonspark" >&2
    exit 2
    ;;
esac

echo "$target"
if cmp -s "$wanted" "$target/wanted"; then
    exit 0
fi
echo "fetching ${target##*/}, once" >&2
partial="$target.partial"
rm -rf "$partial"
mkdir -p "$partial"
if [[ "$1" == tony ]]; then
    "$("$root/deploy/get-java.sh" mvn)" --batch-mode --quiet --strict-checksums --file "$wanted" \
        dependency:copy-dependencies -DincludeScope=runtime -DoutputDirectory="$partial/lib" >&2
else
    # Its metadata have a Requires-Python that is no version specifier, of which pip warns.
    "$root/.venv/bin/pip" install --quiet --no-cache-dir --no-deps --require-hashes --no-compile \
        --target "$partial" --requirement "$wanted" >&2
fi
cp "$wanted" "$partial/wanted"
rm -rf "$target"
mv "$partial" "$target"
