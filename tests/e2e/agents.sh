# Agents of several nodes on this machine, for the tests of them.
# shellcheck shell=bash

# A port that was free a moment ago, below those that the kernel gives away.
free_port()
{
    local port
    for ((try = 0; try < 100; try++)); do
        port=$((10000 + RANDOM % 20000))
        (: <>/dev/tcp/127.0.0.1/$port) 2>/dev/null || break
    done
    echo $port
}

listens() { (: <>/dev/tcp/127.0.0.1/$port) 2>/dev/null; }

# agent NAME ARGS...: starts one; NAME.out, NAME.err; its pid in pids[NAME].
declare -A pids
agent()
{
    local name=$1
    shift
    "$CRUN" "$@" >"$name.out" 2>"$name.err" </dev/null &
    pids[$name]=$!
}

# ends NAME...: waits for them, a minute at most, and sets $codes.
is_over()
{
    local stat
    { read -r stat <"/proc/$1/stat"; } 2>/dev/null || return 0
    [[ ${stat##*) } == Z* ]]
}
ends()
{
    local name
    codes=
    for name; do
        wait_for 60 is_over "${pids[$name]}" || kill -KILL "${pids[$name]}"
        { wait "${pids[$name]}"; codes+="${codes:+ }$?"; } 2>/dev/null
    done
}

# logged COUNT PATTERN FILE...: whether so many files have it.
logged()
{
    local count=$1 pattern=$2
    shift 2
    [[ $(grep -lE "$pattern" "$@" 2>/dev/null | wc -l) -eq $count ]]
}
