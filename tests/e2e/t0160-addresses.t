#!/bin/bash
# Where the workers meet: names and addresses of this machine, ports that
# were just in use, proxies that have nothing to do with it.
. "${BASH_SOURCE%/*}/tap.sh"
plan 17
cd "$TMP" || exit

hello=$EXAMPLES/hello
export OMP_NUM_THREADS=1 # or crun says that it sets it

# In a network of its own, where this machine has a second address, a name
# that only /etc/hosts knows, and a host name that nobody knows.
ns=(unshare -num)
[[ $EUID -eq 0 ]] || ns=(unshare -Urnum)
cat >hosts <<'END'
127.0.0.1 localhost
10.77.0.1 store.test.example store-alias
10.88.0.1 elsewhere
END
cat >inside <<'END'
ip link set lo up && ip addr add 10.77.0.1/24 dev lo || exit 9
hostname nobody-knows-me || exit 9
mount --bind hosts /etc/hosts || exit 9
exec "$@"
END
if "${ns[@]}" sh inside true 2>/dev/null; then
    for addr in 10.77.0.1 store-alias store.test.example localhost; do
        run "${ns[@]}" sh inside "$CRUN" --nproc_per_node=2 \
            --master_addr "$addr" sh -c "echo \$MASTER_ADDR && '$hello'"
        is "$status $(sort -u <<<"$out" | paste -sd' ')" \
            "0 $addr sum of 2 ranks: 1" "ENV-05 workers meet at $addr"
    done
    run "${ns[@]}" sh inside "$CRUN" --nproc_per_node=2 \
        --master_addr elsewhere touch started
    is "$status" 1 "the address of another machine is an error"
    like "$err" 'elsewhere.*no address of this machine' "and is named"
    [[ ! -e started ]]
    ok $? "nothing was started"
    run "${ns[@]}" sh inside "$CRUN" --nproc_per_node=2 \
        --master_addr no-such-name touch started
    is "$status" 1 "a name that does not resolve is an error"
    like "$err" 'no-such-name.*does not resolve' "and is named"
else
    skip 9 "no namespaces here"
fi

# Proxies are for other protocols.
for no_proxy in "" "*"; do
    run env http_proxy=http://127.0.0.1:9 https_proxy=http://127.0.0.1:9 \
        all_proxy=http://127.0.0.1:9 no_proxy="$no_proxy" \
        "$CRUN" --nproc_per_node=2 sh -c "echo \$all_proxy && '$hello'"
    is "$status $(sort -u <<<"$out" | paste -sd' ')" \
        "0 http://127.0.0.1:9 sum of 2 ranks: 1" \
        "ENV-09 proxies change nothing (no_proxy='$no_proxy')"
done

# A port that was in use a moment ago, also by a job that was killed.
run "$CRUN" --master_port 0 sh -c 'echo $MASTER_PORT'
port=$out
like "$port" '^[0-9]+$' "a free port"
bad=
for ((i = 0; i < 20; i++)); do
    if ((i % 2)); then
        "$CRUN" --master_port "$port" --nproc_per_node=4 sh -c \
            "echo >started.$i; exec sleep 60" 2>>first.err &
        job=$!
        wait_for 10 test -s "started.$i" || bad+=" $i:not-started"
        { kill -KILL "$job"; wait "$job"; } 2>/dev/null
    else
        "$CRUN" --master_port "$port" --nproc_per_node=4 "$hello" \
            >out 2>err || bad+=" $i:$(tail -n 1 err)"
    fi
done
is "$bad" "" "PORT-03 20 jobs on one port, every other one killed"
is "$(cat first.err)" "" "PORT-03 and nothing was said"

# That is no sharing of a port: a job that lives keeps it.
"$CRUN" --master_port "$port" sh -c 'echo >running; exec sleep 60' 2>job.err &
job=$!
wait_for 10 test -s running
ok $? "PORT-03 a job has the port: $(cat job.err)"
run "$CRUN" --master_port "$port" true
is "$status" 1 "PORT-03 another one does not get it"
like "$err" "$port.*in use" "PORT-03 and is told why"
{ kill -KILL "$job"; wait "$job"; } 2>/dev/null || true
