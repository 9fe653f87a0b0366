# TAP for bash: what the scripts in this folder share. They run under prove:
#
#     #!/bin/bash
#     . "${BASH_SOURCE%/*}/tap.sh"
#     plan 2
#     run "$CRUN" --version
#     is "$status" 0 "--version succeeds"
#     like "$out" '^crun [0-9]' "--version names the program"
#
# Paths are absolute, so a test may change folder. Each script has a folder
# $TMP of its own that is gone when it ends, and what it left running in the
# background is killed then.
#
# shellcheck shell=bash disable=SC2034

set -u
: "${CK_TIMEOUT_MULTIPLIER:=4}" # as tests/run has it

ROOT=$(cd "${BASH_SOURCE[0]%/*}/../.." && pwd)
BUILD=${BUILD:-build/release}
[[ $BUILD == /* ]] || BUILD=$ROOT/$BUILD
CRUN=$BUILD/crun
CRUND=$BUILD/crund
EXAMPLES=$BUILD/examples
HELPERS=$BUILD/helpers
FAKES=$BUILD/fakes

# For crun, where workers shall have their say before they are stopped: on a
# busy machine they may need more than the 0.1 s that crun gives them. It ends
# when they have; $HANG_GRACE is for where one of them never does.
GRACE=--failure_grace=20
HANG_GRACE=--failure_grace=2

# Seconds for COLL_TIMEOUT where a test waits for it to be over: each is tried
# if the one before was not even enough to get so far.
LIMITS="3 15 60"

tap_planned=
tap_count=0
tap_failed=0

# The exit status tells prove of a wrong count or a script that broke off,
# which the lines alone would not.
tap_end()
{
    local rc=$? pids
    pids=$(jobs -p)
    if [[ -n $pids ]]; then
        # shellcheck disable=SC2086 # one word per process
        { kill -KILL $pids && wait $pids; } 2>/dev/null
    fi
    rm -rf "$TMP"
    if [[ $rc -eq 0 && $tap_count -ne ${tap_planned:--1} ]]; then
        diag "planned ${tap_planned:-nothing}, but ran $tap_count"
        rc=255
    fi
    if [[ $rc -eq 0 && $tap_failed -gt 0 ]]; then
        rc=1
    fi
    exit "$rc"
}

TMP=$(mktemp -d "${TMPDIR:-/tmp}/crun-test.XXXXXX") || exit 255
trap tap_end EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# plan N: how many assertions follow.
plan()
{
    tap_planned=$1
    echo "1..$1"
}

# skip_all REASON: instead of plan; ends the script.
skip_all()
{
    tap_planned=0
    echo "1..0 # SKIP $1"
    exit 0
}

# skip N REASON: stands for N assertions that cannot be made here.
skip()
{
    local i
    for ((i = 0; i < $1; i++)); do
        echo "ok $((++tap_count)) # skip $2"
    done
}

# diag TEXT: shown by prove, each line behind a '#'.
diag()
{
    local line
    while IFS= read -r line; do
        printf '# %s\n' "$line"
    done <<<"$1" >&2
}

# ok STATUS NAME: passes if STATUS is 0. Returns 0 if it passed, as do the
# assertions below.
ok()
{
    if [[ $1 -eq 0 ]]; then
        echo "ok $((++tap_count)) - $2"
        return 0
    fi
    echo "not ok $((++tap_count)) - $2"
    diag "failed: $2 (${BASH_SOURCE[-1]##*/} line ${BASH_LINENO[-2]})"
    ((++tap_failed))
    return 1
}

# is GOT WANT NAME: passes if the strings are equal.
is()
{
    [[ $1 == "$2" ]]
    ok $? "$3" && return
    diag "   got: $1"
    diag "wanted: $2"
    return 1
}

# like TEXT REGEX NAME: passes if a line of TEXT matches the extended
# regular expression.
like()
{
    grep -Eq -e "$2" <<<"$1"
    ok $? "$3" && return
    diag "no line matches: $2"
    diag "$1"
    return 1
}

# unlike TEXT REGEX NAME: passes if no line does. An invalid expression
# passes neither.
unlike()
{
    grep -Eq -e "$2" <<<"$1"
    [[ $? -eq 1 ]]
    ok $? "$3" && return
    diag "a line matches: $2"
    diag "$1"
    return 1
}

# children_of PID: its children. Not every machine has pgrep, nor every kernel
# the file that lists them.
children_of()
{
    local stat rest ppid
    # On a machine with many processes the other way takes long.
    if [[ -e /proc/$1/task/$1/children ]]; then
        cat /proc/"$1"/task/*/children 2>/dev/null | tr -s ' ' '\n'
        return
    fi
    for stat in /proc/[0-9]*/stat; do
        { read -r rest <"$stat"; } 2>/dev/null || continue
        read -r _ ppid _ <<<"${rest##*) }"
        [[ $ppid == "$1" ]] || continue
        stat=${stat#/proc/}
        echo "${stat%/stat}"
    done
}

# run PROGRAM ARGS...: runs a program to its end and sets $status, $out and
# $err (without trailing newlines). After $RUN_TIMEOUT seconds (60) it is
# ended, which reads as status 124 or 137. It has more time as the multiplier
# says, but less than the whole script has under tests/run.
run()
{
    local limit=$((${RUN_TIMEOUT:-60} * ${CK_TIMEOUT_MULTIPLIER:-1}))
    ((limit < 240)) || limit=240
    # In the foreground it stays in the process group that tests/run kills.
    timeout --foreground -k 10 "$limit" "$@" \
        >"$TMP/.out" 2>"$TMP/.err" </dev/null
    status=$?
    # A NUL byte cannot be in a variable; drop it without bash's warning.
    out=$(tr -d '\0' <"$TMP/.out")
    err=$(tr -d '\0' <"$TMP/.err")
}

# wait_for SECONDS COMMAND...: runs the command again and again until it
# succeeds; fails when the time is over. Longer as the multiplier says.
wait_for()
{
    local now=${EPOCHREALTIME//[.,]/}
    local end=$((now + $1 * ${CK_TIMEOUT_MULTIPLIER:-1} * 1000000))
    shift
    until "$@"; do
        now=${EPOCHREALTIME//[.,]/}
        ((now < end)) || return 1
        sleep 0.02
    done
}
