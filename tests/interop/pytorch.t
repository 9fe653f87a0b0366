#!/bin/bash
# The store and the launcher against the real PyTorch of one interpreter,
# PYTHON. scripts/interop runs this for each that it finds.
# shellcheck disable=SC2154
#
# PyTorch's processes and crun's own play both parts: its clients and workers
# use crund's store, and libcollective's client uses a store that it hosts.
. "${BASH_SOURCE%/*}/../e2e/tap.sh"

PYTHON=${PYTHON:-/usr/bin/python3}
HERE=$ROOT/tests/interop
# Rounds of gloo workers through fresh stores behind one port.
ROUNDS=50
plan 12

export OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE=1
# Silent about numpy, where there is none, and about each time-out.
export PYTHONWARNINGS=ignore TORCH_CPP_LOG_LEVEL=ERROR
# Every connection of its clients begins with a reverse look-up of the address,
# for which nobody should wait long where the DNS is slow or out of reach.
export RES_OPTIONS="timeout:1 attempts:1"

# is_tap NAME PROGRAM ARGS...: runs a program that prints TAP and passes if it
# ends with 0. Its lines are shown as those of a subtest.
is_tap()
{
    local name=$1 lines
    shift
    # A limit for programs whose every wait has its own, shorter one.
    RUN_TIMEOUT=120 run "$@"
    lines=$(grep -cE '^(not )?ok ' <<<"$out")
    while IFS= read -r line; do
        printf '    %s\n' "$line"
    done <<<"$out"
    [[ $status -eq 0 && $lines -gt 0 ]]
    ok $? "$name: $lines assertions" && return
    diag "status $status"
    diag "$(grep -A 1 '^not ok' <<<"$out")"
    diag "$err"
    return 1
}

# Of the versions before 2.2, which do not say what they are, crund takes a
# client for the older kind unless told otherwise.
old=()
version=$("$PYTHON" -c 'import torch; print(torch.__version__)')
[[ $version != 2.1.* ]] || old=(--old-clients 2.1)

# start_crund: sets $host, $port and $crund, its process.
start_crund()
{
    local address=
    [[ -p $TMP/ready ]] || mkfifo "$TMP/ready"
    "$BUILD/crund" --listen 127.0.0.1:0 --ready-fd 3 "${old[@]}" \
        3>"$TMP/ready" >"$TMP/crund.out" 2>"$TMP/crund.err" </dev/null &
    crund=$!
    read -r address <"$TMP/ready"
    host=${address%:*}
    port=${address##*:}
    [[ $host == 127.0.0.1 && $port -gt 0 ]]
}

# end_crund: sets $status.
end_crund()
{
    kill -TERM "$crund"
    wait "$crund"
    status=$?
}

# meet_there: ranks of libcollective, by hand, at the store at $port. Rank 0
# comes last, so that the others wait for what it writes.
meet_there()
{
    local rank pids=() bad=0
    for rank in 3 2 1 0; do
        env RANK=$rank LOCAL_RANK=$rank WORLD_SIZE=4 MASTER_ADDR=127.0.0.1 \
            MASTER_PORT="$port" TORCHELASTIC_USE_AGENT_STORE=True \
            COLL_TIMEOUT=60 "$HELPERS/coll_check" &
        pids+=($!)
    done
    for rank in 0 1 2 3; do
        wait "${pids[rank]}" || bad=1
    done
    return $bad
}

# two_ranks: the workers as any launcher would start them, by hand. Prints what
# they print.
two_ranks()
{
    local rank pids=() bad=0
    for rank in 0 1; do
        env RANK=$rank LOCAL_RANK=$rank WORLD_SIZE=2 MASTER_ADDR="$host" \
            MASTER_PORT="$port" TORCHELASTIC_USE_AGENT_STORE=True \
            TORCHELASTIC_RESTART_COUNT=0 \
            "$PYTHON" "$HERE/gloo_worker.py" &
        pids+=($!)
    done
    for rank in 0 1; do
        wait "${pids[rank]}" || bad=1
    done
    return $bad
}

# host_store KIND: a store of PyTorch's; sets $port and $store, its process.
# Fails if this build has no such server.
host_store()
{
    port=
    [[ -p $TMP/port ]] || mkfifo "$TMP/port"
    "$PYTHON" "$HERE/host_store.py" "$1" \
        >"$TMP/port" 2>"$TMP/store.err" </dev/null &
    store=$!
    read -r port <"$TMP/port"
    [[ -n $port ]]
}

start_crund
ok $? "crund tells its address when it listens" || diag "$(cat "$TMP/crund.err")"
is_tap "this PyTorch's client against crund" \
    "$PYTHON" "$HERE/store_ops.py" "$host" "$port"
end_crund
is "$status" 0 "TERM ends crund" || diag "$(cat "$TMP/crund.err")"

start_crund
two_ranks >"$TMP/ranks" 2>&1
is "$? $(sort "$TMP/ranks" | paste -sd,)" \
    "0 rank 0 of 2 ok,rank 1 of 2 ok" \
    "gloo, two ranks by hand: groups, all_reduce, DDP, an orderly end" ||
    diag "$(cat "$TMP/crund.err")"
end_crund
is "$status" 0 "TERM ends crund after that" || diag "$(cat "$TMP/crund.err")"

run "$CRUN" --standalone --nproc_per_node=2 --no_python \
    "$PYTHON" "$HERE/gloo_worker.py"
is "$status $(sort <<<"$out" | paste -sd,) $err" \
    "0 rank 0 of 2 ok,rank 1 of 2 ok " \
    "the same under crun, without a word of complaint"

is_tap "one file for this PyTorch's FileStore and libcollective's" \
    "$PYTHON" "$HERE/file_store.py" "$BUILD/interop/file_ops"

is_tap "$ROUNDS rounds of gloo through fresh stores behind one port" \
    "$PYTHON" "$HERE/gloo_rounds.py" "$BUILD/interop/store_rounds" "$ROUNDS"

for kind in legacy libuv; do
    if host_store "$kind"; then
        is_tap "libcollective's client against this PyTorch's $kind store" \
            "$BUILD/interop/store_ops" 127.0.0.1 "$port"
        meet_there >"$TMP/ranks" 2>&1
        is "$? $(grep -c 'of 4 ok' "$TMP/ranks")" "0 4" \
            "four ranks of libcollective meet there" ||
            diag "$(cat "$TMP/ranks")"
        kill "$store"
        wait "$store" 2>/dev/null
        continue
    fi
    wait "$store"
    if [[ $? -eq 77 ]]; then
        skip 2 "this PyTorch has no $kind store"
    else
        ok 1 "a $kind store of this PyTorch" || diag "$(cat "$TMP/store.err")"
        skip 1 "there is none"
    fi
done
