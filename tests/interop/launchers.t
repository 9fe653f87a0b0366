#!/bin/bash
# The same programs, linked to libcollective, under crun, the real torchrun of
# one interpreter, PYTHON, a real Slurm, by hand and alone: the same output
# everywhere. scripts/interop runs this for each PyTorch that it finds.
# shellcheck disable=SC2154,SC2034
. "${BASH_SOURCE%/*}/../e2e/tap.sh"
. "${BASH_SOURCE%/*}/../e2e/agents.sh"

PYTHON=${PYTHON:-/usr/bin/python3}
plan 19
cd "$TMP" || exit 255

export OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE=1
export PYTHONWARNINGS=ignore TORCH_CPP_LOG_LEVEL=ERROR
export RES_OPTIONS="timeout:1 attempts:1"
export COLL_TIMEOUT=60
limit_ms=$((10000 * ${CK_TIMEOUT_MULTIPLIER:-1}))

# What every launcher starts. First every operation, each element checked; then
# a sum whose bits tell in which order it was made, which must not depend on
# who is on which node. A rank that rank 2's death finds must not be ended by
# its launcher before it has said so.
cat >worker <<END
#!/bin/sh
'$HELPERS/coll_cases' all && COLL_DETERMINISTIC=1 exec '$HELPERS/coll_bits'
END
cat >dying <<END
#!/bin/sh
trap '' TERM
exec '$HELPERS/coll_die' 2 7 kill
END
chmod +x worker dying

# same STATUS NAME FILE...: 0, and what crun's workers print.
same()
{
    local status=$1 name=$2
    shift 2
    is "$status $(sort "$@")" "0 $wanted" "$name" ||
        diag "$(cat "${@/%.out/.err}")"
}

# told NAME FILE...: three ranks name the one that died, and nobody has waited
# until a time-out.
told()
{
    local name=$1 lines
    shift
    lines=$(grep -hE '^rank [013] error after [0-9]+ ms: .*rank 2 .*(is gone|died).* during all_reduce #8' "$@")
    is "$(grep -c . <<<"$lines")" 3 "$name: each survivor names the dead rank" ||
        diag "$(cat "$@" "${@/%.out/.err}")"
    is "$(awk -v limit="$limit_ms" '$5 > limit' <<<"$lines")" "" \
        "$name: within seconds"
}

# --- crun, by hand, alone -----------------------------------------------------

run "$CRUN" --nproc_per_node=4 ./worker
wanted=$(sort <<<"$out")
is "$status $(sed 's/[0-9a-f]\{16\}/HASH/' <<<"$wanted" | paste -sd,)" \
    "0 bits HASH,rank 0 of 4 ok,rank 1 of 4 ok,rank 2 of 4 ok,rank 3 of 4 ok" \
    "crun" || diag "$err"

port=$(free_port)
for n in 0 1; do
    agent $n --nnodes=2 --nproc_per_node=2 --node_rank=$n \
        --master_addr=127.0.0.1 --master_port="$port" ./worker
done
ends 0 1
same "${codes/0 0/0}" "crun, two nodes" 0.out 1.out

port=$(free_port)
for rank in 0 1 2 3; do
    env RANK=$rank WORLD_SIZE=4 LOCAL_RANK=$rank MASTER_ADDR=127.0.0.1 \
        MASTER_PORT="$port" ./worker >hand$rank.out 2>hand$rank.err &
    pids[hand$rank]=$!
done
ends hand0 hand1 hand2 hand3
same "${codes/0 0 0 0/0}" "by hand" hand?.out

run "$CRUN" --nproc_per_node=1 ./worker
one=$out
run env WORLD_SIZE=1 ./worker
is "$status $out" "0 $one" "alone, as with crun and one process" || diag "$err"
like "$out" '^rank 0 of 1 ok$' "alone: a world of one"
run ./worker
like "$status$err" '^1.*RANK and WORLD_SIZE are not set' \
    "nothing set: an error that says what to set"

# --- torchrun -----------------------------------------------------------------

# torchrun NAME ARGS...: like agent.
torchrun()
{
    local name=$1
    shift
    "$PYTHON" -m torch.distributed.run "$@" >"$name.out" 2>"$name.err" \
        </dev/null &
    pids[$name]=$!
}

# That of PyTorch 1.13 cannot start anything with the Python of Debian 12.
torchrun true --standalone --no_python true
ends true
if [[ $codes != 0 ]]; then
    skip 6 "this torchrun does not start 'true': $(tail -n 1 true.err)"
