#!/usr/bin/env bash
# certs.sh DIR NAME[,ADDRESS...]...: a certificate authority in DIR, made if it is not there, and a certificate for each
# NAME (its DNS name, and what else it is reached at), as NAME.pem and NAME.key.
set -euo pipefail

if [[ $# -lt 2 || "$1" == -* ]]; then
    echo "usage: certs.sh DIR NAME[,ADDRESS...]..." >&2
    exit 2
fi
if ! command -v openssl >/dev/null; then
    echo "openssl is needed; run: sudo apt-get install openssl" >&2
    exit 1
fi
dir="$1"
shift
umask 077
mkdir -p "$dir"
cd "$dir"
days=3650

new_key() {
    openssl ecparam -name prime256v1 -genkey -noout -out "$1"
}

# Under other names until they are whole: a run that was broken off would leave an authority that cannot sign.
if [[ ! -e ca.key ]]; then
    new_key ca.key.new
    mv ca.key.new ca.key
fi
if [[ ! -e ca.pem ]]; then
    openssl req -x509 -new -key ca.key -sha256 -days "$days" -subj "/CN=tf-supervisor authority" \
        -addext "basicConstraints=critical,CA:TRUE,pathlen:0" -addext "keyUsage=critical,keyCertSign,cRLSign" \
        -out ca.pem.new
    mv ca.pem.new ca.pem
fi
for each in "$@"; do
    IFS=, read -r -a known <<<"$each"
    name="${known[0]}"
    if [[ ! "$name" =~ ^[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?$ ]]; then
        echo "'$name' is no name of a host" >&2
        exit 2
    fi
    if [[ -e "$name.pem" ]]; then
        echo "$dir/$name.pem is there already; remove it to have a new one" >&2
        exit 4
    fi
    alternatives=""
    for address in "${known[@]}"; do
        kind=DNS
        [[ "$address" =~ ^[0-9.]+$ || "$address" == *:* ]] && kind=IP
        alternatives+="${alternatives:+,}$kind:$address"
    done
    new_key "$name.key"
    # Of what openssl tells on its way nothing is of interest but why it fails.
    if ! said="$(
        openssl req -new -key "$name.key" -subj "/CN=$name" |
            openssl x509 -req -sha256 -days "$days" -CA ca.pem -CAkey ca.key -CAcreateserial -out "$name.pem" -extfile <(
                printf 'subjectAltName=%s\nextendedKeyUsage=serverAuth,clientAuth\nbasicConstraints=CA:FALSE\n' "$alternatives"
            ) 2>&1
    )"; then
        rm -f "$name.key" "$name.pem"
        echo "no certificate for $each: openssl says: $said" >&2
        exit 1
    fi
    echo "$dir/$name.pem: $alternatives"
done
