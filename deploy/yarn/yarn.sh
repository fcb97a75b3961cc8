#!/usr/bin/env bash
# yarn.sh: a real YARN on the loopback of this machine, beside an HDFS of ../hdfs/hdfs.sh; every daemon is a process of its
# own, with a small heap.
#
#   yarn.sh up DIR HDFS-DIR         start a ResourceManager and three NodeManagers, with all of their state in DIR, a new
#                                   directory; HDFS-DIR is that of hdfs.sh
#   yarn.sh run DIR HDFS-DIR        the same, print `ready`, and clear it away when standard input ends
#   yarn.sh down DIR                kill every daemon, then what their containers left behind, and remove DIR
#   yarn.sh ready DIR               wait until the ResourceManager answers and knows every NodeManager that runs
#   yarn.sh start DIR NAME          start a daemon again, on its own data and ports; does not wait for it
#   yarn.sh kill|freeze|thaw DIR NAME
#   yarn.sh yarn DIR ARG...         Hadoop's own `yarn`: application, container, logs, node, queue, rmadmin, classpath
#
# NAME: resourcemanager, nodemanager0, nodemanager1, nodemanager2. NodeManager N is the machine 127.0.0.(N + 2).
# DIR is a HADOOP_HOME with bin/yarn and bin/hadoop, DIR/client the HADOOP_CONF_DIR of its clients, DIR/cluster says its
# addresses, DIR/log what each daemon has said, DIR/data what each has stored. A host in DIR/exclude is decommissioned by
# `yarn rmadmin -refreshNodes [-g SECONDS -client]`. There are two queues, default and urgent, and preemption.
# Where HDFS-DIR has a yarn.keytab, with the key of yarn/localhost, and a krb5.conf, YARN has Kerberos as its HDFS does. The
# administrator is then the user yarn, and urgent is the user tfsup's.
# Environment: YARN_START_TIMEOUT_S (120), YARN_NODE_MIB (4096; what each node has for containers), YARN_GPUS (empty; else
# YARN counts GPUs, the first node has one, nothing is preempted, and there may be a node label `fast`).
set -euo pipefail

here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
start_timeout_s="${YARN_START_TIMEOUT_S:-120}"
node_mib="${YARN_NODE_MIB:-4096}"
gpus="${YARN_GPUS:-}"
port_tries=3
daemons=(resourcemanager nodemanager0 nodemanager1 nodemanager2)

. "$here/../daemons.sh"

# ---- configuration ------------------------------------------------------------------------------------------------

# Properties on standard input -> Hadoop's XML, with the addresses of this cluster filled in.
as_xml() {
    echo '<?xml version="1.0"?>'
    echo '<configuration>'
    sed -e '/^#/d' -e "s|@DIR@|$dir|g" -e "s|@JARS@|$jars|g" -e "s|@NODE_MIB@|$node_mib|g" \
        -e "s|@RM@|$base|g" -e "s|@RM_SCHEDULER@|$((base + 1))|g" -e "s|@RM_TRACKER@|$((base + 2))|g" \
        -e "s|@RM_ADMIN@|$((base + 3))|g" -e "s|@RM_HTTP@|$((base + 4))|g" -e "s|@HDFS@|$hdfs|g" -e "s|@REALM@|$realm|g" \
        -e 's|^\([^=]*\)=\(.*\)$|  <property><name>\1</name><value>\2</value></property>|'
    echo '</configuration>'
}

configure() {
    local site realm="" calculator=""
    local -a both=("$here/conf/yarn.properties") server=("$here/conf/server.properties") scheduler=("$here/conf/scheduler.properties")
    if [[ -n "$krb5" ]]; then
        realm="$(sed -n 's/^ *default_realm *= *//p' "$krb5")"
        both+=("$here/conf/kerberos.properties")
        server+=("$here/conf/kerberos-server.properties")
    fi
    {
        echo "base=$base"
        echo "krb5=$krb5"
        echo "rm=http://127.0.0.1:$((base + 4))"
    } >"$dir/cluster"
    mkdir -p "$dir"/{bin,server,client,run,log,data,tmp}
    : >"$dir/exclude"
    for site in core-site.xml hdfs-site.xml; do
        cp "$hdfs/client/$site" "$dir/client/$site"
        cp "$hdfs/client/$site" "$dir/server/$site"
    done
    # Two machines have a rack, and of the third none is known.
    printf '127.0.0.2 /east/r1\n127.0.0.3 /east/r2\n' >"$dir/racks"
    mkdir -p "$dir/first"
    if [[ -n "$gpus" ]]; then
        # There are no devices: YARN counts them. Else it counts memory alone.
        for site in client server; do echo yarn.resource-types=yarn.io/gpu | as_xml >"$dir/$site/resource-types.xml"; done
        echo yarn.nodemanager.resource-type.yarn.io/gpu=1 | as_xml >"$dir/first/node-resources.xml"
        server+=("$here/conf/labels.properties")
        scheduler+=("$here/conf/labels.properties")
        calculator=yarn.scheduler.capacity.resource-calculator=org.apache.hadoop.yarn.util.resource.DominantResourceCalculator
    fi
    cat "${both[@]}" | as_xml >"$dir/client/yarn-site.xml"
    cat "${both[@]}" "${server[@]}" | as_xml >"$dir/server/yarn-site.xml"
    { cat "${scheduler[@]}"; echo "$calculator"; } | as_xml >"$dir/server/capacity-scheduler.xml"
    cp "$here/../hdfs/conf/log4j-quiet.properties" "$dir/client/log4j.properties"
    write_command
}

