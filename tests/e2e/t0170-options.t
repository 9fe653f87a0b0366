#!/bin/bash
# crun's command line: torchrun's rules, its PET_ variables, its modes of a
# single node, --dry_run, --help and completion.
. "${BASH_SOURCE%/*}/tap.sh"
plan 100

cd "$TMP" || exit 255
unset -v OMP_NUM_THREADS

# value NAME: what --dry_run printed for an option.
value()
{
    sed -n "s/^$1: //p" <<<"$out"
}

# var NAME: and for a variable of the first worker.
var()
{
    sed -n "s/^#   $1=//p" <<<"$out" | head -n 1
}

# --- ARG-01: what follows the program is its own ---
printf '#!/bin/sh\nprintf "%%s\\n" "$@"\n' >echoargs
chmod +x echoargs
run "$CRUN" --standalone --nproc-per-node 1 --no-python ./echoargs \
    --log x --r=16 --mo 0.9 --nproc 3 -t
is "$status $out" "0 --log
x
--r=16
--mo
0.9
--nproc
3
-t" "ARG-01: options after the program are its own, prefixes or not"
is "$err" "" "ARG-01: without a message"
run "$CRUN" -- ./echoargs -- x -h
is "$out" "--
x
-h" "ARG-01: the first -- ends the options, a later one is an argument"

# --- ARG-02: spellings ---
run "$CRUN" sh -c 'echo "$# $LOCAL_RANK"' sh
is "$out" "0 0" "ARG-02: nothing is added to the arguments"
help=$("$CRUN" --help)
names=$(grep -oE '^ +(-., )?--[a-z_]+' <<<"$help" | grep -oE '[a-z_]+$')
like "$names" '^duplicate_stderr_filters$' "ARG-02: --help lists the options"
declare -A values=([rdzv_conf]=timeout=5 [crash_loop]=3:10 [tee]=3
    [redirects]=1 [start_method]=fork [exit_code]=cause [log_dir]=/l
    [rdzv_endpoint]=h:1 [rdzv_backend]=c10d [node_rank]=0 [nnodes]=1:1
    [local_ranks_filter]=0 [signals_to_handle]=TERM [logs_specs]=default
    [event_log_handler]=null [store_allow]=10.0.0.0/8)
