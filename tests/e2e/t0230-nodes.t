#!/bin/bash
# Several nodes on this machine: agents that meet over loopback, static and
# dynamic, and what reaches all of them.
. "${BASH_SOURCE[0]%/*}/tap.sh"
. "${BASH_SOURCE[0]%/*}/agents.sh"
plan 69
cd "$TMP" || exit 255
export OMP_NUM_THREADS=1

# In which a second agent can begin.
last_call=$((CK_TIMEOUT_MULTIPLIER > 5 ? CK_TIMEOUT_MULTIPLIER : 5))

# dynamic: sets the options of a dynamic job at a port of its own.
dynamic()
{
    port=$(free_port)
    job=(--rdzv_backend c10d --rdzv_endpoint "127.0.0.1:$port" --rdzv_id j
        --rdzv_conf "join_timeout=40,last_call_timeout=$last_call")
}
fixed()
{
    port=$(free_port)
    job=(--master_addr 127.0.0.1 --master_port "$port")
}

# --- The environment ---------------------------------------------------------

shown='echo "$RANK/$WORLD_SIZE $LOCAL_RANK/$LOCAL_WORLD_SIZE $GROUP_RANK/$GROUP_WORLD_SIZE $ROLE_RANK/$ROLE_WORLD_SIZE $ROLE_NAME $TORCHELASTIC_RESTART_COUNT $MASTER_ADDR $CRUN_NODE_ADDR"'
fixed
agent b "${job[@]}" --nnodes 2 --node_rank 1 --nproc_per_node 2 sh -c "$shown"
agent a "${job[@]}" --nnodes 2 --node_rank 0 --nproc_per_node 1 sh -c "$shown; echo \$MASTER_PORT"
ends a b
is "$codes" "0 0" "static: both nodes succeed"
is "$(cat a.out)" "0/3 0/1 0/2 0/3 default 0 127.0.0.1 127.0.0.1
$port" "static: node 0, with the typed port"
is "$(sort b.out)" "1/3 0/2 1/2 1/3 default 0 127.0.0.1 127.0.0.1
2/3 1/2 1/2 2/3 default 0 127.0.0.1 127.0.0.1" "NODE-03 static: node 1 has the ranks behind"
like "$(cat a.err)" 'endpoint 127.0.0.1 is a loopback address' "NODE-05 a loopback endpoint is warned of"

dynamic
agent a "${job[@]}" --nnodes 2 --node_rank 1 --role x sh -c "$shown"
agent b "${job[@]}" --nnodes 2 --node_rank 0 --role y --nproc_per_node 2 sh -c "$shown"
ends a b
is "$codes" "0 0" "dynamic: both nodes succeed"
is "$(cat b.out a.out | sort)" "0/3 0/2 0/2 0/2 y 0 127.0.0.1 127.0.0.1
1/3 1/2 0/2 1/2 y 0 127.0.0.1 127.0.0.1
2/3 0/1 1/2 0/1 x 0 127.0.0.1 127.0.0.1" \
    "NODE-03 dynamic: node_rank is the order; roles and counts may differ"

dynamic
SLURM_NODEID=7 agent a "${job[@]}" --nnodes 3 sh -c 'echo $RANK'
SLURM_NODEID=5 agent b "${job[@]}" --nnodes 3 sh -c 'echo $RANK'
SLURM_NODEID=9 agent c "${job[@]}" --nnodes 3 --node_rank 6 sh -c 'echo $RANK'
ends a b c
is "$codes $(cat b.out c.out a.out | paste -sd,)" "0 0 0 0,1,2" \
    "without a node rank Slurm's number of the node is the order"

# --- A store for all ---------------------------------------------------------

dynamic
agent a "${job[@]}" --nnodes 2 --nproc_per_node 2 "$BUILD/examples/hello"
agent b "${job[@]}" --nnodes 2 --nproc_per_node 2 "$BUILD/examples/hello"
ends a b
is "$codes" "0 0" "workers of two nodes meet at one store"
agent a "${job[@]}" --nnodes 2 --nproc_per_node 2 --no_agent_store "$BUILD/examples/hello"
agent b "${job[@]}" --nnodes 2 --nproc_per_node 2 --no_agent_store "$BUILD/examples/hello"
ends a b
is "$codes $(cat a.out b.out)" "0 0 sum of 4 ranks: 6" \
    "or where rank 0 hosts it (--no_agent_store)"
