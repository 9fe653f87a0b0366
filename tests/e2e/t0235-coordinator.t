#!/bin/bash
# A coordinator that is no node's: crund, also when it dies and comes back; and
# the secret that agents and coordinator prove to each other.
. "${BASH_SOURCE%/*}/tap.sh"
. "${BASH_SOURCE%/*}/agents.sh"
[[ ${FLAVOR:-release} != tsan ]] ||
    skip_all "no process here has threads of its own to look at"
plan 36
cd "$TMP" || exit 255
export OMP_NUM_THREADS=1

# crund_start [OPTIONS]: at $port, or at one of its own if that is not set.
crund_start()
{
    rm -f port
    "$CRUND" --listen "127.0.0.1:${port:-0}" "$@" >port 2>>crund.err &
    crund=$!
    wait_for 10 test -s port
    port=$(sed 's/.*://' port)
}
crund_stop()
{
    kill "-${1:-TERM}" $crund
    { wait $crund; } 2>/dev/null
}
fresh()
{
    unset port
    crund_start "$@"
    job=(--rdzv_backend c10d --rdzv_endpoint "127.0.0.1:$port" --rdzv_id j
        --rdzv_conf "join_timeout=40,last_call_timeout=4")
}

# Workers that begin, wait for a file, and end.
# shellcheck disable=SC2016 # for the workers' shell
waiting='echo "$RANK/$WORLD_SIZE $TORCHELASTIC_RESTART_COUNT" >>begun
until [ -e go ]; do sleep 0.01; done'
begun() { [[ -e begun && $(wc -l <begun) -eq $1 ]]; }
gone() { logged $# 'is lost: .*waiting for it' "$@"; }

# --- One coordinator, several jobs -------------------------------------------

fresh
agent a "${job[@]}" --nnodes 2 --nproc_per_node 2 "$BUILD/examples/hello"
agent b "${job[@]}" --nnodes 2 --nproc_per_node 2 "$BUILD/examples/hello"
agent c "${job[@]}" --rdzv_id other --nnodes 2 sh -c "$waiting"
agent d "${job[@]}" --rdzv_id other --nnodes 2 sh -c "$waiting"
ends a b
is "$codes" "0 0" "a job of two nodes, with crund as coordinator"
agent a "${job[@]}" --nnodes 2 "$BUILD/examples/hello"
agent b "${job[@]}" --nnodes 2 "$BUILD/examples/hello"
ends a b
is "$codes" "0 0" "another one with the same run id, after it"
wait_for 20 begun 2
touch go
ends c d
is "$codes" "0 0" "and one with another run id, beside them"
is "$(sort begun)" "0/2 0
1/2 0" "each has its own ranks"
like "$(cat crund.err)" 'there is no secret' "without a secret that is said"
is "$(grep -c 'no secret' crund.err)" 1 "once"

agent a --master_addr 127.0.0.1 --master_port "$port" --nnodes 2 --node_rank 1 true
ends a
is "$codes" 1 "a static job is refused"
like "$(cat a.err)" 'refuses this node: its backend is static, and node rank 0 of such a job is its own coordinator' \
    "and told why"
crund_stop

# --- It dies and comes back --------------------------------------------------

rm -f begun go
fresh
for n in a b c; do
    agent $n "${job[@]}" --nnodes 2:3 --nproc_per_node 2 --max_restarts 1 sh -c "$waiting"
done
wait_for 20 begun 6
crund_stop KILL
wait_for 20 gone a.err b.err c.err
ok $? "each node notices that the coordinator is gone"
crund_start
wait_for 20 logged 3 'is back$' a.err b.err c.err
ok $? "and that it is back"
touch go
ends a b c
is "$codes" "0 0 0" "the job goes on and succeeds"
is "$(wc -l <begun)" 6 "no worker was started again"

# A worker fails meanwhile: the others hear of it when it is back.
rm -f begun go
for n in a b; do
    # shellcheck disable=SC2016
    agent $n "${job[@]}" --nnodes 2 --nproc_per_node 1 --max_restarts 1 sh -c \
        'echo "$RANK/$WORLD_SIZE $TORCHELASTIC_RESTART_COUNT" >>begun
        [ $TORCHELASTIC_RESTART_COUNT = 0 ] || exit 0
        [ $RANK = 1 ] || exec sleep 1000
        until [ -e go ]; do sleep 0.01; done; exit 3'
done
wait_for 20 begun 2
crund_stop KILL
wait_for 20 gone a.err b.err
touch go
failed() { grep -q 'failed: exit code 3' a.err b.err; }
wait_for 20 failed
ok $? "a failure meanwhile is told on its node"
crund_start
ends a b
is "$codes" "0 0" "and ends the round everywhere when the coordinator is back"
is "$(sort begun)" "0/2 0
0/2 1
1/2 0
1/2 1" "which is restarted once"

# A node dies while it is away.
rm -f begun go
for n in a b; do
    agent $n "${job[@]}" --nnodes 1:2 --nproc_per_node 1 --max_restarts 1 sh -c "$waiting"
done
wait_for 20 begun 2
crund_stop KILL
wait_for 20 gone a.err b.err
kill -KILL "${pids[b]}"
{ wait "${pids[b]}"; } 2>/dev/null
crund_start
wait_for 30 begun 3
is "$(tail -n 1 begun)" "0/1 1" "a node that died meanwhile is missed, and lost"
touch go
ends a
is "$codes" 0 "the others go on without it"
like "$(cat a.err)" 'node with group rank [01] is lost: it has not come back' "and say so"

# It stands still for longer than it may be silent: nobody is lost for that.
rm -f begun go
crund_stop
fresh
job=(--rdzv_backend c10d --rdzv_endpoint "127.0.0.1:$port" --rdzv_id j
    --rdzv_conf join_timeout=40,last_call_timeout=4,keep_alive_max_attempt=3)
for n in a b; do
    agent $n "${job[@]}" --nnodes 2 --nproc_per_node 1 --max_restarts 0 sh -c "$waiting"
done
wait_for 20 begun 2
kill -STOP $crund
wait_for 20 gone a.err b.err
kill -CONT $crund
wait_for 20 logged 2 'is back$' a.err b.err
touch go
ends a b
is "$codes $(wc -l <begun)" "0 0 2" "one that stood still disturbs no worker" ||
    diag "$(cat a.err b.err crund.err)"

# --- It does not come back ---------------------------------------------------

rm -f begun go
for n in a b; do
    agent $n "${job[@]}" --nnodes 2 --coordinator_timeout 1 sh -c "$waiting"
done
wait_for 20 begun 2
crund_stop KILL
ends a b
is "$codes" "1 1" "without it the job ends"
like "$(cat a.err)" 'was lost, and is not back after 1.000 s: ' "after the time that is given"

rm -f begun go
crund_start
for n in a b; do
    agent $n "${job[@]}" --nnodes 2 --coordinator_timeout 6 sh -c "$waiting"
done
wait_for 20 begun 2
crund_stop KILL
wait_for 20 gone a.err b.err
touch go
ends a b
is "$codes" "0 0" "nodes whose workers are through have done their part"
like "$(cat a.err)" 'is not back after 6.000 s' "and tell what they do not know"

# --- Secrets -----------------------------------------------------------------

echo "correct horse" >secret
echo "battery staple" >other
: >empty
chmod 600 secret other
fresh --token-file secret
agent a "${job[@]}" --nnodes 2 --token_file secret "$BUILD/examples/hello"
CRUN_TOKEN_FILE=secret agent b "${job[@]}" --nnodes 2 "$BUILD/examples/hello"
ends a b
is "$codes" "0 0" "nodes that know the secret"
: >crund.err
agent a "${job[@]}" --nnodes 2 --token_file other true
agent b "${job[@]}" --nnodes 2 true
ends a b
is "$codes" "1 1" "nodes that do not are refused"
like "$(cat a.err)" 'refuses this node: its secret \(--token_file\) is not the one of the coordinator' \
    "a wrong one"
like "$(cat b.err)" 'refuses this node: it has no secret, and the coordinator has one' "or none"
like "$(cat crund.err)" 'is refused: its secret .* is not the one' "the other side says so, too"
like "$(cat crund.err)" 'is refused: it has no secret' "of both"
crund_stop

fresh
agent a "${job[@]}" --nnodes 2 --token_file secret true
ends a
is "$codes" 1 "a coordinator without the secret is not believed"
like "$(cat a.err)" 'it has a secret \(--token_file\), and the coordinator has none' "and told why"
crund_stop

port=$(free_port)
job=(--rdzv_backend c10d --rdzv_endpoint "127.0.0.1:$port"
    --rdzv_conf join_timeout=40)
agent a "${job[@]}" --nnodes 2 --token_file secret "$BUILD/examples/hello"
wait_for 10 listens
agent c "${job[@]}" --nnodes 2 --token_file other true
ends c
agent b "${job[@]}" --nnodes 2 --token_file secret "$BUILD/examples/hello"
ends a b
is "$codes" "0 0" "a node that is the coordinator, and one that knows its secret"
like "$(cat c.err)" 'is not the one of the coordinator' "and one that does not"
for bad in empty nosuch .; do
    run "$CRUN" "${job[@]}" --nnodes 2 --token_file $bad true
    is "$status" 1 "--token_file $bad: $(grep -o "error: .*" <<<"$err")"
done
