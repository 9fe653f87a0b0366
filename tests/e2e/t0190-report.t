#!/bin/bash
# What crun says about a failure: on stderr, as JSON, to an outer launcher.
. "${BASH_SOURCE%/*}/tap.sh"
plan 74

cd "$TMP" || exit 255
export OMP_NUM_THREADS=1

# --- Exit status -----------------------------------------------------------

for codes in '0 0 7 0' '0 0 0 255'; do
    run "$CRUN" --nproc_per_node=4 sh -c \
        "set -- $codes; shift \$RANK; exit \$1"
    is "$status" 1 "EXIT-01 exit codes $codes: status 1"
    like "$err" "failed first: exit code ${codes//[0 ]/}" \
        "EXIT-01 exit codes $codes: the code is named"
done
for sig in 9 6; do
    run "$CRUN" --nproc_per_node=2 sh -c "[ \$RANK = 0 ] || kill -$sig \$\$"
    is "$status" 1 "EXIT-01 signal $sig: status 1"
    like "$err" "failed first: signal $sig " "EXIT-01 signal $sig is named"
    like "$err" "^  exitcode  : -$sig \\(pid: [0-9]+\\) \\(SIG" \
        "EXIT-01 signal $sig: torchrun's form"
done

# --- Success ---------------------------------------------------------------

for how in 'exit 0' 'exec true' 'exec 0<&- 1>&- 2>&-; exit 0' \
    'sleep 30 & exit 0'; do
    run "$CRUN" --nproc_per_node=2 --report report.json sh -c "$how"
    is "$status$err" 0 "EXIT-02 $how: status, and nothing to report"
    like "$(cat report.json)" '"exit_code": 0' "EXIT-02 $how: as JSON"
done

# --- Who was first ---------------------------------------------------------

# Rank 2 dies first, rank 1 a moment later while it stops, the others stop.
cat >order <<'S'
[ $RANK = 1 ] &&
    trap 'until [ -e dead ]; do sleep 0.01; done; kill -SEGV $$' TERM
touch ready.$RANK
if [ $RANK = 2 ]; then
    until [ -e ready.0 ] && [ -e ready.1 ] && [ -e ready.3 ]; do
        sleep 0.01
    done
    touch dead
    kill -9 $$
fi
while :; do sleep 0.05; done
S
run "$CRUN" --nproc_per_node=4 sh order
is "$status" 1 "EXIT-03 status"
like "$err" "rank 2 \\(local rank 2, pid [0-9]+, host $(hostname)\\) failed first: signal 9" \
    "EXIT-03 the first one, with pid and host"
like "$err" '^  time      : [0-9-]+_[0-9:.]+$' "EXIT-03 the time"
like "$err" 'rank 1 .*failed too: signal 11' "EXIT-03 the second one"
like "$err" 'ranks 0,3: stopped by crun with SIGTERM' "EXIT-03 the others are marked"
[[ $(grep -n 'rank 2' <<<"$err" | head -n 1 | cut -d: -f1) -lt \
    $(grep -n 'failed too' <<<"$err" | cut -d: -f1) ]]
ok $? "EXIT-03 in this order"
unlike "$err" 'Traceback' "EXIT-03 no launcher's traceback"

# A small memory cgroup, where one can be made.
# limited_group: sets $group to a new cgroup of 40 MB, or fails.
limited_group()
{
    local root
    for root in /sys/fs/cgroup /sys/fs/cgroup/memory; do
        [[ -e $root/cgroup.procs ]] || continue
        group=$root/crun-test.$$
        mkdir "$group" 2>/dev/null || continue
        echo 40000000 2>/dev/null >"$group/memory.max" && return
        echo 40000000 2>/dev/null >"$group/memory.limit_in_bytes" && return
        rmdir "$group"
    done
    return 1
}
if command -v python3 >/dev/null && limited_group; then
    run sh -c "echo \$\$ >'$group/cgroup.procs' && exec '$CRUN' \
        --nproc_per_node=2 --no_python python3 -c 'import os, time