differ='' seen=0
for name in $names; do
    case $name in
    help | version | print_completion | config | dry_run | run_path | \
        numa_binding | report_bindings) continue ;;
    esac
    words=("--$name")
    ! grep -qE -- "--$name [^ ]" <<<"$help" ||
        words=("--$name" "${values[$name]-1}")
    one=$("$CRUN" --dry_run "${words[@]}" true 2>&1)
    words[0]=${words[0]//_/-}
    two=$("$CRUN" --dry-run "${words[@]}" true 2>&1)
    # The clock of warnings.
    one=${one//[0-9][0-9]:[0-9][0-9]:[0-9][0-9].[0-9][0-9][0-9]/}
    two=${two//[0-9][0-9]:[0-9][0-9]:[0-9][0-9].[0-9][0-9][0-9]/}
    [[ $one == "$two" ]] && grep -q "^$name: \|^#" <<<"$one" ||
        differ+=" $name"
    ((++seen))
done
is "$differ" "" "ARG-02: dashes and underscores are the same, option by option"
[[ $seen -gt 35 ]]
ok $? "ARG-02: for more than 35 options ($seen)"
run "$CRUN" --dry_run --nproc_per-node=2 true
is "$(value nproc_per_node)" 2 "ARG-02: mixed spellings too"

# --- abbreviations, values ---
for words in "--nproc-per 2" "--nproc_per 2" "--nproc 2" "--np=2"; do
    # shellcheck disable=SC2086 # two words
    run "$CRUN" --dry_run $words true
    is "$(value nproc_per_node)" 2 "abbreviation $words"
done
run "$CRUN" --dry_run --nno 1:1 --rdzv-b c10d --stand true
is "$(value nnodes) $(value rdzv_backend) $(value standalone)" \
    "1:1 c10d true" "--nno, --rdzv-b, --stand"
run "$CRUN" --dry_run --re 3 --t 1 true
is "$(value redirects) $(value tee)" "3 1" \
    "options that torchrun lacks do not make its abbreviations ambiguous"
for words in "-r 3" -r3 -r=3; do
    # shellcheck disable=SC2086 # one or two words
    run "$CRUN" --dry_run $words true
    is "$(value redirects)" 3 "short option $words"
done
run "$CRUN" --dry_run --max_restarts=1 --max-restarts 2 true
is "$(value max_restarts)" 2 "the last one wins"
run "$CRUN" --dry_run --role 'a b: #' true
is "$(value role)" '"a b: #"' "a value with blanks"
is "$(var ROLE_NAME)" "'a b: #'" "as the worker has it"

# --- ARG-03 ---
mkdir 'my dir'
cp echoargs 'my dir/w'
run "$CRUN" --standalone --nproc-per-node 2 --log-dir "$TMP/l d" --no-python \
    './my dir/w' 'a b' "c'd" '$HOME' '*' '' --x='y z'
direct=$('./my dir/w' 'a b' "c'd" '$HOME' '*' '' --x='y z')
is "$out" "$direct
$direct" "ARG-03: arguments arrive as they were typed"
run "$CRUN" --dry_run --log-dir "$TMP/l d" true
is "$(value log_dir)" "\"$TMP/l d\"" "ARG-03: a folder with a blank is one"

# --- ${local_rank} ---
run "$CRUN" --nproc_per_node=2 ./echoargs --local-rank='${local_rank}' \
    '$local_rank.x' '$local_ranks' '$$' '$${local_rank}' '${rank}'
is "$(sort -u <<<"$out")" "$(printf '%s\n' --local-rank=0 --local-rank=1 0.x \
    1.x '$local_ranks' '$$' '$${local_rank}' '${rank}' | sort)" \
    'local_rank is replaced in arguments, $$ is left alone'

# --- ENV-01 ---
if command -v python3 >/dev/null; then
    mkdir -p venv/bin other
    printf '#!/bin/sh\nWHO=venv exec %s "$@"\n' "$(command -v python3)" \
        >venv/bin/python3
    printf '#!/bin/sh\nWHO=other exec %s "$@"\n' "$(command -v python3)" \
        >other/python
    chmod +x venv/bin/python3 other/python
    echo 'import os, sys; print(os.environ["WHO"], sys.stdout.write_through)' \
        >show.py
    run env PATH="$TMP/venv/bin:$PATH" "$CRUN" --standalone show.py
    is "$out" "venv True" "ENV-01: the interpreter of PATH, with -u"
    run env PATH="$TMP/venv/bin:$PATH" PYTHON_EXEC="$TMP/other/python" \
        "$CRUN" --standalone show.py
    is "$out" "other True" "ENV-01: PYTHON_EXEC is stronger"
else
    skip 2 "no python3 here"
fi
echo >show.py
run env PATH=/nowhere "$CRUN" --standalone --max_restarts 3 show.py
is "$status" 1 "ENV-01: no Python anywhere is an error"
is "$(grep -c 'no python3 on PATH' <<<"$err")" 1 "ENV-01: told once"
run "$CRUN" --dry_run show.py
is "$status" "$(command -v python3 >/dev/null; echo $?)" \
    "ENV-01: --dry_run looks for it too"

# --- ENV-02 ---
omp='echo ${OMP_NUM_THREADS-unset}'
run "$CRUN" sh -c "$omp"
is "$out$err" unset "ENV-02: one worker: unset, silent"
run "$CRUN" --nproc_per_node=2 sh -c "$omp"
is "$(sort -u <<<"$out") $(grep -c OMP_NUM <<<"$err")" "1 1" \
    "ENV-02: two workers: 1, one warning"
run env OMP_NUM_THREADS=7 "$CRUN" --nproc_per_node=2 sh -c "$omp"
is "$(sort -u <<<"$out")$err" 7 "ENV-02: what is set stays"
run env OMP_NUM_THREADS= "$CRUN" --nproc_per_node=2 sh -c "$omp"
is "$(sort -u <<<"$out")$err" "" "ENV-02: what is empty stays empty"
run "$CRUN" --nproc_per_node=2 --omp_num_threads 3 sh -c "$omp"
is "$(sort -u <<<"$out")$err" 3 "--omp_num_threads N"
run "$CRUN" --nproc_per_node=2 --omp_num_threads unset sh -c "$omp"
is "$(sort -u <<<"$out")$err" unset "--omp_num_threads unset"
cpus=$(nproc)
run "$CRUN" --omp_num_threads cores sh -c "$omp"
is "$out$err" "$cpus" "--omp_num_threads cores"
run "$CRUN" --nproc_per_node $((cpus + 1)) --omp_num_threads cores sh -c "$omp"
is "$(sort -u <<<"$out")$err" 1 "at least 1"

# --- K8S-02: variables ---
run env PET_NPROC_PER_NODE=3 PET_STANDALONE=1 "$CRUN" sh -c 'echo $WORLD_SIZE'
is "$out" "3
3
3" "K8S-02: PET_NPROC_PER_NODE=3"
run env PET_NPROC_PER_NODE=3 "$CRUN" --nproc-per-node 2 sh -c 'echo $WORLD_SIZE'
is "$out" "2
2" "K8S-02: the command line wins"
run env PET_STANDALONE=0 "$CRUN" --dry_run true
is "$status,$(value standalone)" "0," "K8S-02: PET_STANDALONE=0 is off"
run env PET_STANDALONE=true "$CRUN" --dry_run true
is "$(value standalone)" true "K8S-02: PET_STANDALONE=true"
run env PET_STANDALONE= PET_NPROC_PER_NODE= "$CRUN" --dry_run true
is "$status,$(value standalone)" "0," "K8S-02: an empty one is the same as none"
run env PET_NNODES=1:2 PET_STANDALONE=1 "$CRUN" sh -c 'echo $WORLD_SIZE'
is "$out" 1 "K8S-02: a range of nodes is accepted"
for bad in PET_MAX_RESTARTS=x PET_NNODES=a PET_STANDALONE=maybe \
    PET_START_METHOD=foo PET_NPROC_PER_NODE=0 PET_TEE=9; do
    run env "$bad" "$CRUN" true
    is "$status" 2 "K8S-02: $bad is a mistake"
    like "$err" "error: ${bad%=*}[=:]" "K8S-02: that names it"
done
run env PET_MAX_RESTARTS=x "$CRUN" --max_restarts 1 --dry_run true
is "$status" 0 "K8S-02: unless the command line says otherwise"
run env PET_NNODES=1 PET_NODE_RANK=0 PET_MASTER_ADDR=localhost \
    PET_MASTER_PORT=29500 PET_NPROC_PER_NODE=auto "$CRUN" --dry_run true
is "$(var MASTER_ADDR):$(var MASTER_PORT) $(var TORCHELASTIC_RUN_ID)" \
    "localhost:29500 none" "K8S-02: the variables of Kubeflow's Trainer"

# --- NODE-02 ---
for rank in 2 29500 -1; do
    run "$CRUN" --nnodes 2 --node-rank "$rank" true
    is "$status" 2 "NODE-02: --node-rank $rank of 2 is an error"
    like "$err" "node_rank='$rank': expected 0 to 1" \
        "NODE-02: that names the value and the range"
done
run "$CRUN" --dry_run --node-rank 1 --node-rank 0 true
is "$(value node_rank)" 0 "NODE-02: the last one wins"

# --- PORT-05, and the modes of one node ---
run "$CRUN" --rdzv-backend c10d --rdzv-endpoint localhost:0 sh -c \
    'echo $((MASTER_PORT > 0)) $TORCHELASTIC_USE_AGENT_STORE'
is "$out" "1 True" "PORT-05: c10d with port 0"
run "$CRUN" --master-port 0 sh -c 'echo $((MASTER_PORT > 0))'
is "$out" 1 "PORT-05: --master-port 0"
for words in "--master-port 0" "--rdzv-endpoint localhost:0" \
    "--rdzv-backend c10d --rdzv-endpoint localhost:0"; do
    # shellcheck disable=SC2086 # words
    run "$CRUN" --nnodes 2 $words true
    is "$status" 2 "PORT-05: two nodes with $words are refused"
    like "$err" 'port 0 .*cannot know' "PORT-05: with the reason"
done

# mode WANT OPTIONS...: where workers meet.
mode()
{
    local want=$1
    shift
    run "$CRUN" --dry_run "$@" true
    is "$(var MASTER_ADDR):$(var MASTER_PORT) $(var TORCHELASTIC_RUN_ID)" \
        "$want" "mode of: $*"
}
mode "127.0.0.1:'<free port>' '<random>'" --nproc_per_node 1
mode "127.0.0.1:'<free port>' '<random>'" --standalone --rdzv_backend etcd
mode "127.0.0.1:'<free port>' job7" --rdzv_id job7
mode "127.0.0.1:'<free port>' job7" --rdzv_backend c10d --rdzv_id job7 \
    --rdzv_endpoint localhost:29400
mode "127.0.0.1:29513 none" --master_port 29513
mode "node0:29511 none" --rdzv_endpoint node0:29511 --master_port 1
mode "::1:29511 job7" --rdzv_endpoint '[::1]:29511' --rdzv_id job7
run "$CRUN" --no_agent_store sh -c 'echo $TORCHELASTIC_USE_AGENT_STORE'
is "$out" False "--no_agent_store"
run env TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 "$CRUN" sh -c \
    'echo $TORCHELASTIC_USE_AGENT_STORE'
is "$out" False "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1"

# --- what has no meaning here ---
run "$CRUN" --monitor_interval 5 --start_method fork \
    --event_log_handler console true
is "$status $(grep -c 'has no effect' <<<"$err")" "0 3" \
    "options without an effect are told, a line each"
run "$CRUN" --event_log_handler null --logs_specs default --use_env \
    --standalone true
is "$status$err" 0 "or accepted in silence"
run env TORCHELASTIC_HEALTH_CHECK_PORT=1 "$CRUN" true
is "$status $(grep -c TORCHELASTIC_HEALTH_CHECK_PORT <<<"$err")" "0 1" \
    "there is no health check server, in one line"
run "$CRUN" --rdzv_conf nosuch=1 true
is "$status $(grep -c nosuch <<<"$err")" "0 1" "an unknown key of --rdzv_conf"

# --- --dry_run ---
run "$CRUN" --dry_run --nproc_per_node=2 ./echoargs 'a b' '${local_rank}'
is "$status $(grep -c '^# rank' <<<"$out")" "0 2" "--dry_run shows each worker"
like "$out" "^#   ./echoargs 'a b' 1$" "its command, as a shell takes it"
like "$out" "^#   LOCAL_RANK=1$" "and its variables"
run "$CRUN" --dry_run sh -c 'touch started'
[[ $status -eq 0 && ! -e started ]]
ok $? "and starts nothing"
run "$CRUN" --dry_run nosuch
is "$status" 1 "--dry_run of a program that is not there"

# --- --help, completion ---
like "$help" '^restarts and stops:$' "--help has groups"
like "$help" '\(default 0; PET_MAX_RESTARTS\)$' "defaults and variables"
run env PET_MAX_RESTARTS=x "$CRUN" --help
is "$status$err" 0 "--help does not depend on the variables"

missing=''
for name in $names; do
    grep -qF -- "\\-\\-$name" "$ROOT/docs/man/crun.1" || missing+=" $name"
done
is "$missing" "" "the manual page has every option"

"$CRUN" --print-completion bash >completion.bash
# complete WORD...: what bash proposes for the last word.
complete_words()
{
    "$BASH" -c '. ./completion.bash
        declare -F _crun >/dev/null && complete -p crun >/dev/null || exit 1
        COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
        _crun
        echo "${COMPREPLY[*]}"' bash "$@"
}
is "$(complete_words crun --nproc)" --nproc-per-node "bash completes an option"
is "$(complete_words crun --nproc_)" --nproc_per_node "in underscores"
is "$(complete_words crun --nnodes 1 --start_method f)" "fork forkserver" \
    "a choice"
is "$(complete_words crun --start-method = s)" spawn "behind an equals sign"
is "$(complete_words crun --start_method fork '')" "" "not the choice before"
is "$(complete_words crun train.py --st)" "" "nothing behind the program"
if command -v zsh >/dev/null; then
    "$CRUN" --print-completion zsh >completion.zsh && zsh -n completion.zsh
    ok $? "zsh takes its script"
else
    skip 1 "no zsh here"
fi
