#!/bin/bash
# The training example: any number of processes trains the same model, all of
# them end alike, and what is wrong is told once.

. "${BASH_SOURCE%/*}/tap.sh"

TRAIN=$EXAMPLES/train_fashion
DATA=/usr/share/datasets/fashion-mnist
RUN_TIMEOUT=120

for file in train-images-idx3 train-labels-idx1 t10k-images-idx3 \
    t10k-labels-idx1; do
    [[ -r $DATA/$file-ubyte.gz ]] ||
        skip_all "no $DATA (Debian package dataset-fashion-mnist)"
done

# Sanitizers make the loops outside BLAS slow, so they get a small model and
# few steps: the same code runs. It need not be good then, but alike.
if [[ ${FLAVOR:-release} == release ]]; then
    size=(--epochs 2)
    enough=86
else
    size=(--epochs 1 --steps 60 --hidden 64)
    enough=40
fi

plan 63

# The number on the line that begins with a name.
value()
{
    awk -v name="$1" 'index($0, name) == 1 {
        sub(name " *", ""); print $1 }' <<<"$out"
}

# same_losses FILE FILE: the first 50 steps' losses, within 1e-4 relative.
same_losses()
{
    paste -d ' ' <(grep -m 50 '^step ' "$1") <(grep -m 50 '^step ' "$2") |
        awk '{ d = $4 - $8; if (d < 0) d = -d
               if (NF == 8 && $2 == NR && $6 == NR && d <= 1e-4 * $4) good++ }
             END { exit good != 50 }'
}

# at_least GOT LIMIT, within A B DISTANCE: decimal fractions.
at_least()
{
    awk -v got="$1" -v limit="$2" 'BEGIN { exit !(got + 0 >= limit) }'
}

within()
{
    awk -v a="$1" -v b="$2" -v distance="$3" 'BEGIN {
        d = a - b; exit !(a > 0 && b > 0 && d <= distance && -d <= distance) }'
}

# --- One model, whatever the number of processes

for n in 1 2 4; do
    run "$CRUN" --nproc_per_node=$n "$TRAIN" "${size[@]}" --log-steps
    is "$status" 0 "$n processes train" || diag "$err"
    echo "$out" >"$TMP/log.$n"
    accuracy[n]=$(value 'test accuracy')
    at_least "${accuracy[n]}" $enough
    ok $? "the accuracy of $n processes is at least $enough %"
    is "$(tail -n 3 <<<"$out" | sed 's/[0-9.]\+/N/')" \
        'test accuracy N %  (10000 images)
throughput    N images/s
processes     N' "$n processes end with the three lines of the result"
    is "$(value processes)" $n "the last line names $n processes"
    at_least "$(value throughput)" 1
    ok $? "the throughput of $n processes is a number"
    unlike "$out" $'\r' "no progress line where $n processes have no terminal"
done
for n in 2 4; do
    same_losses "$TMP/log.1" "$TMP/log.$n"
    ok $? "50 steps' losses of $n processes are those of one within 1e-4"
    within "${accuracy[1]}" "${accuracy[n]}" 0.5
    ok $? "the accuracy of $n processes is that of one within 0.5 points" ||
        diag "${accuracy[1]} and ${accuracy[n]}"
done

# Through NCCL: a double of it, whose device memory is the host's.
nccl=(env "LD_LIBRARY_PATH=$BUILD/fake_nccl" COLL_BACKEND=nccl
    FAKE_CUDA_DEVICES=2 FAKE_NCCL_DIR="$TMP")
run "${nccl[@]}" "$CRUN" --nproc_per_node=2 "$TRAIN" "${size[@]}" --steps 50 \
    --log-steps
is "$status" 0 "the same program trains through NCCL" || diag "$err"
echo "$out" >"$TMP/log.nccl"
same_losses "$TMP/log.1" "$TMP/log.nccl"
ok $? "50 steps' losses are the same through NCCL"
run "${nccl[@]}" FAKE_NCCL_FAULT=op_error:0:3:5 "$CRUN" --nproc_per_node=2 \
    "$TRAIN" "${size[@]}" --steps 50
like "$status $out$err" ' on GPU 0: NCCL says: ' "it is NCCL that they go through"

