#!/usr/bin/env bash
# get-jars.sh [yarn]: fetch what HDFS needs to run (pom.xml), once, into var/hadoop-VERSION, and print that directory;
# with `yarn` what YARN needs (../yarn/pom.xml), into var/yarn-VERSION. Callers at the same time wait for one another.
set -euo pipefail

here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
if [[ $# -gt 1 || ! "${1:-yarn}" == yarn ]]; then
    echo "usage: get-jars.sh [yarn]" >&2
    exit 2
fi
pom="$here/pom.xml" name=hadoop
[[ $# -eq 0 ]] || pom="$here/../yarn/pom.xml" name=yarn
version="$(sed -n 's|.*<hadoop.version>\(.*\)</hadoop.version>.*|\1|p' "$pom")"
target="$(cd "$here/../.." && pwd)/var/$name-$version"

complete() {
    cmp -s "$pom" "$target/pom.xml"
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
echo "fetching the jars of $name $version with Maven (up to 81 MB, once)" >&2
partial="$target.partial"
rm -rf "$partial"
mkdir -p "$partial"
if ! "$mvn" --batch-mode --quiet --strict-checksums --file "$pom" dependency:copy-dependencies \
    -DincludeScope=runtime -DoutputDirectory="$partial/lib" >"$partial/maven.log" 2>&1 9>&-; then
    tail -n 15 "$partial/maven.log" >&2
    echo "Maven could not fetch Hadoop $version; its words are above" >&2
    exit 1
fi
# The servers insist on a directory of web pages, which these jars do not hold; empty ones do.
mkdir -p "$partial"/web/webapps/{hdfs,datanode,secondary,journal}
cp "$pom" "$partial/pom.xml"
rm -rf "$target"
mv "$partial" "$target"
