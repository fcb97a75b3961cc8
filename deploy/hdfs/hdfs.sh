#!/usr/bin/env bash
# hdfs.sh: a real HDFS on the loopback of this machine; every daemon is a process of its own, with a small heap.
#
#   hdfs.sh up DIR [--ha]           start one NameNode and three DataNodes, with all of their state in DIR, a new
#                                   directory; --ha: two NameNodes and three JournalNodes
#   hdfs.sh run DIR [--ha]          the same, print `ready`, and clear it away when standard input ends
#   hdfs.sh down DIR                kill every daemon and remove DIR
#   hdfs.sh ready DIR               wait until the cluster takes writes: an active NameNode out of safe mode, and
#                                   every DataNode that runs known to it
#   hdfs.sh start DIR NAME          start a daemon again, on its own data and ports; does not wait for it
#   hdfs.sh kill|freeze|thaw DIR NAME
#   hdfs.sh dfs|dfsadmin|haadmin DIR ARG...     Hadoop's own commands on it
#
# NAME: namenode0, namenode1, datanode0, datanode1, datanode2, journalnode0, journalnode1, journalnode2.
# DIR/client is the HADOOP_CONF_DIR of its clients, DIR/cluster says its addresses, DIR/run holds a file with process
# id and start time for each daemon, DIR/log what each has said, DIR/data what each has stored.
# Environment: HDFS_START_TIMEOUT_S (120), HDFS_JAVA_OPTIONS (more options for the daemons' Java).
set -euo pipefail

here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
read -ra java_options <<<"${HDFS_JAVA_OPTIONS:-}"
start_timeout_s="${HDFS_START_TIMEOUT_S:-120}"
port_tries=3

. "$here/../daemons.sh"

# ---- configuration ------------------------------------------------------------------------------------------------

# Properties on standard input -> Hadoop's XML, with the addresses of this cluster filled in.
as_xml() {
    echo '<?xml version="1.0"?>'
    echo '<configuration>'
    sed -e '/^#/d' -e "s|@DIR@|$dir|g" \
        -e "s|@NN0@|$((base + 0))|g" -e "s|@NN0_HTTP@|$((base + 1))|g" \
        -e "s|@NN1@|$((base + 2))|g" -e "s|@NN1_HTTP@|$((base + 3))|g" \
        -e "s|@JN0@|$((base + 4))|g" -e "s|@JN1@|$((base + 6))|g" -e "s|@JN2@|$((base + 8))|g" \
        -e 's|^\([^=]*\)=\(.*\)$|  <property><name>\1</name><value>\2</value></property>|'
    echo '</configuration>'
}

configure() {
    local -a common=("$here/conf/single.properties") servers=("$here/conf/server.properties")
    if [[ "$ha" == 1 ]]; then
        common=("$here/conf/ha.properties")
        servers+=("$here/conf/ha-server.properties")
    fi
    {
        echo "ha=$ha"
        echo "base=$base"
        if [[ "$ha" == 1 ]]; then echo "uri=hdfs://ns1"; else echo "uri=hdfs://127.0.0.1:$base"; fi
    } >"$dir/cluster"
    mkdir -p "$dir"/{server,client,run,log,data,tmp}
    cat "${common[@]}" "${servers[@]}" | as_xml >"$dir/server/hdfs-site.xml"
    cat "${common[@]}" "$here/conf/client.properties" | as_xml >"$dir/client/hdfs-site.xml"
    grep '^fs\.' "${common[@]}" | as_xml | tee "$dir/server/core-site.xml" >"$dir/client/core-site.xml"
}

read_cluster() {
    [[ -f "$dir/cluster" ]] || fail "there is no HDFS in $dir; $0 up $dir starts one"
    ha="$(sed -n 's/^ha=//p' "$dir/cluster")"
    base="$(sed -n 's/^base=//p' "$dir/cluster")"
    uri="$(sed -n 's/^uri=//p' "$dir/cluster")"
    namenodes=(namenode0)
    journalnodes=()
    if [[ "$ha" == 1 ]]; then
        namenodes=(namenode0 namenode1)
        journalnodes=(journalnode0 journalnode1 journalnode2)
    fi
    datanodes=(datanode0 datanode1 datanode2)
}

