#!/bin/bash
# Agents on two hosts, which are network namespaces: names, addresses, who may
# connect, and a cable that is cut.
. "${BASH_SOURCE%/*}/tap.sh"
. "${BASH_SOURCE%/*}/agents.sh"
[[ ${FLAVOR:-release} != tsan ]] ||
    skip_all "no process here has threads of its own to look at"
plan 38
cd "$TMP" || exit 255
export OMP_NUM_THREADS=1

# nodea has 10.99.0.1, 10.99.0.3 and fd99::1, nodeb 10.99.0.2 and fd99::2. Each
# finds its own name at 127.0.1.1. "service" is nodea for nodeb, and an address
# that nobody has for nodea.
# shellcheck disable=SC2016 # for the workers' shell
cat >two-hosts <<'EOF2'
cd "$1" || exit
. ./agents.sh
unshare -nm sh -c 'touch apart; exec sleep 1000' &
b=$!
until [[ -e apart ]]; do sleep 0.02; done
in_b() { nsenter -t $b -n -m --wd="$PWD" "$@"; }
printf '%s\n' '127.0.0.1 localhost' '127.0.1.1 nodea' '10.99.0.2 nodeb' \
    'fd99::1 six' '10.99.0.50 service' >hosts.a
printf '%s\n' '127.0.0.1 localhost' '127.0.1.1 nodeb' '10.99.0.1 nodea' \
    'fd99::1 six' '10.99.0.1 service' >hosts.b
mount --bind hosts.a /etc/hosts && in_b mount --bind hosts.b /etc/hosts &&
    ip link add v0 type veth peer name v0 netns $b &&
    ip addr add 10.99.0.1/24 dev v0 && ip addr add 10.99.0.3/24 dev v0 &&
    ip link set lo up && ip link set v0 up &&
    in_b ip addr add 10.99.0.2/24 dev v0 && in_b ip link set lo up &&
    in_b ip link set v0 up || exit
ip addr add fd99::1/64 dev v0 nodad && in_b ip addr add fd99::2/64 dev v0 nodad
trap 'kill -KILL $b $(jobs -p)' EXIT

# pair NAME ARGS...: an agent on a and one on b, with workers of hello. As
# gethostname() is the same on both, names are told by UTS namespaces.
on_a() { unshare -u sh -c 'hostname nodea; exec "$0" "$@"' "$CRUN" "$@"; }
on_b() { in_b unshare -u sh -c 'hostname nodeb; exec "$0" "$@"' "$CRUN" "$@"; }
pair()
{
    local name=$1
    shift
    on_a "$@" ${RANKED:+--node_rank 0} ${A:-} "$HELLO" >"$name.a" 2>&1 &
    local pid=$!
    on_b "$@" ${RANKED:+--node_rank 1} "$HELLO" >"$name.b" 2>&1
    echo "status $?" >>"$name.b"
    wait $pid
    echo "status $?" >>"$name.a"
}
two=(--nnodes 2 --nproc_per_node 2)
conf=(--rdzv_backend c10d --rdzv_conf "join_timeout=20,last_call_timeout=1")
RANKED=1 pair static "${two[@]}" --master_addr nodea --master_port 4100
pair name "${two[@]}" "${conf[@]}" --rdzv_endpoint nodea:4101
pair number "${two[@]}" "${conf[@]}" --rdzv_endpoint 10.99.0.1:4102
pair six "${two[@]}" "${conf[@]}" --rdzv_endpoint '[fd99::1]:4103'
pair sixname "${two[@]}" "${conf[@]}" --rdzv_endpoint six:4104
RANKED=1 pair sixstatic "${two[@]}" --master_addr six --master_port 4105
A='--rdzv_conf is_host=1,join_timeout=20,last_call_timeout=1' \
    pair service "${two[@]}" "${conf[@]}" --rdzv_endpoint service:4106