# DIR/bin/yarn, and as DIR/bin/hadoop: what Hadoop's own commands of these names do, as far as it is needed.
write_command() {
    cat >"$dir/bin/yarn" <<EOF
#!/usr/bin/env bash
set -euo pipefail
classpath="\${HADOOP_CONF_DIR:-$dir/client}:$jars/lib/*"
what="\${1:-}"
[[ \$# -eq 0 ]] || shift
yarn=org.apache.hadoop.yarn.client.cli
case "\$what" in
classpath) echo "\$classpath"; exit ;;
application | app | applicationattempt | container) set -- "\$yarn.ApplicationCLI" "\$what" "\$@" ;;
logs) set -- "\$yarn.LogsCLI" "\$@" ;;
node) set -- "\$yarn.NodeCLI" "\$@" ;;
queue) set -- "\$yarn.QueueCLI" "\$@" ;;
rmadmin) set -- "\$yarn.RMAdminCLI" "\$@" ;;
jar) set -- org.apache.hadoop.util.RunJar "\$@" ;;
fs) set -- org.apache.hadoop.fs.FsShell "\$@" ;;
*) echo "\$0: it knows application, container, logs, node, queue, rmadmin, jar, fs and classpath" >&2; exit 2 ;;
esac
exec "$java" -Xmx256m -XX:+UseSerialGC -XX:-UsePerfData -XX:TieredStopAtLevel=1 -Djava.net.preferIPv4Stack=true \\
    \${KRB5_CONFIG:+"-Djava.security.krb5.conf=\$KRB5_CONFIG"} -cp "\$classpath" "\$@"
EOF
    chmod 755 "$dir/bin/yarn"
    cp "$dir/bin/yarn" "$dir/bin/hadoop"
}

read_cluster() {
    [[ -f "$dir/cluster" ]] || fail "there is no YARN in $dir; $0 up $dir HDFS-DIR starts one"
    base="$(sed -n 's/^base=//p' "$dir/cluster")"
    krb5="$(sed -n 's/^krb5=//p' "$dir/cluster")"
}

# ---- daemons ------------------------------------------------------------------------------------------------------

find_hadoop() {
    java="$(realpath "$("$here/../get-java.sh")")"
    jars="$("$here/../hdfs/get-jars.sh" yarn)"
}

# The command line of a daemon, into `command`.
command_of() {
    local name="$1" index="${1: -1}" class port=0 conf="$dir/server" gpu=""
    local -a only=()
    case "$name" in
    resourcemanager) class=server.resourcemanager.ResourceManager index=0 ;;
    nodemanager[0-2])
        class=server.nodemanager.NodeManager port=$((base + 5 + 3 * index))
        [[ "$index" -ne 0 ]] || conf="$dir/first:$conf" gpu=0
        # Hadoop's own scripts give a NodeManager these, and it gives them to containers.
        only=(env "JAVA_HOME=${java%/bin/java}" "HADOOP_CONF_DIR=$dir/client" "HADOOP_COMMON_HOME=$dir"
            "HADOOP_HDFS_HOME=$dir" "HADOOP_YARN_HOME=$dir" "HADOOP_HOME=$dir")
        ;;
    *) fail "no daemon is named $name" ;;
    esac
    command=(
        "${only[@]}" "$java" -Xmx256m -XX:+UseSerialGC -XX:-UsePerfData -XX:TieredStopAtLevel=1
        "-XX:ErrorFile=$dir/log/$name.crash" -Djava.net.preferIPv4Stack=true "-Djava.io.tmpdir=$dir/tmp"
        # As Hadoop's own scripts do.
        --add-opens=java.base/java.lang=ALL-UNNAMED
        "-Dlog4j.configuration=file:$here/../hdfs/conf/log4j.properties" "-Dyarn.data=$dir/data/$name"
        "-Dyarn.host=127.0.0.$((index + 2))" "-Dyarn.port=$port" "-Dyarn.localizer.port=$((port + 1))"
        "-Dyarn.http.port=$((port + 2))" ${krb5:+"-Djava.security.krb5.conf=$krb5"}
        "-Dyarn.gpu=$gpu" -cp "$conf:$jars/lib/*" "org.apache.hadoop.yarn.$class"
    )
}

