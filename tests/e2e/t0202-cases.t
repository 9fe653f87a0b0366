#!/bin/bash
# libcollective in the cases that people have met with others of its kind: who
# is late, leaves, or is not there; what is too large, and what is too small.
. "${BASH_SOURCE%/*}/tap.sh"
plan 25
cd "$TMP" || exit 255
export OMP_NUM_THREADS=1

# cases RANKS CASE...: the helper under crun.
cases()
{
    local n=$1
    shift
    run "$CRUN" --nproc_per_node="$n" "$HELPERS/coll_cases" "$@"
}

# oks: how many ranks are content.
oks()
{
    grep -c '^rank [0-9]* of [0-9]* ok$' <<<"$out"
}

# within MS: no rank has waited longer for its error; more in slow flavours.
within()
{
    local limit=$(($1 * ${CK_TIMEOUT_MULTIPLIER:-1})) slow
    slow=$(grep -Eo '^rank [02]: .* after [0-9]+ ms' <<<"$out" |
        awk -v limit="$limit" '$(NF - 1) > limit' | wc -l)
    is "$slow" 0 "$2" || diag "$out"
}

for n in 1 2 5 8; do
    cases $n all
    is "$status $(oks)" "0 $n" "all there is, $n ranks" || diag "$err"
done

# --- Late, early, absent ------------------------------------------------------

cases 2 early 9
is "$status" 0 "PG-04 a rank leaves early"
like "$out" 'rank 0: another rank .*: rank 1 left after operation 9' \
    "PG-04 the other one is told so"
within 5000 "PG-04 at once"

cases 3 cycles 100
is "$status $(oks)" "0 3" "PG-08 100 cycles of ranks that come as they like" ||
    diag "$err"

# timed_out SECONDS WHERE: how many of ranks 0 and 2 say that they have waited for
# rank 1. One of them may have heard it from the other.
timed_out()
{
    local rank='rank [02]: timed out after [0-9]+ ms: (rank [02] gave up: )?'
    grep -Ec "${rank}timed out after $1 s in $2 waiting for rank 1\$" <<<"$out"
}

# late CASE WHERE: rank 1 comes too late for the time-out, which is $limit.
late()
{
    for limit in $LIMITS; do
        COLL_TIMEOUT=$limit cases 3 "$1" $((3000 * limit))
        [[ $(timed_out "$limit.0" "$2") -ne 2 ]] || break
    done
}
late late 'barrier #1'
is "$(timed_out "$limit.0" 'barrier #1')" 2 \
    "PG-19 the first operation has the time-out, and names who is missing" ||
    diag "$out$err"
within $((limit * 1000 + 3000)) "PG-19 and does not take longer"
late absent coll_init
is "$(timed_out "$limit.0" coll_init)" 2 "PG-19 coll_init() has it, too" ||
    diag "$out$err"
within $((limit * 1000 + 3000)) "PG-19 and does not take longer"
export COLL_TIMEOUT=3600
for limit in 1 5 20; do
    cases 3 group-late $((4000 * limit))
    [[ $(timed_out "$limit.0" 'barrier #1') -ne 2 ]] || break
done
is "$(timed_out "$limit.0" 'barrier #1')" 2 "PG-19 a group has one of its own" ||
    diag "$out$err"
within $((limit * 1000 + 2000)) "PG-19 and does not take longer"
cases 3 late 2500
is "$status $(oks)" "0 3" "PG-19 who is late within an hour is waited for"
unset COLL_TIMEOUT

# --- Shared memory ------------------------------------------------------------

if unshare -Urm true 2>/dev/null; then
    for options in size=1m size=64k,ro nr_inodes=1; do
        run unshare -Urm sh -c "mount -t tmpfs -o $options tmpfs /dev/shm &&
            '$CRUN' --nproc_per_node=4 '$HELPERS/coll_cases' all &&
            ls -A /dev/shm >left"
        is "$status $(oks)" "0 4" "CON-01 /dev/shm with $options" ||
            diag "$err"
        is "$(cat left)" "" "CON-01 and nothing is left there"
    done
    # Far more than /dev/shm holds.
    run unshare -Urm sh -c "mount -t tmpfs -o size=1m tmpfs /dev/shm &&
        '$CRUN' --nproc_per_node=4 '$HELPERS/coll_big' $((4 << 20))"
    is "$status" 0 "CON-01 buffers of 16 MiB in a /dev/shm of 1 MiB" ||
        diag "$err"
else
    skip 7 "no mount namespaces here"
fi

# Killed at any moment, while groups are made, too; nobody is left, and no
# memory: what is shared has no name that could outlive its users.
if [[ ${FLAVOR:-release} == tsan ]]; then
    skip 2 "too slow with tsan"
else
    find /dev/shm 2>/dev/null | sort >before
    "$HELPERS/kill_storm" -n 20 "$CRUN" --nproc_per_node=4 sh -c \
        "while '$HELPERS/coll_cases' all >/dev/null; do :; done" >out 2>err
    is "$?" 0 "CON-02 nothing is left of ranks that are killed" ||
        diag "$(cat out; tail -n 20 err)"
    find /dev/shm 2>/dev/null | sort >after
    is "$(diff before after | grep -c 'coll\|crun')" 0 \
        "CON-02 and nothing in /dev/shm"
fi

# --- Large --------------------------------------------------------------------

have_kb=$(awk '/^MemAvailable/ { print $2 }' /proc/meminfo)
if [[ ${FLAVOR:-release} != release ]]; then
    skip 1 "too slow with sanitizers"
elif ((have_kb < 1024 * 1024)); then
    skip 1 "needs 1 GiB of memory"
else
    RUN_TIMEOUT=120 cases 2 huge
    is "$status $(oks)" "0 2" "PG-11 more than 2^31 elements" || diag "$err"
fi
