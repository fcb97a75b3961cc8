#!/usr/bin/env bash
# get-kdc.sh: print the directory of MIT Kerberos' krb5kdc and kadmin.local; install Debian's when there are none.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/apt.sh"

PATH="$PATH:/usr/sbin:/usr/local/sbin"
where() {
    local found
    command -v kinit >/dev/null && command -v kadmin.local >/dev/null && found="$(command -v krb5kdc)" && dirname "$found"
}

if where; then
    exit 0
fi
apt_install "a Kerberos KDC is needed and not in PATH" \
    "put krb5kdc, kadmin.local and kinit in PATH, or run: sudo apt-get install krb5-kdc krb5-admin-server krb5-user" \
    krb5-kdc krb5-admin-server krb5-user libgssapi-krb5-2
where