fixed
for n in 0 1; do
    # shellcheck disable=SC2016
    agent $n "${job[@]}" --nnodes 2 --node_rank $n --no_agent_store sh -c \
        'echo $TORCHELASTIC_USE_AGENT_STORE; exec "$0"' "$BUILD/examples/hello"
done
ends 0 1
is "$codes $(cat 0.out 1.out | sort | paste -sd,)" "0 0 False,False,sum of 2 ranks: 1" \
    "and likewise with a static job"

# --- Failures ----------------------------------------------------------------

fixed
began=$SECONDS
for n in 0 1; do
    agent $n "${job[@]}" --nnodes 2 --node_rank $n --nproc_per_node 2 sh -c \
        'touch up.$RANK; [ $RANK = 3 ] || exec sleep 1000
        until [ -e up.0 ] && [ -e up.1 ] && [ -e up.2 ]; do sleep 0.01; done; exit 5'
done
ends 0 1
is "$codes" "1 1" "ELA-07 a failure ends both nodes"
ok "$((SECONDS - began > 20 * CK_TIMEOUT_MULTIPLIER))" "ELA-07 at once"
for n in 0 1; do
    like "$(cat $n.err)" 'FAILED: rank 3 \(local rank 1, pid [0-9]+, host .*\) failed first: exit code 5' \
        "ELA-07 node $n names the first cause"
done
like "$(cat 0.err)" 'ranks 0-1: stopped by crun with SIGTERM' "and whom it stopped"

dynamic
for n in a b; do
    agent $n "${job[@]}" --nnodes 2 --nproc_per_node 1 --max_restarts 2 sh -c \
        'echo "$TORCHELASTIC_RESTART_COUNT $TORCHELASTIC_MAX_RESTARTS" >>counts.'$n'
        [ $RANK = 0 ] || exec sleep 1000
        while [ ! -e counts.a ] || [ ! -e counts.b ] || [ $(sort -u counts.a counts.b | wc -l) -gt $(wc -l <counts.a) ] ||
            [ $(wc -l <counts.a) != $(wc -l <counts.b) ]; do sleep 0.01; done; exit 1'
done
ends a b
is "$codes" "1 1" "ELA-03 a worker that always fails"
is "$(cat counts.a)$(cat counts.b)" "0 2
1 2
2 20 2
1 2
2 2" "ELA-03 is started three times, with the same counts on both nodes"
like "$(cat a.err)" 'no restart is left of --max_restarts=2' "and that is said"

dynamic
for n in a b; do
    agent $n "${job[@]}" --nnodes 2 --exit_code cause sh -c \
        '[ $RANK = 1 ] || exec sleep 1000; kill -SEGV $$'
done
ends a b
is "$codes" "139 139" "--exit_code cause: of the whole job"

dynamic
agent a "${job[@]}" --nnodes 2 --max_restarts 3 sh -c 'exec sleep 1000'
wait_for 10 listens
agent b "${job[@]}" --nnodes 2 --max_restarts 3 ./nosuch
ends b
is "$codes" 1 "a program that is missing on one node"
kill "${pids[a]}"
ends a
is "$codes" 1 "a stop while others are waited for"

# --- Nodes that go and come ----------------------------------------------------

# until_lines FILE N: it has so many.
until_lines() { wait_for 30 eval "[[ -e $1 && \$(wc -l <$1) -ge $2 ]]"; }
loop='echo "$RANK/$WORLD_SIZE $TORCHELASTIC_RESTART_COUNT" >>log.$GROUP_RANK; until [ -e go ]; do sleep 0.02; done'
fresh() { rm -f log.* go; }