# ---- daemons ------------------------------------------------------------------------------------------------------

find_hadoop() {
    java="$("$here/../get-java.sh")"
    jars="$("$here/get-jars.sh")"
}

# The command line of a daemon, into `command`.
command_of() {
    local name="$1" index="${1: -1}" class heap port
    case "$name" in
    namenode[01]) class=hdfs.server.namenode.NameNode heap=256m port=$((base + 2 * index)) ;;
    journalnode[0-2]) class=hdfs.qjournal.server.JournalNode heap=96m port=$((base + 4 + 2 * index)) ;;
    datanode[0-2]) class=hdfs.server.datanode.DataNode heap=192m port=$((base + 10 + 3 * index)) ;;
    *) fail "no daemon is named $name" ;;
    esac
    command=(
        "$java" "${java_options[@]}" -Xmx"$heap" -XX:+UseSerialGC -XX:-UsePerfData "-XX:ErrorFile=$dir/log/$name.crash"
        -Djava.net.preferIPv4Stack=true "-Djava.io.tmpdir=$dir/tmp"
        # As Hadoop's own scripts do: without it a NameNode on Java 17 has no WebHDFS.
        --add-opens=java.base/java.lang=ALL-UNNAMED
        "-Dlog4j.configuration=file:$here/conf/log4j.properties"
        "-Dhdfs.data=$dir/data/$name" "-Dhdfs.id=nn$index"
        "-Dhdfs.port=$port" "-Dhdfs.http.port=$((port + 1))" "-Dhdfs.ipc.port=$((port + 2))"
        -cp "$dir/server:$jars/web:$jars/lib/*" "org.apache.hadoop.$class"
    )
}

start() {
    local name="$1"
    local -a command
    command_of "$name"
    mkdir -p "$dir/data/$name"
    chmod 700 "$dir/data/$name"
    start_daemon "$name" "${command[@]}"
}

format() {
    local -a command
    command_of namenode0
    mkdir -p "$dir/data/namenode0"
    "${command[@]}" -format -force -nonInteractive >>"$dir/log/format" 2>&1 </dev/null
    if [[ "$ha" == 1 ]]; then
        cp -a "$dir/data/namenode0" "$dir/data/namenode1"
    fi
}

# One of Hadoop's commands, with a client's configuration.
hadoop() {
    local class="$1"
    shift
    "$java" -Xmx256m -XX:+UseSerialGC -XX:-UsePerfData -XX:TieredStopAtLevel=1 -Djava.net.preferIPv4Stack=true \
        "-Djava.io.tmpdir=$dir/tmp" "-Dlog4j.configuration=file:$here/conf/log4j-quiet.properties" \
        -cp "$dir/client:$jars/lib/*" "org.apache.hadoop.$class" "$@"
}

# What a daemon's HTTP port says about one of its beans; nothing when it does not answer within a second.
bean() {
    local port="$1" name="$2"
    timeout 1 bash -c "exec 3<>/dev/tcp/127.0.0.1/$port && printf 'GET /jmx?qry=Hadoop:service=%s HTTP/1.0\r\n\r\n' \
        '$name' >&3 && cat <&3" 2>/dev/null || true
}

# Whether the active NameNode takes writes and knows every DataNode that runs.
takes_writes() {
    local index port known running=0 name
    for name in "${datanodes[@]}"; do
        [[ -z "$(pid_of "$name")" ]] || running=$((running + 1))
    done
    for index in "${!namenodes[@]}"; do
        port=$((base + 2 * index + 1))
        [[ "$(bean "$port" NameNode,name=NameNodeStatus)" == *'"State" : "active"'* ]] || continue
        known="$(bean "$port" NameNode,name=FSNamesystemState)"
        [[ "$known" == *'"FSState" : "Operational"'* ]] || continue
        known="$(sed -n 's/.*"NumLiveDataNodes" : \([0-9]*\).*/\1/p' <<<"$known")"
        [[ "${known:-0}" -lt "$running" ]] || return 0
    done
    return 1
}

# ---- commands -----------------------------------------------------------------------------------------------------

