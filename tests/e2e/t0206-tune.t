#!/bin/bash
# Which algorithm an operation takes: coll_tune, and COLL_ALGORITHM.
. "${BASH_SOURCE%/*}/tap.sh"
. "${BASH_SOURCE%/*}/agents.sh"
plan 22
cd "$TMP" || exit 255
export OMP_NUM_THREADS=1
TUNE=$BUILD/coll_tune
few=(--time 0.001 --min-bytes 1K --max-bytes 64K --factor 64)

# tune RANKS BACKEND OPTION...
tune()
{
    COLL_BACKEND=$2 run timeout 120 "$CRUN" --nproc_per_node="$1" "$TUNE" \
        "${few[@]}" "${@:3}"
}

tune 3 shm
is "$status" 0 "coll_tune within a node" || diag "$err"
like "$out" '^# 3 ranks, ' "NCL-06 it prints the world size"
is "$(grep -c '^[a-z]' <<<"$out")" 16 "8 operations at two sizes"
like "$out" '^all_reduce +1024 +[0-9.]+  one_shot ' "it says what is taken"
like "$out" '^all_reduce +1024 .* two_shot [0-9.]+' "and how fast the others are"
like "$out" 'shm: two_shot of all_reduce, 65536 bytes, .*; not one_shot: for 24' \
    "and why"

tune 2 shm --alloc --operations all_reduce
like "$out" '^all_reduce +65536 +[0-9.]+  mapped ' "memory of coll_alloc()"
is "$(grep -c '^[a-z]' <<<"$out")" 2 "one operation"

tune 3 tcp --operations broadcast,all_gather,reduce
is "$status" 0 "coll_tune by messages" || diag "$err"
like "$out" '^broadcast .* eager .* chain [0-9.]+' "broadcast's"
like "$out" '^reduce .* eager .* gather .* ring .* pairwise [0-9.]+' "reduce's"

COLL_BACKEND=nodes RUN_TIMEOUT=120 run bash -c '
    for node in 0 1; do
        "$@" --nnodes=2 --node_rank=$node --nproc_per_node=2 \
            --master_addr=127.0.0.1 --master_port='"$(free_port)"' "$0" \
            --time 0.001 --min-bytes 4K --max-bytes 4K &
        pids+=($!)
    done
    wait ${pids[0]} && wait ${pids[1]}' "$TUNE" "$CRUN"
is "$status" 0 "coll_tune on two nodes" || diag "$err"
like "$out" '^all_reduce +4096 +[0-9.]+  hierarchical, .* flat [0-9.]+' \
    "how nodes work together"

tune 1 self
is "$status $out" "0 coll_tune: one rank alone has nothing to choose" "one rank"

run "$TUNE" --min-bytes 1M --max-bytes 1K
like "$status $err" '^2 .*--min-bytes=1048576 is more than --max-bytes=1024' \
    "sizes the wrong way round"
run "$TUNE" --operations all_reduce,sort
like "$status $err" '^2 .*"sort" is none of all_reduce, ' "unknown operation"
run "$TUNE" now
like "$status $err" "^2 .*unexpected argument 'now'" "unexpected argument"
run "$TUNE" --operations reduce
like "$status $err" '^1 coll_tune: .*WORLD_SIZE' "no launcher"

# --- COLL_ALGORITHM -----------------------------------------------------------

run env RANK=0 WORLD_SIZE=1 COLL_ALGORITHM=all_reduce:star "$HELPERS/coll_bits"
like "$status$err" '^1.*coll_init: COLL_ALGORITHM: "all_reduce:star" does not' \
    "an algorithm that there is not"
export COLL_BACKEND=tcp
run timeout 60 "$CRUN" --nproc_per_node=3 "$HELPERS/coll_bits"
usual=$out
COLL_ALGORITHM=all_reduce:pairwise run timeout 60 "$CRUN" --nproc_per_node=3 \
    "$HELPERS/coll_bits"
is "$status" 0 "an algorithm is forced" || diag "$err"
is "$([[ $out == "$usual" ]] || echo other)" other "its bits are other ones"
# shellcheck disable=SC2016 # for the workers
run timeout 60 "$CRUN" --nproc_per_node=2 sh -c \
    'COLL_ALGORITHM=all_reduce:$(test $RANK = 0 && echo ring || echo eager) \
    exec "$0"' "$HELPERS/coll_bits"
like "$status$err" '^1.*mismatch at .* with algorithms forced' \
    "ranks that were told differently"