fresh
dynamic
agent a "${job[@]}" --nnodes 1:2 --max_restarts 3 sh -c "$loop"
wait_for 10 listens # the host of the coordinator has to stay
agent b "${job[@]}" --nnodes 1:2 --max_restarts 3 sh -c "$loop"
until_lines log.0 1
until_lines log.1 1
kill -TERM "${pids[b]}"
ends b
is "$codes" 1 "ELA-01 a node is stopped politely"
until_lines log.0 2
ok $? "ELA-01 the other one starts again, alone"
agent c "${job[@]}" --nnodes 1:2 --max_restarts 3 sh -c "$loop"
until_lines log.0 3
until_lines log.1 2
ok $? "ELA-01 a node that comes makes one more round"
touch go
ends a c
is "$codes" "0 0" "ELA-01 and all ends well"
is "$(paste -sd, log.0)" "0/2 0,0/1 0,0/2 0" "ELA-03 leaving and joining consume no restart"

fresh
dynamic
agent a "${job[@]}" --nnodes 1:3 --max_restarts 1 sh -c "$loop"
wait_for 10 listens
agent b "${job[@]}" --nnodes 1:3 --max_restarts 1 sh -c "$loop"
until_lines log.0 1
until_lines log.1 1
is "$(cat log.0 log.1 | paste -sd,)" "0/2 0,1/2 0" "ELA-06 two of three start after the last call"
agent c "${job[@]}" --nnodes 1:3 --max_restarts 1 sh -c "$loop"
until_lines log.0 2
until_lines log.2 1
is "$(cat log.0 | paste -sd,)" "0/2 0,0/3 0" "ELA-06 the third one makes exactly one new round"
agent d "${job[@]}" --nnodes 1:3 --max_restarts 1 sh -c "$loop"
wait_for 10 grep -q 'waits as a spare' d.err
ok $? "a fourth one waits as a spare"
kill -KILL "${pids[c]}"
{ wait "${pids[c]}"; } 2>/dev/null
until_lines log.2 2
ok $? "ELA-02 a node is lost: the spare takes its place"
is "$(tail -n 1 log.2)" "2/3 1" "ELA-02 which consumes a restart"
touch go
ends a b d
is "$codes" "0 0 0" "ELA-02 and all ends well"

# --- The end -----------------------------------------------------------------

bad=0
for _ in 1 2 3 4 5; do
    dynamic
    agent a "${job[@]}" --nnodes 2 true
    agent b "${job[@]}" --nnodes 2 sh -c 'sleep 0.05'
    ends a b
    [[ $codes == "0 0" ]] || ((++bad))
    grep -hv loopback a.err b.err && ((++bad))
done
is $bad 0 "ELA-10 whoever ends first, both end well and quietly"

# --- Who does not belong ---------------------------------------------------------

fixed
agent a "${job[@]}" --nnodes 2 --node_rank 0 true
wait_for 10 listens
agent b "${job[@]}" --nnodes 2 --node_rank 0 true
ends b
is "$codes" 1 "NODE-01 a node rank that is taken"
like "$(cat b.err)" "in use" "NODE-01 is refused"
agent c "${job[@]}" --nnodes 2 --node_rank 1 --max_restarts 4 true
ends c
is "$codes" 1 "a node with another --max_restarts is refused"
like "$(cat c.err)" 'refuses this node: --max_restarts is 4 there and 0' "and told why"
like "$(cat a.err)" 'is refused: --max_restarts is 4 there' "on both sides"
kill -TERM "${pids[a]}"
ends a
agent a "${job[@]}" --nnodes 2 --node_rank 0 --rdzv_conf timeout=2 true
ends a
is "$codes" 1 "NODE-05 a node that waits in vain ends"
like "$(cat a.err)" 'joined 1 of 2 nodes within 2 s' "NODE-05 with the reason"
agent d "${job[@]}" --nnodes 2 --node_rank 1 --rdzv_conf timeout=3 true
ends d
is "$codes" 1 "NODE-06 nobody is there (any more)"
like "$(cat d.err)" "coordinator at 127.0.0.1 port $port cannot be reached within 3 s: .*refused" \
    "NODE-06 is said after the time-out"
run "$CRUN" --nnodes 2 --rdzv_backend c10d ./w
is "$status" 2 "NODE-05 no endpoint is a mistake"
like "$err" 'rdzv_endpoint is needed' "NODE-05 which is named"
agent a --nnodes 2 --node_rank 1 --master_addr nosuch.invalid --rdzv_conf timeout=3 true
ends a
is "$codes" 1 "K8S-01 a name that never comes"
like "$(cat a.err)" 'nosuch.invalid port 29500 cannot be reached within 3 s: .*(unknown|not known|failure|family)' \
    "K8S-01 the resolver's message is told"

