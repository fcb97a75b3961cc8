#!/usr/bin/env bash
# get-java.sh [mvn]: print the path of a Java that HDFS runs on (of Maven, when asked); install Debian's when there is none.
set -euo pipefail

wanted="${1:-java}"
if [[ $# -gt 1 || ! "$wanted" =~ ^(java|mvn)$ ]]; then
    echo "usage: get-java.sh [java|mvn]" >&2
    exit 2
fi
case "$wanted" in
java) name="Java" package=default-jre-headless how="put a Java 11 or 17 in PATH, or run: sudo apt-get install default-jre-headless" ;;
mvn) name="Maven" package=maven how="put Maven 3.6 or newer in PATH, or run: sudo apt-get install maven" ;;
esac

if command -v "$wanted"; then
    exit 0
fi
if [[ "$(id -u)" -ne 0 ]]; then
    echo "$name is needed and not in PATH; $how" >&2
    exit 1
fi
if ! command -v apt-get >/dev/null; then
    echo "$name is needed, is not in PATH, and this system has no apt-get; $how" >&2
    exit 1
fi

log="$(mktemp)"
install() {
    apt-get install --yes --no-install-recommends "$package"
}
export DEBIAN_FRONTEND=noninteractive
if ! { install || { apt-get update && install; }; } >"$log" 2>&1; then
    tail -n 15 "$log" >&2
    echo "Debian's $package could not be installed (see above, and $log); $how" >&2
    exit 1
fi
rm -f "$log"
if ! command -v "$wanted"; then
    echo "Debian's $package is installed, but there is still no $wanted in PATH" >&2
    exit 1
fi