if os.environ[\"RANK\"] == \"1\": x = b\"x\" * (200 << 20)
time.sleep(100)'"
    like "$err" 'rank 1 .*failed first: signal 9' "EXIT-03 out of memory: a kill"
    like "$err" '^  hint      : out of memory: the kernel killed' \
        "EXIT-03 out of memory: the counter tells"
    rmdir "$group"
else
    skip 2 "no memory cgroup can be made here"
fi

# --- In the worker's own words ---------------------------------------------

run "$CRUN" --nproc_per_node=2 sh -c '[ $RANK = 0 ] && exec sleep 20
    printf "{\"message\": \"disk on fire\", \"timestamp\": \"1700000000\"}" \
        >$TORCHELASTIC_ERROR_FILE; exit 5'
like "$err" '^  traceback : disk on fire$' "an error file written by a script"
like "$err" '^  error_file: /.*/attempt_0.1.error.json$' "its path"
[[ -s $(sed -n 's/^  error_file: //p' <<<"$err") ]]
ok $? "the folder is still there"
rm -rf "$(sed -n 's/^  error_file: \(.*\)\/attempt_0.*/\1/p' <<<"$err")"

run "$CRUN" sh -c 'echo "{\"mess" >$TORCHELASTIC_ERROR_FILE; exit 5'
is "$status" 1 "a broken error file: status"
like "$err" 'cannot be read: it is no JSON' "a broken error file is named"
rm -rf "$(sed -n 's/^  error_file: \(.*\)\/attempt_0.*/\1/p' <<<"$err")"

export TORCHELASTIC_ERROR_FILE=$TMP/outer.json
run "$CRUN" --log_dir logs sh -c \
    '[ "$TORCHELASTIC_ERROR_FILE" = '"$TMP"'/outer.json ] && exit 77
    echo "{\"message\": {\"message\": \"E: x\", \"extraInfo\": {\"timestamp\": \
    \"1\"}}}" >$TORCHELASTIC_ERROR_FILE; exit 5'
unset TORCHELASTIC_ERROR_FILE
is "$(tr -d ' ' <outer.json)" \
    '{"message":{"message":"E:x","extraInfo":{"timestamp":"1"},"errorCode":5}}' \
    "an outer launcher gets the reason and the code"

# A record of torch's, as Python writes it: with a byte of a file's name, and
# colours, which are not for the terminal.
cat >record.json <<'J'
{"message": {"message": "E: caf\udce9 \u001b[31m", "extraInfo": {"py_callstack":
"Traceback:\n  File x\nE: boom\n", "timestamp": "1"}}}
J
run "$CRUN" --log_dir logs sh -c 'cp record.json $TORCHELASTIC_ERROR_FILE; exit 1'
like "$err" '^  traceback : E: caf.* \\x1b\[31m$' "@record: the message"
like "$err" '^  Traceback:$' "@record: the stack below it"
like "$err" '^  E: boom$' "@record: to its end"
unlike "$err" $'\e' "escape sequences do not reach the terminal"

# What is no file does not keep crun.
run "$CRUN" --log_dir logs sh -c 'mkfifo $TORCHELASTIC_ERROR_FILE; exit 5'
is "$status" 1 "a pipe as error file: status"
like "$err" 'cannot be read: it is no regular file' "a pipe is named"

# --- C programs -------------------------------------------------------------

# A sanitizer's handlers would come after the library's, and exit.
no_handlers=handle_segv=0:handle_sigbus=0:handle_abort=0:handle_sigfpe=0
export ASAN_OPTIONS="${ASAN_OPTIONS:-}:$no_handlers"
export TSAN_OPTIONS="${TSAN_OPTIONS:-}:$no_handlers"

run "$CRUN" --log_dir logs --nproc_per_node=3 "$HELPERS/coll_fail" \
    1 record 'no data in "/data"'
like "$err" 'rank 1 .*failed first: exit code 5' "coll_record_error: first"
like "$err" '^  traceback : no data in "/data"$' "coll_record_error: the message"
like "$err" '^  .*coll_fail\(\+0x[0-9a-f]+\)' "coll_record_error: the stack"
like "$err" 'ranks 0,2 ended on account of it: exit code 3: barrier #1: ' \
    "the others tell why they ended, in one line"
run "$CRUN" --log_dir logs --nproc_per_node=2 "$HELPERS/coll_fail" 1 crash
like "$err" 'rank 1 .*failed first: signal 11 \(SIGSEGV\)' \
    "crash handler: it ends by its signal"
like "$err" '^  traceback : signal 11 \(SIGSEGV\) at address 0x10$' \
    "crash handler: the address"
like "$err" '^  .*coll_fail\(\+0x[0-9a-f]+\)' "crash handler: the stack"
if command -v addr2line >/dev/null; then
    sed -n 's/^  .*coll_fail(+\(0x[0-9a-f]*\)).*/\1/p' <<<"$err" >"$TMP/at"
    like "$(addr2line -f -e "$HELPERS/coll_fail" "@$TMP/at")" '^(crash_here|fail)$' \
        "crash handler: addr2line finds the function"
else
    skip 1 "no addr2line here"
fi
run "$CRUN" --log_dir logs "$HELPERS/coll_fail" 0 overflow
like "$err" '^  traceback : signal 11 \(SIGSEGV\) at address' \
    "crash handler: an overflow of the stack"
run "$CRUN" --log_dir logs "$HELPERS/coll_fail" 0 abort 'the real reason'
like "$err" 'failed first: signal 6 \(SIGABRT\)' "what was said first: the end"
like "$err" '^  traceback : the real reason$' "what was said first stays"

# --- Its place -------------------------------------------------------------

# last_line: the output's last line up to its colon, and how often the report
# is there.
last_line() { echo "$(tail -n 1 both | cut -c 3-11) $(grep -a -c FAILED both)"; }
"$CRUN" -t 3 --log_dir logs sh -c 'echo a; printf cut; exit 1' 2>&1 | cat >both
is "$(last_line)" "stderr    1" "the report is behind a followed file's last line"
"$CRUN" -t 3 --log_dir logs sh -c 'seq 1 300000; exit 1' 2>&1 |
    (sleep 0.5; cat >both)
is "$(last_line)" "stderr    1" "and behind what a slow reader has not read yet"
"$CRUN" --timestamps -t 1 --log_dir logs sh -c 'yes "" | head -c 2000000; exit 1' \
    2>&1 | (sleep 0.5; cat >both)
is "$(last_line)" "traceback 1" "many short lines do not push it out"
cp "$(type -P false)" "$(printf 'odd\n\033name')"
run "$CRUN" --no_python "./$(printf 'odd\n\033name')"
like "$err" '^crun: \./odd\\x0a\\x1bname FAILED' "a program's odd name is shown"

# --- Hints -----------------------------------------------------------------

run "$CRUN" --redirects 2 --log_dir logs sh -c 'echo "x: error while loading \
shared libraries: libnothere.so.3: cannot open shared object file" >&2; exit 127'
like "$err" '^  hint      : x: error while loading.*libnothere.so.3' \
    "a missing library is quoted"
like "$err" '^  stderr    : /.*/attempt_0/0/stderr.log' "and where it stands"
run "$CRUN" sh -c 'exit 134'
like "$err" "hint      : a shell's code for signal 6" "a shell's code is explained"

# --- JSON ------------------------------------------------------------------

field()
{
    python3 -c 'import json, sys
print(eval("j" + sys.argv[2], {"j": json.load(open(sys.argv[1]))}))' "$1" "$2"
}
if command -v python3 >/dev/null; then
    run "$CRUN" --nproc_per_node=2 --report ok.json true
    is "$status $(field ok.json '["exit_code"]') $(field ok.json '["first_failure"]')" \
        "0 0 None" "a success is reported, too"
    is "$(field ok.json '["workers"][1]["outcome"]')" success "with its workers"
    run "$CRUN" --nproc_per_node=3 --max_restarts 1 --report bad.json sh -c \
        '[ $RANK = 1 ] && exit 9; exec sleep 20'
    is "$(field bad.json '["first_failure"]["rank"]')" 1 "the first failure"
    is "$(field bad.json '["first_failure"]["exit_code"]')" 9 "its exit code"
    is "$(field bad.json '["restart_count"]') $(field bad.json '["verdict"]')" \
        "1 restarts exhausted" "and why there is no other round"
    is "$(field bad.json '["history"][0]["restart_count"]')" 0 "the history"
else
    skip 6 "no python3 here"
fi
run "$CRUN" --report no/such/folder/r.json touch began
like "$err" 'cannot write no/such/folder/r.json: .*No such file' \
    "a report that cannot be written is told"
is "$status" 1 "and is a failure"
ok "$([[ ! -e began ]]; echo $?)" "before anything is started"
mkdir gone
run sh -c "mkdir cwd; cd cwd; rmdir ../cwd; '$CRUN' --report r.json touch '$TMP/began'"
like "$status$err" '^1.*cannot write r.json: No such file' \
    "a report in a folder that is gone: told"
ok "$([[ ! -e began ]]; echo $?)" "before anything is started, too"
run "$CRUN" --report gone/r.json sh -c 'rm -r gone'
like "$err" 'cannot write gone/r.json: ' "a report's folder goes meanwhile: told"
is "$status" 1 "and is a failure, too"
ln -s nowhere dangling
run "$CRUN" --report dangling true
like "$status$err" '^1.*dangling: it is a symbolic link to what' \
    "a report's name is no link to nothing"
true >real
ln -s real alias
run "$CRUN" --report alias true
like "$([[ -L alias ]] && cat real)" '"exit_code": 0' \
    "a link to a file stays one"
# One for a restart that cannot begin: of the round that failed.
run "$CRUN" --log_dir moved --report early.json --exit_code cause \
    --max_restarts 1 sh -c 'mv moved away; touch moved; exit 5'
is "$status" 5 "a restart that cannot begin: the status is the failure's"
like "$err" 'failed first: exit code 5' "which is reported"
