#!/usr/bin/env bash
# install.sh supervisor|agent: make this clone's daemon a service of systemd on this machine. What is configured stays.
set -euo pipefail

case "${1-}" in
    supervisor) unit=tfsup-supervisord ;;
    agent) unit=tfsup-agent ;;
    *)
        echo "usage: install.sh supervisor|agent" >&2
        exit 2
        ;;
esac
kind="$1"
# Debian's `su` leaves these out.
PATH="$PATH:/usr/sbin:/sbin"
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
etc=/etc/tf-supervisor
user=tfsup
if [[ "$(id -u)" -ne 0 ]]; then
    echo "a service is installed by root; run: sudo $0 $kind" >&2
    exit 1
fi
if [[ ! -x "$root/.venv/bin/$unit" ]]; then
    echo "$root/.venv/bin/$unit is not there; run first: make -C $root setup" >&2
    exit 1
fi
if ! getent passwd "$user" >/dev/null; then
    useradd --system --user-group --home-dir /var/lib/tf-supervisor --no-create-home --shell /usr/sbin/nologin "$user"
fi
if ! runuser -u "$user" -- "$root/.venv/bin/python" -c "import tfsup" 2>/dev/null; then
    echo "user $user cannot read $root or its Python: clone to a place that everybody can read, such as /opt/tf-supervisor" >&2
    exit 1
fi
install -d -o root -g "$user" -m 0750 "$etc" "$etc/tls"
for file in "$kind" client; do
    if [[ ! -e "$etc/$file.yaml" ]]; then
        sed "s/THIS-HOST/$(hostname)/g" "$root/deploy/systemd/$file.yaml" |
            install -o root -g "$user" -m 0640 /dev/stdin "$etc/$file.yaml"
    fi
done
sed "s|/opt/tf-supervisor|$root|g" "$root/deploy/systemd/$unit.service" |
    install -m 0644 /dev/stdin "/etc/systemd/system/$unit.service"
if [[ -d /run/systemd/system ]]; then
    systemctl daemon-reload
fi
share=/usr/local/share
for file in man:man/man1/supervisorctl.1 "completion bash:bash-completion/completions/supervisorctl" \
    "completion zsh:zsh/site-functions/_supervisorctl" "completion fish:fish/vendor_completions.d/supervisorctl.fish"; do
    read -ra verb <<<"${file%%:*}"
    "$root/.venv/bin/supervisorctl" "${verb[@]}" | install -D -m 0644 /dev/stdin "$share/${file#*:}"
done
authorities=ca.pem
if [[ "$kind" == supervisor ]]; then
    authorities="ca.pem, user-ca.pem"
fi
cat <<END
$unit is installed. Next:
  1. put $authorities, $kind-$(hostname).pem and $kind-$(hostname).key (\`supervisorctl certs issue\` makes them) into $etc/tls:
     install -o $user -m 0600 FILE... $etc/tls
  2. edit $etc/$kind.yaml
  3. systemctl enable --now $unit
END
