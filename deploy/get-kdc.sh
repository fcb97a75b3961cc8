#!/usr/bin/env bash
# get-kdc.sh: print the directory of MIT Kerberos' krb5kdc and kadmin.local; install Debian's when there are none.
set -euo pipefail

PATH="$PATH:/usr/sbin:/usr/local/sbin"
where() {
    local found
    command -v kinit >/dev/null && command -v kadmin.local >/dev/null && found="$(command -v krb5kdc)" && dirname "$found"
}

if where; then
    exit 0
fi
how="put krb5kdc, kadmin.local and kinit in PATH, or run: sudo apt-get install krb5-kdc krb5-admin-server krb5-user"
if [[ "$(id -u)" -ne 0 ]] || ! command -v apt-get >/dev/null; then
    echo "a Kerberos KDC is needed and not in PATH; $how" >&2
    exit 1
fi

# The packages would start services of their own; see get-etcd.sh.
policy=/usr/sbin/policy-rc.d
if [[ ! -e "$policy" ]]; then
    printf '#!/bin/sh\nexit 101\n' >"$policy"
    chmod 755 "$policy"
    trap 'rm -f "$policy"' EXIT
fi

log="$(mktemp)"
install() {
    apt-get install --yes --no-install-recommends krb5-kdc krb5-admin-server krb5-user libgssapi-krb5-2
}
export DEBIAN_FRONTEND=noninteractive
if ! { install || { apt-get update && install; }; } >"$log" 2>&1; then
    tail -n 15 "$log" >&2
    echo "Debian's KDC could not be installed (see above, and $log); $how" >&2
    exit 1
fi
rm -f "$log"
where
