#!/bin/bash
# Job files: --config.
. "${BASH_SOURCE%/*}/tap.sh"
plan 43

cd "$TMP" || exit 255
unset -v OMP_NUM_THREADS
printf '#!/bin/sh\nprintf "%%s|" "$WORLD_SIZE" "$@"\necho\n' >w
chmod +x w

cat >job.yaml <<'END'
# A job.
nproc_per_node: 2
max-restarts: 3
role: trainer
omp_num_threads: unset
program: ./w
args:
  - --epochs
  - 10
  - a b
END
run "$CRUN" --config job.yaml
is "$status $out" "0 2|--epochs|10|a b|
2|--epochs|10|a b|" "a job from a file"
run "$CRUN" --config=job.yaml sh -c 'echo "$TORCHELASTIC_MAX_RESTARTS $ROLE_NAME $#"'
is "$out" "3 trainer 0
3 trainer 0" "a program on the command line replaces program and args"
run "$CRUN" --nproc-per-node 1 --config job.yaml --role x sh -c \
    'echo "$WORLD_SIZE $ROLE_NAME"'
is "$out" "1 x" "the command line beats the file, wherever it stands"
run env PET_NPROC_PER_NODE=1 PET_ROLE=e "$CRUN" --config job.yaml \
    --role c sh -c 'echo "$WORLD_SIZE $ROLE_NAME"'
is "$out" "1 c" "the environment beats the file, the command line both"
run env PET_MAX_RESTARTS= "$CRUN" --config job.yaml --nproc_per_node 1 sh -c \
    'echo $TORCHELASTIC_MAX_RESTARTS'
is "$out" 3 "an empty variable does not"

# --- env ---
cat >env.yaml <<'END'
env:
  COLOUR: blue
  COUNT: 4
  EMPTY: ""
  FLAG: yes
program: sh
args: [-c, 'echo "$COLOUR $COUNT ${EMPTY-unset} $FLAG $KEPT $RANK"']
END
run env KEPT=k COLOUR=red EMPTY=full "$CRUN" --config env.yaml
is "$out" "blue 4  yes k 0" "values of env are set, the rest is inherited"

cat >pass.yaml <<'END'
env:
  PATH:
  "KEEP_*": ~
  NEW: n
program: sh
args: [-c, 'echo "${KEEP_A-unset} ${KEEP_B-unset} ${DROPPED-unset} $NEW $RANK"']
END
run env KEEP_A=a KEEP_B=b DROPPED=d "$CRUN" --config pass.yaml
is "$out" "a b unset n 0" "patterns choose what is inherited"
run env PET_ROLE=p TORCHELASTIC_RUN_ID=outer LANG=C "$CRUN" \
    --config pass.yaml env
is "$(grep -cE '^(PET_|LANG=)' <<<"$out")" 0 "PET_ variables are no exception"
like "$out" '^ROLE_NAME=p$' "though crun itself reads them"
unlike "$out" '^TORCHELASTIC_RUN_ID=outer' "what crun sets is crun's"
echo 'env: {RANK: 5, PET_NNODES: 9, OMP_NUM_THREADS: 6}' >own.yaml
run "$CRUN" --config own.yaml --nproc_per_node 2 sh -c \
    'echo "$RANK $OMP_NUM_THREADS"'
is "$(sort <<<"$out")$err" "0 6
1 6" "env cannot change a rank, sets no option, and OMP_NUM_THREADS counts"

# --- --dry_run prints a job file ---
run "$CRUN" --config job.yaml --dry_run
is "$status" 0 "--dry_run of a job file"
like "$out" '^max_restarts: 3$' "shows what it says"
echo "$out" >again.yaml
run "$CRUN" --config again.yaml --dry_run
is "$out" "$(cat again.yaml)" "and is a job file that says the same"
words=('' ' ' "a'b" 'a"b' '\' $'tab\there' $'line\nline' null '~' true 1 '#x'
    'a: b' '- x' '[a]' '&a' '*a' 'é' '${HOME}' '$$' 'a:' %x @x
    '“hi”' '…' '😀' $'a\u2028b' $'\u0085' $'\ufeffx' "q'“")
run "$CRUN" --dry_run --log_dir 'a b' --tee 0:3 --rdzv_id 007 \
    --log_line_prefix_template '${rank}: ' --standalone \
    --duplicate_stdout_filters 'a,,b' printf '<%s>' "${words[@]}"
echo "$out" >words.yaml
run "$CRUN" --config words.yaml --dry_run
is "$out" "$(cat words.yaml)" "with every kind of text"
sed -i '/^log_dir\|^tee/d' words.yaml
run "$CRUN" --config words.yaml
is "$out" "$(printf '<%s>' "${words[@]}")" "byte for byte"
run "$CRUN" --config pass.yaml --dry_run
echo "$out" >again.yaml
run env KEEP_A=a DROPPED=d "$CRUN" --config again.yaml
is "$out" "a unset unset n 0" "env is part of it"

# --- mistakes ---
# mistake WHERE-AND-WHAT TEXT: an error of usage, nothing started.
mistake()
{
    printf '%b' "$2" >bad.yaml
    run "$CRUN" --config bad.yaml sh -c 'touch started'
    [[ $status -eq 2 && $err == usage:* && ! -e started ]]
    ok $? "is an error: $2"
    like "$err" "^crun: error: bad\.yaml:$1" "told with its place: $2"
}
mistake "2:1: unknown key 'nproc'" 'role: x\nnproc: 2\n'
mistake "1:15: max_restarts='x': expected a number" 'max_restarts: x\n'
mistake '1:7: role: expected one value' 'role: [a]\n'
mistake '3:1: role is given twice' 'role: a\n\nrole: b\n'
mistake '1:7: an alias' 'role: *x\n'
mistake '2:1: a second document' 'role: a\n--- {}\n'
mistake '1:1: config belongs on the command line' 'config: other.yaml\n'
mistake '1:1: dry_run belongs on the command line' 'dry_run: true\n'
mistake '2:3: not YAML' 'role: a\n b: c\n'
mistake "1:9: nnodes='2:1'" 'nnodes: 2:1\n'
mistake "1:6: tee='9'" 'tee: 9\n'
run "$CRUN" --config nosuch.yaml true
is "$status" 2 "a job file that is not there"
like "$err" "--config='nosuch.yaml': .*No such file" "is named"
echo '# nothing' >empty.yaml
run "$CRUN" --config empty.yaml
like "$err" 'no program given' "a job file without a program"
run "$CRUN" --config /dev/zero true
is "$status" 2 "an endless file"