# The nodes meet at two places.
# A name and an address that come late.
late()
{
    sleep 2
    echo '10.99.0.1 late' >>hosts.a
    echo '10.99.0.1 late' >>hosts.b
}
late &
pair late "${two[@]}" "${conf[@]}" --rdzv_endpoint late:4111
(sleep 2; ip addr add 10.99.0.4/24 dev v0) &
pair lateaddr "${two[@]}" "${conf[@]}" --rdzv_endpoint 10.99.0.4:4112
RANKED=0
on_a "${two[@]}" --node_rank 0 --master_addr 10.99.0.1 --master_port 4110 \
    --rdzv_conf timeout=9 true >twice.a 2>&1 &
on_b "${two[@]}" --node_rank 0 --master_addr 10.99.0.1 --master_port 4110 \
    --rdzv_conf timeout=9 true >twice.b 2>&1
wait $!
unset RANKED
pair loopback --nnodes 2 --rdzv_backend c10d --rdzv_conf join_timeout=2 \
    --rdzv_endpoint localhost:4107
RANKED=1 pair nowhere --nnodes 2 --rdzv_conf timeout=2

# A store that waits for strangers: b has no agent.
stranger()
{
    local name=$1 addr=$2
    shift 2
    rm -f store.port
    on_a --nnodes 1:2 --rdzv_backend c10d --rdzv_endpoint 10.99.0.1:4108 \
        --rdzv_conf join_timeout=20,last_call_timeout=1 "$@" \
        sh -c 'echo $MASTER_PORT >store.new; mv store.new store.port
            until [ -e '$name'.done ]; do sleep 0.02; done' >$name.log 2>&1 &
    local pid=$!
    wait_until test -e store.port
    # shellcheck disable=SC2086
    in_b env MASTER_ADDR=$addr MASTER_PORT="${PORT:-$(cat store.port)}" \
        timeout 3 "$MARK" key >$name.b 2>&1
    echo "status $?" >>$name.b
    touch $name.done
    wait $pid
}
wait_until()
{
    for ((i = 0; i < 500; i++)); do
        "$@" && return
        sleep 0.02
    done
    return 1
}
stranger refused 10.99.0.1
stranger allowed 10.99.0.1 --store_allow 10.98.0.0/16,10.99.0.0/24
PORT=4108 stranger elsewhere 10.99.0.3

# A cable is cut: the one who is left goes on, or gives up, after two seconds
# of silence.
conf=(--rdzv_backend c10d)
cut()
{
    local name=$1
    shift
    rm -f begun.*
    on_a "$@" --rdzv_endpoint 10.99.0.1:4109 --rdzv_conf \
        join_timeout=6,last_call_timeout=4,keep_alive_max_attempt=2 \
        --rdzv_backend c10d sh -c "$LOOP" >$name.a 2>&1 &
    local a=$!
    on_b "$@" --rdzv_endpoint 10.99.0.1:4109 --rdzv_conf \
        join_timeout=6,last_call_timeout=4,keep_alive_max_attempt=2 \
        --rdzv_backend c10d sh -c "$LOOP" >$name.b 2>&1 &
    local bb=$!
    wait_until test -e begun.1.0.2
    wait_until test -e begun.0.0.2
    ip link set v0 down
    wait $a
    echo "status $?" >>$name.a
    wait $bb
    echo "status $?" >>$name.b
    ip link set v0 up
    ip addr add fd99::1/64 dev v0 nodad 2>/dev/null
}
LOOP='touch begun.$RANK.$TORCHELASTIC_RESTART_COUNT.$WORLD_SIZE
[ $WORLD_SIZE = 1 ] || exec sleep 1000'
cut smaller --nnodes 1:2 --max_restarts 1
cut toosmall --nnodes 2 --max_restarts 1
cut none --nnodes 1:2 --max_restarts 0
echo done >all.done
EOF2
cp "$ROOT/tests/e2e/agents.sh" .
export CRUN CRUND HELLO=$EXAMPLES/hello MARK=$HELPERS/store_mark
if ! command -v ip nsenter >/dev/null || ! unshare -rnmu true 2>/dev/null; then
    skip 38 "no network namespaces here"
    exit
