#!/usr/bin/env bash
# get-spark.sh: fetch PySpark (spark/requirements.lock) from PyPI, once, into var/spark-VERSION, and print that directory.
# It holds a whole Spark: DIR belongs into PYTHONPATH, and SPARK_HOME is DIR/pyspark. Installs Debian's Java when there
# is none. Callers at the same time wait for one another.
set -euo pipefail

if [[ $# -gt 0 ]]; then
    echo "usage: get-spark.sh" >&2
    exit 2
fi
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
lock="$here/spark/requirements.lock"
version="$(sed -n 's|^pyspark==\([^ ]*\).*|\1|p' "$lock")"
target="$(dirname "$here")/var/spark-$version"
pip="$(dirname "$here")/.venv/bin/pip"

complete() {
    cmp -s "$lock" "$target/requirements.lock"
}
"$here/get-java.sh" >/dev/null
echo "$target"
if complete; then
    exit 0
fi
if [[ ! -x "$pip" ]]; then
    echo "there is no $pip, which fetches Spark; run: make setup" >&2
    exit 1
fi
mkdir -p "$(dirname "$target")"
exec 9>"$target.lock"
flock 9
if complete; then
    exit 0
fi

echo "fetching Spark $version from PyPI (320 MB, once)" >&2
partial="$target.partial"
rm -rf "$partial"
mkdir -p "$partial"
# PyPI has the source archive alone, which setuptools of requirements.lock makes a wheel of. No download is kept.
if ! "$pip" install --quiet --no-cache-dir --no-deps --require-hashes --no-build-isolation --no-compile \
    --target "$partial/packages" --requirement "$lock" >"$partial/pip.log" 2>&1 9>&-; then
    tail -n 15 "$partial/pip.log" >&2
    echo "pip could not fetch Spark $version; its words are above" >&2
    exit 1
fi
mv "$partial"/packages/* "$partial"
rmdir "$partial/packages"
cp "$lock" "$partial/requirements.lock"
rm -rf "$target"
mv "$partial" "$target"
