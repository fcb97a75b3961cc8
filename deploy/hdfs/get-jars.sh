#!/usr/bin/env bash
# get-jars.sh: fetch what HDFS needs to run (pom.xml), once, into var/hadoop-VERSION, and print that directory.
# Callers at the same time wait for one another.
set -euo pipefail

here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
version="$(sed -n 's|.*<hadoop.version>\(.*\)</hadoop.version>.*|\1|p' "$here/pom.xml")"
target="$(cd "$here/../.." && pwd)/var/hadoop-$version"

complete() {
    cmp -s "$here/pom.xml" "$target/pom.xml"
}
echo "$target"
if complete; then
    exit 0
fi
mkdir -p "$(dirname "$target")"
exec 9>"$target.lock"
flock 9
if complete; then
    exit 0
fi

mvn="$("$here/../get-java.sh" mvn)"
echo "fetching Hadoop $version with Maven (65 MB, once)" >&2
partial="$target.partial"
rm -rf "$partial"
mkdir -p "$partial"
if ! "$mvn" --batch-mode --quiet --strict-checksums --file "$here/pom.xml" dependency:copy-dependencies \
    -DincludeScope=runtime -DoutputDirectory="$partial/lib" >"$partial/maven.log" 2>&1 9>&-; then
    tail -n 15 "$partial/maven.log" >&2
    echo "Maven could not fetch Hadoop $version; its words are above" >&2
    exit 1
fi
# The servers insist on a directory of web pages, which these jars do not hold; empty ones do.
mkdir -p "$partial"/web/webapps/{hdfs,datanode,secondary,journal}
cp "$here/pom.xml" "$partial/pom.xml"
rm -rf "$target"
mv "$partial" "$target"
