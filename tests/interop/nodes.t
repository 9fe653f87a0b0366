#!/bin/bash
# Several nodes with the real PyTorch of one interpreter, PYTHON: its workers
# under agents that meet, and its torchrun on some of the nodes.
# scripts/interop runs this for each that it finds.
# shellcheck disable=SC2154
. "${BASH_SOURCE%/*}/../e2e/tap.sh"
. "${BASH_SOURCE%/*}/../e2e/agents.sh"

PYTHON=${PYTHON:-/usr/bin/python3}
WORKER=$ROOT/tests/interop/gloo_worker.py
plan 12
cd "$TMP" || exit 255

export OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE=1 PYTHON_EXEC=$PYTHON
export PYTHONWARNINGS=ignore TORCH_CPP_LOG_LEVEL=ERROR
export RES_OPTIONS="timeout:1 attempts:1"

# worked NAME...: how many ranks say that all went well.
worked() { cat "${@/%/.out}" | grep -c ' of 4 ok'; }
both=(--nnodes 2 --nproc_per_node 2)

port=$(free_port)
for n in 0 1; do
    agent $n "${both[@]}" --node_rank $n --master_addr 127.0.0.1 \
        --master_port "$port" "$WORKER"
done
ends 0 1
is "$codes $(worked 0 1)" "0 0 4" "static: gloo and DDP over two nodes" ||
    diag "$(cat 0.err 1.err)"

port=$(free_port)
dynamic=(--rdzv_backend c10d --rdzv_endpoint "127.0.0.1:$port"
    --rdzv_conf join_timeout=60)
for n in 0 1; do agent $n "${both[@]}" "${dynamic[@]}" "$WORKER"; done
ends 0 1
is "$codes $(worked 0 1)" "0 0 4" "dynamic: gloo and DDP over two nodes" ||
    diag "$(cat 0.err 1.err)"

# crund dies and comes back while they meet.
port=$(free_port)
dynamic=(--rdzv_backend c10d --rdzv_endpoint "127.0.0.1:$port"
    --rdzv_conf join_timeout=60,is_host=0)
crund_start()
{
    "$CRUND" --listen "127.0.0.1:$port" >/dev/null 2>>crund.err &
    crund=$!
}
crund_start
wait_for 20 listens
for n in 0 1; do agent $n "${both[@]}" "${dynamic[@]}" "$WORKER"; done
started() { [[ -n $(children_of "$(children_of "${pids[0]}")") ]]; }
wait_for 20 started
kill -KILL $crund
{ wait $crund; } 2>/dev/null
crund_start
ends 0 1
is "$codes $(worked 0 1)" "0 0 4" "crund dies and comes back meanwhile" ||
    diag "$(cat 0.err 1.err)"
kill $crund

# A worker fails once: the next round has a fresh store.
cat >once.py <<EOF2
import os, runpy, sys
if os.environ["RANK"] == "3" and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    sys.exit(3)
runpy.run_path("$WORKER", run_name="__main__")
EOF2
port=$(free_port)
for n in 0 1; do
    agent $n "${both[@]}" --node_rank $n --master_addr 127.0.0.1 \
        --master_port "$port" --max_restarts 1 once.py
done
ends 0 1
is "$codes $(worked 0 1)" "0 0 4" "a restart: the round after it works" ||
    diag "$(cat 0.err 1.err)"

# --- torchrun on the other node ----------------------------------------------

# torchrun_as NAME ARGS...: like agent.
torchrun_as()
{
    local name=$1
    shift
    "$PYTHON" -m torch.distributed.run "$@" >"$name.out" 2>"$name.err" \
        </dev/null &
    pids[$name]=$!
}
end() { kill -KILL "${pids[$1]}"; { wait "${pids[$1]}"; } 2>/dev/null; }

port=$(free_port)
torchrun_as t --nnodes 2 --node_rank 0 --master_addr 127.0.0.1 --master_port "$port" "$WORKER"
wait_for 60 listens
ok $? "torchrun hosts a static job"
agent a --nnodes 2 --node_rank 1 --master_addr 127.0.0.1 --master_port "$port" "$WORKER"
ends a
is "$codes" 1 "crun does not join it"
like "$(cat a.err)" 'there is no coordinator but a TCPStore, of torchrun .*use crun on every node' \
    "and says why"
end t

port=$(free_port)
agent a --nnodes 2 --node_rank 0 --master_addr 127.0.0.1 --master_port "$port" "$WORKER"
wait_for 20 listens
torchrun_as t --nnodes 2 --node_rank 1 --master_addr 127.0.0.1 --master_port "$port" "$WORKER"
told() { grep -q 'if that is torchrun on another node: use crun on every node' a.err; }
wait_for 60 told
ok $? "torchrun at crun's static job is told of"
end t
end a

port=$(free_port)
torchrun_as t --nnodes 2 --rdzv_backend c10d --rdzv_endpoint "127.0.0.1:$port" "$WORKER"
wait_for 60 listens
agent a --nnodes 2 --rdzv_backend c10d --rdzv_endpoint "127.0.0.1:$port" "$WORKER"
ends a
is "$codes" 1 "crun does not join a dynamic job of torchrun's"
like "$(cat a.err)" 'there is no coordinator but a TCPStore' "and says why"
end t

port=$(free_port)
agent a --nnodes 2 --rdzv_backend c10d --rdzv_endpoint "127.0.0.1:$port" "$WORKER"
wait_for 20 listens
torchrun_as t --nnodes 2 --rdzv_backend c10d --rdzv_endpoint "127.0.0.1:$port" "$WORKER"
wait_for 60 told
ok $? "torchrun at crun's dynamic job is told of"
end t
agent b --nnodes 2 --rdzv_backend c10d --rdzv_endpoint "127.0.0.1:$port" "$WORKER"
ends a b
is "$codes $(cat a.out b.out | grep -c ' of 2 ok')" "0 0 2" \
    "which goes on with a node of crun's" || diag "$(cat a.err b.err)"