start_all() {
    local name left
    configure
    read_cluster
    for name in "${journalnodes[@]}" "${datanodes[@]}"; do start "$name"; done
    if ! format; then
        ! port_taken || return 0
        tail -n 20 "$dir/log/format" >&2
        fail "the NameNode's directory could not be formatted; see above"
    fi
    for name in "${namenodes[@]}"; do start "$name"; done
    if [[ "$ha" == 1 ]]; then
        # A NameNode that is not up yet refuses.
        for ((left = 20; left > 0; left--)); do
            hadoop hdfs.tools.DFSHAAdmin -transitionToActive nn0 >>"$dir/log/transition" 2>&1 && break
            sleep 0.2
        done
    fi
    wait_for_daemons takes_writes "HDFS takes no writes" "${namenodes[@]}" "${journalnodes[@]}" "${datanodes[@]}"
}

up() {
    local try
    if [[ -f "$dir/cluster" ]]; then
        read_cluster
        [[ -z "$(pid_of namenode0)" ]] || fail "an HDFS is up in $dir already ($uri); $0 down $dir ends it"
        fail "$dir holds an HDFS that does not run; $0 down $dir clears it away"
    fi
    [[ ! -e "$dir" ]] || fail "$dir exists and is no HDFS of ours; choose another directory"
    mkdir -p "$(dirname "$dir")"
    mkdir "$dir"
    trap 'kill_all; rm -rf "$dir"' EXIT
    trap 'exit 130' INT TERM HUP
    for ((try = 1; try <= port_tries; try++)); do
        base="$(free_ports)"
        start_all
        port_taken || break
        [[ "$try" -lt "$port_tries" ]] || fail "HDFS did not find its ports free, $port_tries times"
        kill_all
        rm -rf "${dir:?}"/*
    done
    trap - EXIT INT TERM HUP
}

describe() {
    local index
    echo "HDFS is up: $uri"
    echo "  its clients need     export HADOOP_CONF_DIR=$dir/client"
    for index in "${!namenodes[@]}"; do
        echo "  ${namenodes[index]} says       curl http://127.0.0.1:$((base + 2 * index + 1))/jmx"
    done
    echo "  look at the files    $0 dfs $dir -ls -R /"
    echo "  look at the nodes    $0 dfsadmin $dir -report"
    echo "  do harm              $0 kill $dir datanode0     (also freeze, thaw, start)"
}

down() {
    if [[ -d "$dir" && ! -f "$dir/cluster" && -n "$(ls -A "$dir")" ]]; then
        fail "$dir holds something else than an HDFS of ours; it is left alone"
    fi
    kill_all
    rm -rf "$dir"
}

if [[ $# -lt 2 ]]; then
    sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "${BASH_SOURCE[0]}" >&2
    exit 2
fi
verb="$1"
dir="$(realpath -m "$2")"
shift 2
[[ "$dir" =~ ^[A-Za-z0-9/._+-]+$ ]] || fail "$dir: the directory of a cluster has letters, digits and /._+- in its name"
ha=0
case "$verb" in
up | run)
    [[ "${1:-}" != --ha ]] || { ha=1 && shift; }
    [[ $# -eq 0 ]] || fail "hdfs.sh $verb DIR takes --ha and nothing else"
    find_hadoop
    up
    if [[ "$verb" == run ]]; then
        stay_until_told
    else
        describe
    fi
    ;;
down) down ;;
ready) read_cluster && wait_for_daemons takes_writes "HDFS takes no writes" ;;
kill) read_cluster && signal KILL "$1" ;;
freeze) read_cluster && signal STOP "$1" ;;
thaw) read_cluster && signal CONT "$1" ;;
start | dfs | dfsadmin | haadmin)
    read_cluster
    find_hadoop
    case "$verb" in
    start) start "$1" ;;
    dfs) hadoop fs.FsShell "$@" ;;
    dfsadmin) hadoop hdfs.tools.DFSAdmin "$@" ;;
    haadmin) hadoop hdfs.tools.DFSHAAdmin "$@" ;;
    esac
    ;;
*) fail "hdfs.sh knows no $verb" ;;
esac