fi
ns=(unshare -nm)
[[ $EUID -eq 0 ]] || ns=(unshare -Urnm)
RUN_TIMEOUT=115 run "${ns[@]}" bash two-hosts "$TMP"
[[ -e all.done ]]
ok $? "two namespaces and a cable" || diag "$out$err"

works()
{
    is "$(cat "$1.a" "$1.b" | grep -E 'sum|status' | sort)" "status 0
status 0
sum of 4 ranks: 6" "$2" || diag "$(cat "$1.a" "$1.b")"
}
works static "static, own names at 127.0.1.1"
works name "dynamic, own names at 127.0.1.1"
works number "dynamic, a number"
works six "an endpoint of IPv6, a number"
works sixname "and a name"
works sixstatic "and static"
like "$(cat twice.b)" 'refuses this node: node rank 0 is already taken by host nodea, pid [0-9]+' \
    "NODE-01 node rank 0 on two hosts: the second is refused"
like "$(cat twice.a)" 'is refused: node rank 0 is already taken' "NODE-01 and the first says so"
works late "K8S-01 a name that is known two seconds later"
works lateaddr "K8S-01 an address that is there two seconds later"
works service "an endpoint that is no address of its host"
like "$(cat service.a)" 'the endpoint service is no address of this host: connections are accepted at all' \
    "which is said"
like "$(cat name.a)" 'this job has no secret: whoever reaches nodea port 4101' \
    "a job without a secret says so"
unlike "$(cat name.b)" 'has no secret' "on one node"
for node in a b; do
    like "$(cat loopback.$node)" 'endpoint localhost is a loopback address' \
        "NODE-05 node $node warns of localhost"
    like "$(cat loopback.$node)" 'the job has ended: joined 1 of 2 nodes within 2 s' \
        "NODE-05 node $node waits in vain"
    like "$(cat loopback.$node)" 'status 1' "NODE-05 and fails"
    like "$(cat nowhere.$node)" 'without --master_addr: the nodes meet at 127.0.0.1' \
        "NODE-05 static without an address is warned of on $node"
    like "$(cat nowhere.$node)" 'status 1' "NODE-05 and fails"
done
like "$(cat refused.b)" 'status [^0]' "a client of the store from elsewhere is refused"
like "$(cat refused.log)" '10\.99\.0\.2 is not one of the job.s nodes; if it should be, use --store-allow' \
    "with the option that lets it in"
is "$(cat allowed.b)" "0
status 0" "with that option it is served"
like "$(cat elsewhere.b)" 'status [^0]' "at another address of the host nobody is served"
like "$(cat elsewhere.log)" '10\.99\.0\.3' "which is said"

is "$(tail -n 1 smaller.a)" "status 0" "ELA-02 a cut cable: the one who is left goes on"
like "$(cat smaller.a)" 'nothing was heard of it for 2.000 s; restart 1 of 1' "ELA-02 after the time that is given"
is "$(tail -n 1 smaller.b)" "status 1" "ELA-02 the other one ends"
like "$(cat smaller.b)" 'the coordinator at 10.99.0.1 port 4109 is lost: nothing was heard of it for 2.000 s' \
    "ELA-02 and knows why"
is "$(tail -n 1 toosmall.a)" "status 1" "ELA-02 below MIN nobody goes on"
like "$(cat toosmall.a)" 'joined 1 of 2 nodes within 6 s' "ELA-02 after the join time-out"
is "$(tail -n 1 none.a)" "status 1" "ELA-02 without a restart it is the end"
like "$(cat none.a)" 'node .* was lost: nothing was heard of it' "ELA-02 that names the node"
