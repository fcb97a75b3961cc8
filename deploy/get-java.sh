#!/usr/bin/env bash
# get-java.sh [javac|mvn]: print the path of a Java that HDFS runs on (of its compiler or Maven, when asked); install Debian's when there is none.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/apt.sh"

wanted="${1:-java}"
if [[ $# -gt 1 || ! "$wanted" =~ ^(java|javac|mvn)$ ]]; then
    echo "usage: get-java.sh [java|javac|mvn]" >&2
    exit 2
fi
case "$wanted" in
java) name="Java" package=default-jre-headless how="put a Java 11 or 17 in PATH, or run: sudo apt-get install default-jre-headless" ;;
javac) name="A Java compiler" package=default-jdk-headless how="put a JDK 11 or 17 in PATH, or run: sudo apt-get install default-jdk-headless" ;;
mvn) name="Maven" package=maven how="put Maven 3.6 or newer in PATH, or run: sudo apt-get install maven" ;;
esac

if command -v "$wanted"; then
    exit 0
fi
apt_install "$name is needed and not in PATH" "$how" "$package"
if ! command -v "$wanted"; then
    echo "Debian's $package is installed, but there is still no $wanted in PATH" >&2
    exit 1
fi