export WORLD_SIZE=1
run "$TRAIN" "${size[@]}" --steps 50 --log-steps
is "$status" 0 "one process needs no launcher" || diag "$err"
echo "$out" >"$TMP/log.alone"
same_losses "$TMP/log.1" "$TMP/log.alone"
ok $? "50 steps' losses are the same without a launcher"
run "$TRAIN" "${size[@]}" --steps 50 --log-steps --seed 2
echo "$out" >"$TMP/log.seed"
! same_losses "$TMP/log.1" "$TMP/log.seed"
ok $? "another seed gives other losses, which the comparison notices"
is "$(grep -c '^step ' <<<"$out")" 50 "--steps 50 makes 50 steps"

# --- Files

mkdir "$TMP/plain" "$TMP/short" "$TMP/other"
for file in "$DATA"/*.gz; do
    gunzip -c "$file" >"$TMP/plain/$(basename "$file" .gz)"
done
run "$TRAIN" "${size[@]}" --steps 50 --log-steps --data "$TMP/plain"
echo "$out" >"$TMP/log.plain"
same_losses "$TMP/log.1" "$TMP/log.plain"
ok $? "files that are not compressed are read as well"

cp "$DATA"/*.gz "$TMP/short"
head -c 1000000 "$DATA/train-images-idx3-ubyte.gz" \
    >"$TMP/short/train-images-idx3-ubyte.gz"
run "$TRAIN" --steps 1 --data "$TMP/short"
is "$status" 1 "a file that ends too early is an error"
like "$err" "short/train-images.*ends after [0-9]+ bytes, expected 47040016" \
    "it names the file, what it has and what it should have"

cp "$TMP"/plain/* "$TMP/other"
printf '\12' | dd of="$TMP/other/t10k-labels-idx1-ubyte" bs=1 seek=108 \
    conv=notrunc 2>/dev/null
run "$TRAIN" --steps 1 --data "$TMP/other"
is "$status" 1 "a label that is no class is an error"
like "$err" 'label 100 of t10k-labels-idx1-ubyte is 10, expected 0 to 9' \
    "it names the label and its place"

# --- Errors are told once, soon, by a status that is not 0

RUN_TIMEOUT=20
unset WORLD_SIZE

# told REGEX NAME: the last run failed in time with that message alone.
told()
{
    [[ $status -ne 0 && $status -ne 124 && $status -ne 137 ]]
    ok $? "$2: fails" || diag "status $status"
    is "$(grep -c '^train_fashion: ' <<<"$err")" 1 "$2: one message" ||
        diag "$err"
    like "$err" "^train_fashion: $1" "$2: the right one"
    is "$out" "" "$2: nothing on stdout"
}

mkdir "$TMP/fifo"
mkfifo "$TMP/fifo/train-images-idx3-ubyte.gz"
RUN_TIMEOUT=20 run "$TRAIN" --steps 1 --data "$TMP/fifo"
is "$status" 1 "a fifo among the data files: status 1"
like "$err" 'not a regular file' "a fifo among the data files is told"

run "$CRUN" --nproc_per_node=2 "$TRAIN" --data "$TMP/nowhere"
told "$TMP/nowhere/train-images-idx3-ubyte.gz: no such file.*install the \
Debian package dataset-fashion-mnist .*--data DIR" "no data set"

run "$CRUN" --nproc_per_node=3 "$TRAIN" --batch 241
told '--batch 241 cannot .* 3 processes; try --batch 243' \
    "batch that cannot be shared"

run "$CRUN" --nproc_per_node=2 "$TRAIN" --epoch-count 3
told 'unknown option --epoch-count' "unknown option"

# shellcheck disable=SC2016 # the worker's shell expands it
run "$CRUN" --nproc_per_node=3 bash -c '
    [[ $RANK -eq 1 ]] && set -- "$@" --data /nowhere
    exec "$@"' - "$TRAIN"
told '/nowhere/.*: no such file' "one rank of three without data set"

export WORLD_SIZE=1
for args in '--epochs 0' '--batch 12x' '--lr nan' '--momentum 1' \
    '--hidden 10,,10' '--seed -1' '--steps' 'extra'; do
    # shellcheck disable=SC2086 # words
    run "$TRAIN" $args
    is "$status" 2 "$args is a wrong use"
done
run "$TRAIN" --help
is "$status" 0 "--help succeeds"
like "$out" '^usage: train_fashion' "--help prints the usage"

# --- A terminal shows where an epoch is

export -n WORLD_SIZE
run script -qec "'$CRUN' --nproc_per_node=2 '$TRAIN' --steps 5" /dev/null
like "$out" $'\repoch +1  step 1/250 ' "a terminal has a progress line"