else
    torchrun alone --standalone --nproc_per_node=4 --no_python ./worker
    ends alone
    same "$codes" "torchrun" alone.out

    both=(--nnodes=2 --nproc_per_node=2)
    port=$(free_port)
    for n in 0 1; do
        torchrun static$n "${both[@]}" --node_rank=$n --master_addr=127.0.0.1 \
            --master_port="$port" --no_python ./worker
    done
    ends static0 static1
    same "${codes/0 0/0}" "torchrun, two nodes, static" static?.out

    # Older ones tell workers the name of this host, whatever it is.
    name=$("$PYTHON" -c 'import socket; print(socket.getfqdn())')
    local=(--local_addr=127.0.0.1)
    "$PYTHON" -m torch.distributed.run --help 2>&1 |
        grep -q -e --local.addr || local=()
    if [[ ${#local[@]} -eq 0 ]] && ! getent hosts "$name" >/dev/null; then
        skip 1 "this host's name, $name, does not resolve"
    else
        port=$(free_port)
        for n in 0 1; do
            torchrun c10d$n "${both[@]}" --rdzv_backend=c10d --rdzv_id=job \
                --rdzv_endpoint="127.0.0.1:$port" "${local[@]}" \
                --no_python ./worker
        done
        ends c10d0 c10d1
        same "${codes/0 0/0}" "torchrun, two nodes, c10d" c10d?.out
    fi

    torchrun dying --standalone --nproc_per_node=4 --no_python ./dying
    ends dying
    is "$codes" 1 "torchrun: a rank is killed, the job fails"
    told "torchrun" dying.out
fi

# --- Slurm --------------------------------------------------------------------
#
# A cluster of two nodes with a cable between them, each with a host name and a
# network of its own. All of it is in namespaces that nothing survives, with
# ports, a munge key and a configuration that are nobody else's.
cat >slurm <<'EOF2'
cd "$1" || exit
unset "${!SLURM_@}"
hostname n1
printf '%s\n' '127.0.0.1 localhost' '10.99.0.1 n1' '10.99.0.2 n2' >hosts
mount --bind hosts /etc/hosts || exit
unshare -nu sh -c 'touch apart; exec sleep 1000' &
b=$!
until [[ -e apart ]]; do sleep 0.02; done
in_b() { nsenter -t $b -n -u "$@"; }
in_b hostname n2 && ip link add v0 type veth peer name v0 netns $b &&
    ip addr add 10.99.0.1/24 dev v0 && ip link set lo up &&
    ip link set v0 up && in_b ip addr add 10.99.0.2/24 dev v0 &&
    in_b ip link set lo up && in_b ip link set v0 up || exit

mkdir state
cat >slurm.conf <<END
ClusterName=test
SlurmctldHost=n1
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket=$PWD/munge
StateSaveLocation=$PWD/state
SlurmdSpoolDir=$PWD/spool-%n
SlurmctldPidFile=$PWD/ctld.pid
SlurmdPidFile=$PWD/slurmd-%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=2
MpiDefault=none
SwitchType=switch/none
SlurmdParameters=config_overrides
NodeName=n[1-2] CPUs=4 State=UNKNOWN
PartitionName=p Nodes=ALL Default=YES State=UP OverSubscribe=FORCE:4
END
export SLURM_CONF=$PWD/slurm.conf
(umask 077 && head -c 128 /dev/urandom >munge.key)
munged --foreground --force --socket="$PWD/munge" \
    --key-file="$PWD/munge.key" --pid-file="$PWD/munge.pid" \
    --log-file="$PWD/munge.log" --seed-file="$PWD/munge.seed" \
    >munged.log 2>&1 &
until [[ -S munge ]]; do sleep 0.02; done
slurmctld -D >slurmctld.log 2>&1 &
slurmd -D -N n1 >slurmd-n1.log 2>&1 &
in_b slurmd -D -N n2 >slurmd-n2.log 2>&1 &
until [[ $(sinfo -h -t idle -o %D 2>/dev/null) == 2 ]]; do sleep 0.1; done

# job NAME PROGRAM OPTIONS...: what users write who have no other launcher.
job()
{
    local name=$1 program=$2
    shift 2
    # shellcheck disable=SC2016 # for the tasks' shells
    srun "$@" sh -c '
        RANK=$SLURM_PROCID WORLD_SIZE=$SLURM_NTASKS LOCAL_RANK=$SLURM_LOCALID \
        MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1) \
        MASTER_PORT=29500 exec "$0" "$@"' "$program" \
        >"$name.out" 2>"$name.err" </dev/null
    echo $? >"$name.status"
}
job srun ./worker -N2 -n4
job srun-one ./worker -N1 -n4
job srun-cyclic ./worker -N2 -n4 --distribution=cyclic
job srun-dying ./dying -N2 -n4
srun -N2 -n2 hostname | sort >hostnames
EOF2

why=
for program in srun slurmctld slurmd munged ip nsenter; do
    command -v $program >/dev/null || why+="${why:+, }no $program"
done
[[ $EUID -eq 0 ]] || why=${why:-"a Slurm of its own needs root"}
ns=(unshare -mnpuf --mount-proc --kill-child)
[[ -n $why ]] || "${ns[@]}" true 2>/dev/null || why="no namespaces here"
if [[ -n $why ]]; then
    skip 7 "$why"
    exit
fi
RUN_TIMEOUT=115 run "${ns[@]}" bash slurm "$TMP"
is "$status $(paste -sd, hostnames)" "0 n1,n2" "a Slurm of two nodes" ||
    diag "$out$err$(tail -n 20 -- munged.log slurm*.log)"
same "$(cat srun.status)" "srun, two nodes" srun.out
same "$(cat srun-one.status)" "srun, one node" srun-one.out
same "$(cat srun-cyclic.status)" "srun, ranks in turn" srun-cyclic.out
is "$(cat srun-dying.status)" 137 "srun: a rank is killed, the job fails"
told "srun" srun-dying.out
