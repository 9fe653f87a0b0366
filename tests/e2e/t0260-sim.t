#!/bin/bash
# The machines of a job of several nodes under faults, on a virtual clock:
# hundreds of seeds. `make sim` runs many more, and ten thousand nodes.
. "${BASH_SOURCE%/*}/tap.sh"

plan 9
sim=$BUILD/sim

run "$sim" --seeds 1:600
is "$status" 0 "no seed of 600 violates an invariant" || diag "$out"
like "$out" '^600 seeds: .* trace [0-9a-f]{16}$' "one line says what ran"
first=$out
run "$sim" --seeds 1:600
is "$out" "$first" "a seed tells all of a run"
run "$sim" --seeds 601:1200
[[ ${out##* } != "${first##* }" ]]
ok $? "other seeds are other runs"

run "$sim" --seed 1 --nodes 300 --faults none
is "$status" 0 "300 nodes start with messages in proportion" || diag "$out"
run "$sim" --seeds 1:3 --nodes 300 --faults all --until 20
is "$status" 0 "300 nodes get through all faults" || diag "$out"
run "$sim" --seeds 1:200 --faults leave,join
is "$status" 0 "ELA nodes that come and go consume no restart" || diag "$out"
run "$sim" --seeds 1:200 --faults coord-crash,crash --until 30
is "$status" 0 "a coordinator and nodes that die lose no count" || diag "$out"
run "$sim" --seeds 5
is "$status" 2 "a mistyped option is refused"
