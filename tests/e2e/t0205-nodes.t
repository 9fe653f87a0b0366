#!/bin/bash
# libcollective over several nodes: workers that are started by hand, first on
# one machine that plays two, then in two network namespaces.
. "${BASH_SOURCE%/*}/tap.sh"
plan 35

cd "$TMP" || exit 255
export OMP_NUM_THREADS=1
CHECK=$HELPERS/coll_check
DIE=$HELPERS/coll_die

"$CRUND" --listen 127.0.0.1:0 >port 2>crund.err &
wait_for 10 test -s port
port=$(sed 's/.*://' port)

# workers "NODE..." PROGRAM ARGS...: rank r is on the r-th of the nodes. Sets
# $statuses, and $lines to what all print.
workers()
{
    local nodes rank=0 node pids=() pid size
    local -A count=()
    read -ra nodes <<<"$1"
    shift
    size=${#nodes[@]}
    rm -f out.*
    for node in "${nodes[@]}"; do
        env RANK=$rank WORLD_SIZE="$size" LOCAL_RANK=$((count[$node]++)) \
            GROUP_RANK="$node" MASTER_ADDR=127.0.0.1 MASTER_PORT="$port" \
            TORCHELASTIC_USE_AGENT_STORE=True \
            COLL_TIMEOUT="${COLL_TIMEOUT:-60}" \
            timeout --foreground 100 "$@" >out.$rank 2>&1 &
        pids+=($!)
        ((++rank))
    done
    statuses=
    for pid in "${pids[@]}"; do
        wait "$pid"
        statuses+="$? "
    done 2>/dev/null
    lines=$(cat out.*)
}

for nodes in "0 0 1 1" "0 1 1 1" "0 1 0 1" "0 1 2 3" "5 5 5 5"; do
    workers "$nodes" "$CHECK"
    is "$statuses$(grep -c 'of 4 ok' <<<"$lines")" "0 0 0 0 4" \
        "mixed operations, ranks on nodes $nodes"
done
COLL_BACKEND=tcp workers "0 0 0 0 0" "$CHECK"
is "$statuses$(grep -c 'of 5 ok' <<<"$lines")" "0 0 0 0 0 5" \
    "mixed operations, COLL_BACKEND=tcp"
bad=0
times=5
[[ ${FLAVOR:-release} == release ]] || times=1
for ((i = 0; i < times; i++)); do
    workers "0 0 1 1" sh -c "'$CHECK' && '$CHECK' && '$CHECK'"
    [[ $(grep -c 'of 4 ok' <<<"$lines") -eq 12 ]] || ((++bad))
done
is "$bad" 0 "several programs after each other in one worker"
run "$CRUN" --nproc_per_node=3 env -u LOCAL_WORLD_SIZE -u GROUP_RANK "$CHECK"
is "$status $(grep -c 'of 3 ok' <<<"$out")" "0 3" \
    "nobody says which node: the ranks find out"

# The leader of the second node, and a rank that leads none.
for victim in 2 3; do
    for how in kill exit; do
        workers "0 0 1 1" "$DIE" $victim 7 $how
        is "$(grep -Ec "rank $victim .*(is gone|died).*during all_reduce #8" \
            <<<"$lines")" 3 "rank $victim, $how: each survivor names it"
        slow=$(grep -Eo 'after [0-9]+ ms' <<<"$lines" |
            awk '$2 > 2000 * '"${CK_TIMEOUT_MULTIPLIER:-1}")
        is "$slow" "" "rank $victim, $how: within two seconds"
    done
done


# freeze VICTIM: ends the frozen worker when the others have ended.
freeze()
{
    local victim=$1 watcher
    rm -f pid out.* # those of the workers before would do as well
    {
        wait_for 60 frozen_alone
        kill -KILL "$(cat pid)"
    } 2>/dev/null &
    watcher=$!
    # shellcheck disable=SC2016 # for the worker's shell
    COLL_TIMEOUT=$limit workers "0 0 1 1" sh -c \
        'test $RANK != '"$victim"' || echo $$ >pid; exec "$0" "$@"' \
        "$DIE" "$victim" 7 freeze
    # Nobody may have got so far.
    { kill $watcher; wait $watcher; } 2>/dev/null
}
frozen_alone()
{
    [[ $(cat out.* 2>/dev/null | grep -c 'error after') -eq 3 ]]
}
for victim in 2 3; do
    for limit in $LIMITS; do
        freeze "$victim"
        [[ $(grep -c 'in all_reduce #8' <<<"$lines") -lt 3 ]] || break
    done
    is "$(grep -Ec "timed out after $limit.0 s in all_reduce #8 waiting for rank $victim\$" \
        <<<"$lines")" 3 "PG-19 rank $victim freezes: all name it" ||
        diag "$lines"
    slow=$(grep -Eo 'after [0-9]+ ms' <<<"$lines" |
        awk '$2 > 1000 * '"$limit"' + 3000 * '"${CK_TIMEOUT_MULTIPLIER:-1}")
    is "$slow" "" "PG-19 rank $victim: within three seconds of the time-out"
done

# Two calls that do not match, on two nodes.
workers "0 1" "$HELPERS/coll_mismatch"
is "$(grep -c 'mismatch at operation #1: rank 0 called all_reduce(count=3, float32, sum), rank 1 called barrier()' \
    <<<"$lines")" 2 "a mismatch is told on both nodes"