start() {
    local -a command
    command_of "$1"
    mkdir -p "$dir/data/$1"
    start_daemon "$1" "${command[@]}"
}

# Whether the ResourceManager knows every NodeManager that runs.
knows_all() {
    local running=0 index said
    for index in 0 1 2; do
        [[ -z "$(pid_of "nodemanager$index")" ]] || running=$((running + 1))
    done
    said="$(timeout 2 bash -c "exec 3<>/dev/tcp/127.0.0.1/$((base + 4)) && \
        printf 'GET /ws/v1/cluster/metrics HTTP/1.0\r\nAccept: application/json\r\n\r\n' >&3 && cat <&3" 2>/dev/null)" || true
    said="$(sed -n 's/.*"activeNodes":\([0-9]*\).*/\1/p' <<<"$said")"
    [[ "${said:-0}" -ge "$running" && "$running" -gt 0 ]]
}

# Kill what containers of this cluster have started and what is still there: their environment names its directory.
kill_containers() {
    local file pid
    for file in /proc/[0-9]*/environ; do
        pid="${file#/proc/}"
        pid="${pid%/environ}"
        if tr '\0' '\n' 2>/dev/null <"$file" | grep -qsF "LOCAL_DIRS=$dir/data/"; then
            kill -KILL "$pid" 2>/dev/null || true
        fi
    done
}

# ---- commands -----------------------------------------------------------------------------------------------------

up() {
    local try name
    if [[ -f "$dir/cluster" ]]; then
        fail "$dir holds a YARN already; $0 down $dir clears it away"
    fi
    [[ ! -e "$dir" ]] || fail "$dir exists and is no YARN of ours; choose another directory"
    [[ -f "$hdfs/client/core-site.xml" ]] || fail "there is no HDFS in $hdfs; $here/../hdfs/hdfs.sh up $hdfs starts one"
    mkdir -p "$dir"
    trap 'clear_away' EXIT
    trap 'exit 130' INT TERM HUP
    for ((try = 1; try <= port_tries; try++)); do
        base="$(free_ports)"
        configure
        for name in "${daemons[@]}"; do start "$name"; done
        wait_for_daemons knows_all "YARN does not know its NodeManagers" "${daemons[@]}"
        port_taken || break
        [[ "$try" -lt "$port_tries" ]] || fail "YARN did not find its ports free, $port_tries times"
        kill_all
        rm -rf "${dir:?}"/*
    done
    trap - EXIT INT TERM HUP
}

describe() {
    echo "YARN is up: $(sed -n 's/^rm=//p' "$dir/cluster")"
    echo "  its clients need     export HADOOP_HOME=$dir HADOOP_CONF_DIR=$dir/client PATH=$dir/bin:\$PATH"
    echo "  look at it           $0 yarn $dir application -list     (also node -list, logs -applicationId ID)"
    echo "  do harm              $0 kill $dir nodemanager0     (also freeze, thaw, start)"
}

clear_away() {
    kill_all
    kill_containers
    rm -rf "$dir"
}

down() {
    if [[ -d "$dir" && ! -f "$dir/cluster" && -n "$(ls -A "$dir")" ]]; then
        fail "$dir holds something else than a YARN of ours; it is left alone"
    fi
    clear_away
}

if [[ $# -lt 2 ]]; then
    sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "${BASH_SOURCE[0]}" >&2
    exit 2
fi
verb="$1"
dir="$(realpath -m "$2")"
shift 2
[[ "$dir" =~ ^[A-Za-z0-9/._+-]+$ ]] || fail "$dir: the directory of a cluster has letters, digits and /._+- in its name"
case "$verb" in
up | run)
    [[ $# -eq 1 ]] || fail "yarn.sh $verb DIR takes the directory of an HDFS and nothing else"
    hdfs="$(realpath -m "$1")"
    krb5=""
    [[ ! -f "$hdfs/yarn.keytab" ]] || krb5="$hdfs/krb5.conf"
    find_hadoop
    up
    if [[ "$verb" == run ]]; then
        stay_until_told
    else
        describe
    fi
    ;;
down) down ;;
ready) read_cluster && wait_for_daemons knows_all "YARN does not know its NodeManagers" ;;
kill) read_cluster && signal KILL "$1" ;;
freeze) read_cluster && signal STOP "$1" ;;
thaw) read_cluster && signal CONT "$1" ;;
start) read_cluster && find_hadoop && start "$1" ;;
yarn) read_cluster && exec "$dir/bin/yarn" "$@" ;;
*) fail "yarn.sh knows no $verb" ;;
esac
