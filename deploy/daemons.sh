#!/usr/bin/env bash
# daemons.sh: sourced by scripts that keep daemons of their own in a directory, $dir: its run/NAME has the process id and
# the start time of the daemon NAME.
set -euo pipefail

fail() {
    echo "$*" >&2
    exit 1
}

# ---- processes ----------------------------------------------------------------------------------------------------

# "STATE START-TIME" of a process; nothing when there is none.
process() {
    local stat
    { read -r stat <"/proc/$1/stat"; } 2>/dev/null || return 0
    # The name in brackets may hold anything; what follows it is regular.
    local -a field
    read -ra field <<<"${stat##*) }"
    echo "${field[0]} ${field[19]}"
}

# The pid of a daemon that is alive; nothing otherwise. A pid that now belongs to another process is not ours.
pid_of() {
    local pid started state now
    [[ -f "$dir/run/$1" ]] || return 0
    read -r pid started <"$dir/run/$1"
    read -r state now <<<"$(process "$pid")" || true
    if [[ "$now" == "$started" && "$state" != [ZX] ]]; then
        echo "$pid"
    fi
}

signal() {
    local pid
    pid="$(pid_of "$2")"
    [[ -n "$pid" ]] || fail "$2 of $dir is not running"
    kill "-$1" "$pid"
}

kill_all() {
    local file pid left
    [[ -d "$dir/run" ]] || return 0
    for file in "$dir"/run/*; do
        pid="$(pid_of "${file##*/}")"
        [[ -z "$pid" ]] || kill -KILL "$pid" 2>/dev/null || true
    done
    for ((left = 200; left > 0; left--)); do
        pid=""
        for file in "$dir"/run/*; do
            pid="$pid$(pid_of "${file##*/}")"
        done
        [[ -n "$pid" ]] || return 0
        sleep 0.05
    done
    fail "some daemons of $dir cannot be killed; their process ids are in $dir/run"
}

# The first of twenty neighbouring ports that nobody uses, below those of tasks (agent.port_low) and of outgoing
# connections.
free_ports() {
    local try first port used
    # Local addresses end in the port, in hexadecimal.
    used=" $(cat /proc/net/tcp /proc/net/tcp6 2>/dev/null | awk '{print substr($2, length($2) - 3)}' | tr '\n' ' ') "
    for ((try = 0; try < 100; try++)); do
        first=$((12000 + 20 * (SRANDOM % 400)))
        for ((port = first; port < first + 20; port++)); do
            [[ "$used" != *" $(printf '%04X' "$port") "* ]] || continue 2
        done
        echo "$first"
        return
    done
    fail "no twenty free ports in a row between 12000 and 19999"
}

# start_daemon NAME COMMAND...: start a daemon in a session of its own, so that a Ctrl-C in the terminal is not for it.
start_daemon() {
    local name="$1" pid state started
    shift
    [[ -z "$(pid_of "$name")" ]] || fail "$name of $dir is running already"
    setsid "$@" >>"$dir/log/$name" 2>&1 </dev/null &
    pid=$!
    disown "$pid"
    read -r state started <<<"$(process "$pid")" || true
    echo "$pid $started" >"$dir/run/$name"
}

# Whether a daemon found its port taken, though it was free a moment ago.
port_taken() {
    grep -qs 'Address already in use' "$dir"/log/*
}

# wait_for_daemons CHECK WHAT NAME...: return when CHECK holds, or when one of the daemons that are named has found its port
# taken. Past $start_timeout_s it fails with WHAT.
wait_for_daemons() {
    local check="$1" what="$2" name deadline=$((SECONDS + start_timeout_s))
    shift 2
    while true; do
        for name in "$@"; do
            [[ -z "$(pid_of "$name")" ]] || continue
            ! port_taken || return 0
            tail -n 20 "$dir/log/$name" >&2
            fail "$name has ended; its last words are above"
        done
        ! "$check" || return 0
        if [[ "$SECONDS" -ge "$deadline" ]]; then
            tail -n 5 "$dir"/log/* >&2
            fail "$what after $start_timeout_s s, in $dir; the words of its daemons are above"
        fi
        sleep 0.1
    done
}

# Print `ready`, and clear away (`down`) when standard input ends or a signal comes.
stay_until_told() {
    trap down EXIT
    # The reader of this output may be gone when it is time to clear away.
    trap '' PIPE
    trap 'exit 0' INT TERM HUP
    echo ready
    while read -r; do :; done
}