# --- two network namespaces ---
#
# nodea has 10.99.0.1, nodeb 10.99.0.2. Each finds its own name at 127.0.1.1.
cat >two-nodes <<'EOF'
cd "$1" || exit
unshare -nm sh -c 'touch apart; exec sleep 1000' &
b=$!
until [[ -e apart ]]; do sleep 0.02; done
in_b() { nsenter -t $b -n -m --wd="$PWD" "$@"; }
printf '%s\n' '127.0.0.1 localhost' '127.0.1.1 nodea' '10.99.0.2 nodeb' >hosts.a
printf '%s\n' '127.0.0.1 localhost' '127.0.1.1 nodeb' '10.99.0.1 nodea' >hosts.b
mount --bind hosts.a /etc/hosts && in_b mount --bind hosts.b /etc/hosts &&
    ip link add v0 type veth peer name v0 netns $b &&
    ip addr add 10.99.0.1/24 dev v0 && ip link set lo up && ip link set v0 up &&
    in_b ip addr add 10.99.0.2/24 dev v0 && in_b ip link set lo up &&
    in_b ip link set v0 up || exit
ip addr add fd99::1/64 dev v0 nodad && in_b ip addr add fd99::2/64 dev v0 nodad
"$CRUND" --listen '*:0' >port.ns 2>/dev/null &
crund=$!
trap 'kill -KILL $b $crund $(jobs -p)' EXIT
until [[ -s port.ns ]]; do sleep 0.02; done
port=$(sed 's/.*://' port.ns)

# pair NAME "NODE..." PROGRAM ARGS...: the worker of each rank in a or b.
pair()
{
    local name=$1 nodes=$2 rank=0 node enter pids=()
    shift 2
    for node in $nodes; do
        enter=
        [[ $node == a ]] || enter=in_b
        $enter env RANK=$rank WORLD_SIZE="$(wc -w <<<"$nodes")" \
            MASTER_ADDR="${MASTER:-nodea}" MASTER_PORT="${PORT:-$port}" \
            TORCHELASTIC_USE_AGENT_STORE="${AGENT_STORE:-True}" \
            COLL_TIMEOUT="${LIMIT:-30}" \
            timeout --foreground 120 "$@" >"$name.$rank" 2>&1 &
        pids+=($!)
        rank=$((rank + 1))
    done
    [[ -z ${MEANWHILE:-} ]] || $MEANWHILE
    wait "${pids[@]}"
}
received() { awk '/v0:/ { print $2 }' /proc/net/dev; }
cut()
{
    until [[ $(received) -gt $((before + 20000000)) ]]; do sleep 0.02; done
    ip link set v0 down
}
pair first "a b" "$CHECK"
pair second "b a" "$CHECK"
pair four "a a b b" "$CHECK"
pair mixed "b a b a a" "$CHECK"
AGENT_STORE=False PORT=4711 pair own "a b" "$CHECK"
MASTER=fd99::1 pair six "a b" "$CHECK"
MASTER=10.99.0.1 pair number "b a" "$CHECK"
CRUN_NODE_ADDR=10.99.0.77 LIMIT=12 pair unreachable "a b" "$CHECK"
before=$(received)
LIMIT=$CUT_LIMIT MEANWHILE=cut pair cut "a b" "$DIE" 1 1000000 kill
echo done >all.done
EOF
# To begin, and to notice that the cable is cut.
CUT_LIMIT=5
[[ ${FLAVOR:-release} == release ]] || CUT_LIMIT=15
export CRUND CHECK DIE CUT_LIMIT
if ! command -v ip nsenter >/dev/null || ! unshare -rnm true 2>/dev/null; then
    skip 14 "no network namespaces here"
    exit
fi
ns=(unshare -nm)
[[ $EUID -eq 0 ]] || ns=(unshare -Urnm)
RUN_TIMEOUT=240 run "${ns[@]}" bash two-nodes "$TMP"
[[ -e all.done ]]
ok $? "PG-22 two namespaces and a cable" || diag "$out$err"

# works NAME COUNT TEXT
works()
{
    is "$(cat "$1".? | grep -c "of $2 ok")" "$2" "$3" || diag "$(cat "$1".?)"
}
works first 2 "PG-22 own names at 127.0.1.1: the job works"
works second 2 "PG-22 and with rank 0 away from the store"
works four 4 "PG-22 and with two ranks on each node"
works mixed 5 "PG-22 and with ranks in no order"
works own 2 "PG-22 and where rank 0 hosts the store"
works six 2 "PG-22 and over IPv6"
works number 2 "PG-22 and with a number for the store"
like "$(cat unreachable.1)" \
    'rank 1 at 10\.99\.0\.2 cannot reach rank 0 at 10\.99\.0\.77 port [0-9]+: [A-Z]' \
    "PG-22 an address that cannot be reached: both are named"
like "$(cat unreachable.0)" 'rank 1 at 10\.99\.0\.2 cannot reach' \
    "PG-22 on the other rank, too"
for rank in 0 1; do
    like "$(cat cut.$rank)" \
        "timed out after $CUT_LIMIT.0 s in all_reduce #[0-9]+ waiting for rank $((1 - rank))" \
        "a cut cable: rank $rank names the other one"
    took=$(grep -Eo 'after [0-9]+ ms' cut.$rank | grep -Eo '[0-9]+')
    ((took >= 4000 && took < (CUT_LIMIT + 5) * 1000 * CK_TIMEOUT_MULTIPLIER))
    ok $? "a cut cable: rank $rank ends within its time-out ($took ms)"
done
