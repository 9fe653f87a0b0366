#!/bin/bash
# crun starts workers with the right environment and ends with the right
# exit status.
. "${BASH_SOURCE%/*}/tap.sh"
plan 48

cd "$TMP" || exit 255

run "$CRUN" --version
is "$status" 0 "--version succeeds"
is "$out" "crun $(cat "$ROOT/VERSION")" "--version prints the version"
run "$CRUN" --help
is "$status" 0 "--help succeeds"
like "$out" '^  +--nproc_per_node N' "--help lists the options"

# --- environment ---
run "$CRUN" --nproc_per_node=3 sh -c 'echo "$RANK $LOCAL_RANK $WORLD_SIZE \
$LOCAL_WORLD_SIZE $GROUP_RANK $GROUP_WORLD_SIZE $ROLE_NAME $ROLE_RANK \
$ROLE_WORLD_SIZE $MASTER_ADDR $TORCHELASTIC_RESTART_COUNT \
$TORCHELASTIC_MAX_RESTARTS $TORCHELASTIC_USE_AGENT_STORE $OMP_NUM_THREADS"'
is "$status" 0 "three workers that succeed"
is "$(sort <<<"$out")" "0 0 3 3 0 1 default 0 3 127.0.0.1 0 0 True 1
1 1 3 3 0 1 default 1 3 127.0.0.1 0 0 True 1
2 2 3 3 0 1 default 2 3 127.0.0.1 0 0 True 1" "each worker has its variables"
is "$(grep -c OMP_NUM_THREADS <<<"$err")" 1 "ENV-02 one warning about OMP"

run env OMP_NUM_THREADS=7 "$CRUN" --nproc_per_node=2 \
    sh -c 'echo $OMP_NUM_THREADS'
is "$out$err" "7
7" "ENV-02 a given OMP_NUM_THREADS passes silently"
run env OMP_NUM_THREADS= "$CRUN" --nproc_per_node=2 \
    sh -c 'echo "${OMP_NUM_THREADS-unset}|"'
is "$out$err" "|
|" "ENV-02 an empty OMP_NUM_THREADS stays empty, silently"
run "$CRUN" sh -c 'echo ${OMP_NUM_THREADS-unset}'
is "$out$err" unset "ENV-02 one worker: untouched and silent"

big=$(printf '%0100000d' 0)
run env RANK=5 WORLD_SIZE=99 LOCAL_RANK=3 MASTER_PORT=1 MASTER_ADDR=bogus \
    TORCHELASTIC_RESTART_COUNT=9 OMP_NUM_THREADS=1 KEEP="a
b" BIG="$big" "$CRUN" --standalone --nproc-per-node 2 sh -c \
    'echo "$RANK $WORLD_SIZE $LOCAL_RANK $MASTER_ADDR $((MASTER_PORT > 1)) \