# --- Whoever stops -----------------------------------------------------------

for how in dynamic fixed; do
    $how
    rm -f up.*
    for n in 0 1; do
        agent $n "${job[@]}" --nnodes 2 --node_rank $n --max_restarts 3 \
            --report $n.json sh -c 'touch up.$RANK; exec sleep 1000'
        [[ $n == 1 ]] || wait_for 10 listens
    done
    wait_for 10 test -e up.0 -a -e up.1
    kill -TERM "${pids[0]}"
    ends 0 1
    is "$codes" "1 1" "the node that hosts the coordinator is stopped ($how)"
    like "$(cat 1.err)" 'the job has ended: node .*, which hosts the coordinator, was stopped: it received SIGTERM' \
        "and the other one is told"
    is "$(grep -c 'new round' 1.err)" 0 "and waits for nothing"
    like "$(cat 1.json)" '"reason": "node .*, which hosts the coordinator, was stopped' \
        "the report has it"
done
fixed
agent a "${job[@]}" --nnodes 2 --node_rank 0 true
wait_for 10 listens
agent b "${job[@]}" --nnodes 2 --node_rank 1 --no_agent_store true
ends b
is "$codes" 1 "a node with --no_agent_store, where the others have none, is refused"
like "$(cat b.err)" '--no_agent_store .* is given there and not at the coordinator' "with the reason"
kill -TERM "${pids[a]}"
ends a
fixed
agent a "${job[@]}" --nnodes 2 --node_rank 0 --rdzv_conf timeout=1 --report r.json true
ends a
like "$(cat r.json)" '"reason": "joined 1 of 2 nodes within 1 s"' "a report has the reason of a job that did not begin"

dynamic
rm -f up.* fail
for n in a b; do
    agent $n "${job[@]}" --nnodes 2 --exit_code cause sh -c \
        'touch up.$RANK; [ $RANK = 1 ] || exec sleep 1000
        until [ -e fail ]; do sleep 0.01; done; exit 42'
done
wait_for 10 test -e up.0 -a -e up.1
agent c "${job[@]}" --nnodes 2 --exit_code cause --report c.json true
wait_for 10 grep -q 'waits as a spare' c.err
touch fail
ends a b c
is "$codes" "42 42 42" "a spare ends as the job does (--exit_code cause)"
like "$(cat c.err)" 'FAILED: rank 1 .* failed first: exit code 42' "and tells why"
is "$(grep -c local_rank c.json)" 1 "but of no worker of its own"

# --- Mixed clusters ----------------------------------------------------------

port=$(free_port)
agent store --master_port "$port" sh -c 'until [ -e over ]; do sleep 0.02; done'
wait_for 10 listens
for args in "--node_rank 1 --master_addr 127.0.0.1 --master_port $port" \
    "--rdzv_backend c10d --rdzv_conf is_host=0 --rdzv_endpoint 127.0.0.1:$port"; do
    # shellcheck disable=SC2086
    agent a --nnodes 2 $args true
    ends a
    is "$codes" 1 "an endpoint that is a TCPStore"
    like "$(cat a.err)" "at 127.0.0.1 port $port there is no coordinator but a TCPStore, .* use crun on every node" \
        "is known as one at once"
done
touch over
ends store
is "$codes" 0 "and is not disturbed"

for how in dynamic fixed; do
    $how
    agent a "${job[@]}" --nnodes 2 --node_rank 0 true
    wait_for 10 listens
    MASTER_ADDR=127.0.0.1 MASTER_PORT=$port "$HELPERS/store_mark" key \
        >/dev/null 2>&1 &
    client=$!
    wait_for 20 grep -q 'no store is open here' a.err
    { kill -KILL $client; wait $client; } 2>/dev/null
    agent b "${job[@]}" --nnodes 2 --node_rank 1 true
    ends a b
    is "$codes" "0 0" "a TCPStore client at the coordinator's port ($how)"
    is "$(grep -c 'no store is open here; if that is torchrun on another node: use crun' a.err)" 1 \
        "is told of, once"
done
