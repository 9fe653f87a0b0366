#!/bin/bash
# A short run of the script chaos: four nodes train while machines, processes
# and cables fail. `make chaos` is the long one.
. "${BASH_SOURCE%/*}/tap.sh"

[[ -r /usr/share/datasets/fashion-mnist/train-images-idx3-ubyte.gz ]] ||
    skip_all "no data set (Debian package dataset-fashion-mnist)"

# Sanitizers see the same code in shorter tests.
[[ ${FLAVOR:-release} == release ]] ||
    skip_all "it takes long, and the release flavour has it"

export TMPDIR=$TMP SEEDS=14 DURATION=15 SETTLE=100
timeout --foreground -k 10 270 "$ROOT/tests/e2e/chaos" \
    >"$TMP/out" 2>"$TMP/err" </dev/null
status=$?
out=$(cat "$TMP/out")
err=$(cat "$TMP/err")
[[ $status -ne 77 ]] || skip_all "$out"
plan 4
is "$status" 0 "ELA the job ends well when the faults have ended" ||
    diag "$out$err"
like "$out" 'seed [0-9]+: [0-9]+ faults: ' "there were faults"
like "$out" 'nothing left behind' "nothing is left behind"
is "$err" "" "and the script has nothing to complain of"