$TORCHELASTIC_RESTART_COUNT ${#KEEP} ${#BIG}"'
is "$(sort <<<"$out")" "0 2 0 127.0.0.1 1 0 3 100000
1 2 1 127.0.0.1 1 0 3 100000" "ENV-10 an outer launcher's variables are replaced"
run "$CRUN" "$CRUN" sh -c 'echo "$RANK $WORLD_SIZE"'
is "$out" "0 1" "ENV-10 crun inside a worker is a job of its own"

run "$CRUN" --master_port 0 sh -c 'echo $((MASTER_PORT > 0)) $TORCHELASTIC_RUN_ID'
is "$out" "1 none" "PORT-05 port 0 becomes a real port"
run "$CRUN" --master_addr localhost sh -c 'echo $MASTER_ADDR'
is "$out" localhost "--master_addr is passed as typed"

# --- the program and its arguments ---
run "$CRUN" --no-python sh -c 'printf "%s|" "$@"' sh --log x --r=16 --nproc 3 -t
is "$out" "--log|x|--r=16|--nproc|3|-t|" "ARG-01 options after the program are its own"
mkdir 'my dir'
printf '#!/bin/sh\nprintf "<%%s>" "$@"\n' >'my dir/w'
chmod +x 'my dir/w'
run "$CRUN" './my dir/w' 'a b' "c'd" '$HOME' '*' '' --x='y z'
is "$out" "<a b><c'd><\$HOME><*><><--x=y z>" "ARG-03 arguments arrive byte for byte"
if command -v python3 >/dev/null; then
    echo 'import os, sys; print(sys.argv, sys.stdout.write_through)' >t.py
    run "$CRUN" t.py x
    is "$out" "['t.py', 'x'] True" "a .py program runs in Python, unbuffered"
    run env PYTHONPATH=. "$CRUN" -m t x
    like "$out" "t.py', 'x'\] True" "-m runs a module"
    cp t.py plain
    run "$CRUN" plain x
    is "$out" "['plain', 'x'] True" "any other readable file runs in Python"
    printf '#!/bin/sh\nMINE=1 exec python3 "$@"\n' >mypython
    chmod +x mypython
    echo 'import os; print(os.environ["MINE"])' >mine.py
    run env PYTHON_EXEC="$TMP/mypython" "$CRUN" mine.py
    is "$out" 1 "ENV-01 PYTHON_EXEC chooses the interpreter"
    mkdir venv
    python=$(command -v python3)
    printf '#!/bin/sh\nMINE="venv $1" exec %s "$@"\n' "$python" >venv/python3
    chmod +x venv/python3
    run env PATH="$TMP/venv:$PATH" "$CRUN" mine.py
    is "$out" "venv -u" "ENV-01 else the first python3 on PATH, with -u"
else
    skip 5 "no python3 here"
fi
run env PATH=/nowhere "$CRUN" t.py
is "$status" 1 "ENV-01 no Python on PATH is an error"
like "$err" 'no python3 on PATH' "ENV-01 and says so"

# --- what a worker inherits ---
run "$CRUN" sh -c 'ls /proc/self/fd | wc -l' 3</dev/null 7</dev/null
is "$out" 4 "a worker has descriptors 0, 1, 2 (and ls its folder) only"
mkdir sub
run sh -c "cd sub && umask 027 && '$CRUN' sh -c 'pwd; umask'"
is "$out" "$TMP/sub
0027" "working directory and umask are shared"
is "$(echo typed | "$CRUN" cat)" typed "stdin is shared"
run "$CRUN" sh -c 'set -- $(cut -d" " -f1,4,5,6 /proc/$$/stat); [ $1 = $3 ] && [ $2 = $4 ]'
is "$status" 0 "a worker leads a group of its own, in the agent's session"
run sh -c "ulimit -n 6; '$CRUN' true"
like "$status$err" '^1.*limit of open files is 6.*at least 23 for 1 workers.*ulimit -n' \
    "so few open files that nothing works: said"
run sh -c "ulimit -Sn 100; '$CRUN' --nproc_per_node=64 sh -c 'ulimit -Sn'"
is "$status $(sort -u <<<"$out")" "0 100" "STO-12 many workers under a low limit, which they get back"
run "$CRUN" sh -c 'kill -PIPE $$'
like "$err" 'signal 13 \(SIGPIPE\)' "SIGPIPE has its default action in workers"

# --- exit status ---
run "$CRUN" --nproc_per_node=3 sh -c 'exit $((LOCAL_RANK==1 ? 7 : 0))'
is "$status" 1 "a failing worker fails the job"
like "$err" 'rank 1 \(local rank 1, pid [0-9]+.*exit code 7' "EXIT-01 rank and code are named"

run "$CRUN" --nproc_per_node=4 sh -c 'exit $((RANK == 3 ? 255 : 0))'
is "$status" 1 "EXIT-01 exit code 255"
like "$err" 'rank 3 .*exit code 255' "EXIT-01 is named"
run "$CRUN" --nproc_per_node=4 sh -c 'touch up.$RANK
    [ $RANK = 2 ] && { until [ -e up.3 ]; do sleep 0.01; done; kill -9 $$; }
    sleep 20'
is "$status" 1 "EXIT-01 killed by signal 9"
like "$err" 'rank 2 .*failed first: signal 9 \(SIGKILL\)' "EXIT-01 is named"
like "$err" 'ranks 0-1,3: stopped by crun with SIGTERM' "the others are told apart"
run "$CRUN" --nproc_per_node=2 sh -c '[ $RANK = 0 ] && kill -ABRT $$; sleep 20'
is "$status" 1 "EXIT-01 killed by signal 6"
like "$err" 'rank 0 .*signal 6 \(SIGABRT\)' "EXIT-01 is named"

run "$CRUN" --nproc_per_node=2 sh -c 'exec true'
is "$status" 0 "EXIT-02 success through exec"
run "$CRUN" --nproc_per_node=2 sh -c 'exec 0<&- 1>&- 2>&-; exit 0'
is "$status" 0 "EXIT-02 success with descriptors 0 to 2 closed"
run sh -c "'$CRUN' true <&- >&- 2>&-"
is "$status" 0 "crun itself started without descriptors 0 to 2"

bad=0
for ((i = 0; i < 60; i++)); do
    RUN_TIMEOUT=10 run "$CRUN" --nproc_per_node=$((1 + i % 4)) true
    [[ $status -eq 0 ]] || ((++bad))
done
is "$bad" 0 "workers that end while others are being started, 60 times"

for i in 1 2 3; do
    "$CRUN" --nproc_per_node=2 sh -c 'sleep 1' 2>/dev/null &
done
wait %1 && wait %2 && wait %3
is "$?" 0 "PORT-01 three jobs at once do not collide"

# A port in use: the job fails at once and nothing is started.
"$CRUN" --master_port 0 sh -c 'echo $MASTER_PORT >port; sleep 30' 2>/dev/null &
job=$!
wait_for 10 test -s port
port=$(cat port)
run "$CRUN" --master_port "$port" sh -c 'touch started'
is "$status" 1 "PORT-01 a port in use is an error"
like "$err" "$port.*in use" "PORT-01 names the port"
[[ ! -e started ]]
ok $? "PORT-01 nothing was started"
{ kill -9 $job; wait $job; } 2>/dev/null
# The agent ends a moment after its front.
wait_for 5 "$CRUN" --master_port "$port" true 2>"$TMP/again"
ok $? "PORT-03 the port is free again after a kill"
