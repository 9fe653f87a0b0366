#!/bin/bash
# Log files and tee: what is in the files, what is on the console.
# shellcheck disable=SC2016 # workers' shells expand these
. "${BASH_SOURCE%/*}/tap.sh"
. "${BASH_SOURCE%/*}/write_lines.sh"
plan 53

cd "$TMP" || exit 255
export OMP_NUM_THREADS=1 TMPDIR=$TMP
user=$(id -u)

# logs DIR: names of all non-empty files below it, without the run's folder.
logs()
{
    find "$1" -type f -size +0 -name '*.log' -printf '%P\n' | cut -d/ -f2- |
        sort | paste -sd ' '
}

# --- LOG-01: whole lines ---------------------------------------------------

talk 300 out err --log_dir logs --tee 3
is "$?" 0 "LOG-01 eight workers with --tee 3"
# A line behind another rank's prefix, or none, is missing then.
for file in out err; do
    sed -n 's/^\[default\([0-7]\)\]:\1:/\1:/p' $file >$file.lines
done
is "$(checks out.lines 1 300)$(checks err.lines 2 300) $(
    cat out err | wc -l)" "00 4800" \
    "LOG-01 the console: a prefix and a whole line of one rank, in order"
bad=0
for rank in 0 1 2 3 4 5 6 7; do
    RANK=$rank "$HELPERS/write_lines" 300 >want1 2>want2
    cmp -s want1 logs/*/attempt_0/$rank/stdout.log || ((++bad))
    cmp -s want2 logs/*/attempt_0/$rank/stderr.log || ((++bad))
done
is "$bad" 0 "LOG-01 the files are what the workers wrote"

# --- LOG-02: every byte ----------------------------------------------------

if command -v python3 >/dev/null; then
    cat >bytes.py <<'P'
import os, time
os.write(1, bytes(range(256)) + b"\n")
os.write(1, b"\xe2\x82"); time.sleep(0.3); os.write(1, b"\xac\n")
for i in range(100): os.write(1, b"line %d\n" % i)
P
    python3 bytes.py >want
    "$CRUN" --log_dir bytes --tee 3 bytes.py >got
    cmp want bytes/*/attempt_0/0/stdout.log
    ok $? "LOG-02 all bytes in the file"
    sed 's/^/[default0]:/' want | cmp - got
    ok $? "LOG-02 and behind the prefix"
else
    skip 2 "no python3 here"
fi

# --- LOG-04: progress bars -------------------------------------------------

# The bar's last step waits for what the test sees, so no time is guessed.
cat >bar <<'S'
for i in 10 20 30; do printf '\r%d%%' $i; done
until [ -e seen ]; do sleep 0.02; done
for i in 40 50; do printf '\r%d%%' $i; done
echo
S
# shows FILE: a part of the line has come.
shows()
{
    grep -aq '30%' "$1" 2>/dev/null
}
"$HELPERS/on_pty" "$CRUN" --log_dir bar1 --tee 3 sh bar </dev/null >pty 2>&1 &
job=$!
wait_for 10 shows pty
ok $? "LOG-04 updates are seen on a terminal"
touch seen
wait $job
is "$(tr -d '\n' <pty | tr '\r' '.')" '[default0]:.10%.20%.30%.40%.50%.' \
    "LOG-04 no prefix within the line"
rm seen
"$CRUN" --log_dir bar2 --tee 3 sh bar >file 2>&1 &
job=$!
wait_for 10 shows file
ok $? "LOG-04 updates are seen in a file"
touch seen
wait $job
is "$(tr '\r' '.' <file)" '[default0]:.10%.20%.30%.40%.50%' \
    "LOG-04 no prefix within the line there"
sh bar | cmp - bar2/*/attempt_0/0/stdout.log
ok $? "LOG-04 the file is verbatim"

# --- LOG-05: last words ----------------------------------------------------

lost=0
for how in 'kill -9 $$' 'kill -ABRT $$' 'exit 3'; do
    for spec in --tee --redirects; do
        rm -rf last rdy.*
        # Nobody dies before all have spoken.
        "$CRUN" --nproc_per_node=4 --log_dir last $spec 3 sh -c \
            "printf LAST; touch rdy.\$RANK; for r in 0 1 2 3; do
             until [ -e rdy.\$r ]; do sleep 0.01; done; done; $how" \
            >out 2>err
        [[ $(grep -l '^LAST$' last/*/attempt_0/?/stdout.log | wc -l) -eq 4 &&
            $(cat last/*/attempt_0/?/stdout.log) == LASTLASTLASTLAST ]] ||
            ((++lost))
        want=
        [[ $spec == --redirects ]] ||
            want="[default0]:LAST [default1]:LAST [default2]:LAST [default3]:LAST"
        [[ $(sort out | paste -sd ' ') == "$want" ]] || ((++lost))
    done
done
is "$lost" 0 "LOG-05 last words are in all files and on the console"

# --- LOG-08: where the files are -------------------------------------------

run "$CRUN" --tee 3 echo hello
where=$(sed -n "s/.*the workers' output is in //p" <<<"$err")
is "$(cat "$where/attempt_0/0/stdout.log")" hello \
    "LOG-08 without --log_dir the folder is told and stays"
[[ $where == "$TMP"/torchelastic_* ]]
ok $? "LOG-08 it is in TMPDIR"
rm -rf "$TMP"/torchelastic_*
run "$CRUN" echo hello
is "$out$(echo "$TMP"/torchelastic_*)" "hello$TMP/torchelastic_*" \
    "LOG-08 nothing stays of a job without logs"
"$CRUN" --log_dir deep/er/still --rdzv_id same --redirects 3 echo a
"$CRUN" --log_dir deep/er/still --rdzv_id same --redirects 3 echo b
is "$(cat deep/er/still/same_*/attempt_0/0/stdout.log | sort | paste -sd ' ')" \
    "a b" "LOG-08 parents are made; runs of one id do not meet"

# refused DIR TEXT NAME: the folder cannot be used, and no worker starts.
refused()
{
    run "$CRUN" --log_dir "$1" --tee 3 touch started
    [[ $status -ne 0 && ! -e started && $err == *"$1"*"$2"* ]]
    ok $? "$3" || diag "$status $err"
}
touch plain
refused plain 'Not a directory' "LOG-08 a file as folder is refused"
refused plain/sub 'Not a directory' "LOG-08 a folder in a file is refused"
refused /proc/none 'No such file' "LOG-08 a folder that cannot be made is refused"
mkdir -m 555 closed
if [[ $user -ne 0 ]]; then
    refused closed 'Permission denied' "LOG-08 a read-only folder is refused"
    refused closed/new 'Permission denied' "LOG-08 so is one to be made in it"
elif command -v setpriv >/dev/null; then
    chmod 777 "$TMP"
    for dir in closed closed/new; do
        run setpriv --reuid 65534 --clear-groups \
            "$CRUN" --log_dir $dir --tee 3 touch started
        [[ $status -ne 0 && ! -e started && $err == *"$dir"*'Permission denied'* ]]
        ok $? "LOG-08 read-only folder: $dir is refused" || diag "$status $err"
    done
else
    skip 2 "neither an ordinary user nor setpriv"
fi

# Each attempt has a folder of its own, and nothing is overwritten.
run "$CRUN" --log_dir again --max_restarts 2 --restart_delay 0 --tee 3 sh -c \
    'echo attempt $TORCHELASTIC_RESTART_COUNT; [ $TORCHELASTIC_RESTART_COUNT = 2 ]'
is "$status" 0 "LOG-08 restarts: status"
is "$(cat again/*/attempt_{0,1,2}/0/stdout.log | paste -sd ' ')" \
    "attempt 0 attempt 1 attempt 2" "LOG-08 restarts: a folder for each attempt"
is "$out" $'[default0]:attempt 0\n[default0]:attempt 1\n[default0]:attempt 2' \
    "LOG-08 restarts: all on the console, in order"

run "$CRUN" --log_dir /dev/null --tee 3 --nproc_per_node=2 echo shown
is "$out" $'shown\nshown' "--log_dir /dev/null: no files, no prefix"

# --- LOG-09: prefixes, filters, specs --------------------------------------

both='echo o$RANK; echo e$RANK >&2'
run "$CRUN" --nproc_per_node=3 --log_dir spec --redirects 0:1,1:2 sh -c "$both"
is "$(logs spec)" "attempt_0/0/stdout.log attempt_0/1/stderr.log" \
    "LOG-09 --redirects 0:1,1:2: these files"
is "$(sort <<<"$out" | paste -sd ' ') $(sort <<<"$err" | paste -sd ' ')" \
    "o1 o2 e0 e2" "LOG-09 --redirects 0:1,1:2: the rest is on the console"
run "$CRUN" --nproc_per_node=12 --log_dir ten --tee 10:1,11:2 sh -c "$both"
is "$(logs ten)" "attempt_0/10/stdout.log attempt_0/11/stderr.log" \
    "ranks of two digits in a spec"
like "$out"$'\n'"$err" '^\[default10\]:o10$' "and in a prefix"
run "$CRUN" --nproc_per_node=2 --tee 2:1 true
[[ $status -ne 0 && $err == *2* ]]
ok $? "a rank that is not there is refused"

run "$CRUN" --nproc_per_node=3 --log_dir filter --tee 3 \
    --local_ranks_filter 1 sh -c "$both"
is "$out $err" "[default1]:o1 [default1]:e1" \
    "LOG-09 --local_ranks_filter: the console"
is "$(find filter -name '*.log' -size +0 | wc -l)" 6 \
    "LOG-09 --local_ranks_filter: the files are whole"
run "$CRUN" --nproc_per_node=3 --local_ranks_filter 0,2 sh -c "$both"
is "$(sort <<<"$out" | paste -sd ' ') $(sort <<<"$err" | paste -sd ' ')" \
    "o0 o2 e0 e2" "--local_ranks_filter without tee"

# shellcheck disable=SC2016
run "$CRUN" --role 'a b' --tee 1 --log_line_prefix_template \
    '<${role_name} $rank ${local_rank} $$ ${nope} $no ${open $1>' echo x
is "$out" '<a b 0 0 $ ${nope} $no ${open $1>x' "LOG-09 the template's macros"
host=$(hostname)
# shellcheck disable=SC2016
run "$CRUN" --tee 1 --log_line_prefix_template '${hostname} ${time} ' echo x
stamp='[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\.[0-9]{3}'
like "$out" "^${host%%.*} $stamp x\$" "host and time in the template"
run "$CRUN" --timestamps --tee 1 echo x
like "$out" "^$stamp \\[default0\\]:x\$" "--timestamps"

run "$CRUN" --nproc_per_node=2 --log_dir dup --tee 3 \
    --duplicate_stdout_filters 'loss=,,,acc' --duplicate_stderr_filters bad \
    sh -c 'echo "loss=,1"; echo "loss=2"; printf "acc 3"; echo bad >&2; echo ok >&2'
is "$(sort dup/*/attempt_0/filtered_stdout.log | paste -sd '|')" \
    '[default0]:acc 3|[default0]:loss=,1|[default1]:acc 3|[default1]:loss=,1' \
    "--duplicate_stdout_filters with a comma"
is "$(sort dup/*/attempt_0/filtered_stderr.log | paste -sd '|')" \
    '[default0]:bad|[default1]:bad' "--duplicate_stderr_filters"
run "$CRUN" --nproc_per_node=2 --log_dir dup2 --tee 3 --local_ranks_filter 0 \
    --duplicate_stdout_filters x sh -c 'echo x'
is "$out|$(sort dup2/*/attempt_0/filtered_stdout.log | paste -sd ' ')" \
    '[default0]:x|[default0]:x [default1]:x' "a filtered log has ranks that are not shown"

# What is left of an attempt goes into that attempt's filtered log, although
# the next one begins while nobody reads.
mkfifo late
{
    "$CRUN" --log_dir dup3 --max_restarts 1 --restart_delay 0 --tee 1 \
        --duplicate_stdout_filters mark sh -c 'seq 1 600000
        echo mark $TORCHELASTIC_RESTART_COUNT
        touch ended.$TORCHELASTIC_RESTART_COUNT
        [ $TORCHELASTIC_RESTART_COUNT = 1 ]' >late 2>/dev/null
    echo $? >code
} &
job=$!
exec 5<late
wait_for 20 test -e ended.1
ok $? "a reader that pauses holds up neither workers nor restarts"
wc -l <&5 >count
exec 5<&-
wait $job
is "$(cat code count | tr -d ' ' | paste -sd ' ')" "0 1200002" \
    "and has all of both attempts"
is "$(cat dup3/*/attempt_0/filtered_stdout.log)" '[default0]:mark 0' \
    "the first attempt's filtered log"
is "$(cat dup3/*/attempt_1/filtered_stdout.log)" '[default0]:mark 1' \
    "the second attempt's"

# --- Folding ---------------------------------------------------------------

# Workers that wait until all of them are there.
meet='touch m.$RANK; until [ $(ls m.* | wc -l) = $WORLD_SIZE ]
do sleep 0.01; done; '

# ranks_of LINE: the ranks that are shown to have written it. How many of them
# share one line depends on what else each of them wrote before.
ranks_of()
{
    sed -n "s/^.*\[default\([0-9,-]*\)\]:$1\$/\1/p" <<<"$out" | tr ',' '\n' |
        awk -F- '{ for (r = $1; r <= $NF; r++) print r }' | sort -n |
        paste -sd ,
}

run "$CRUN" --nproc_per_node=4 --tee 1 --log_dir fold1 --fold sh -c \
    "$meet"'echo same; echo $RANK; printf end'
is "$(ranks_of same)" 0,1,2,3 "--fold with --tee"
is "$(ranks_of end)" 0,1,2,3 "--fold: unfinished lines are whole"
rm m.*
run "$CRUN" --nproc_per_node=4 --fold sh -c \
    "$meet"'[ $RANK = 2 ] || echo same; echo all'
is "$(ranks_of same) $(ranks_of all)" "0,1,3 0,1,2,3" \
    "--fold without tee: the ranks of each line"
[[ $(wc -l <<<"$out") -lt 7 ]]
ok $? "--fold without tee: fewer lines than were written"
rm m.*
run "$CRUN" --nproc_per_node=5 --fold sh -c 'echo same; printf end'
[[ $(grep -c end <<<"$out") -lt 5 ]]
ok $? "--fold: a last line without its newline is folded, too" || diag "$out"
run "$CRUN" --nproc_per_node=8 --fold --timestamps sh -c \
    "$meet"'[ $((RANK % 2)) = 0 ] || echo odd; head -c 70000 /dev/zero | tr "\0" z
     echo; echo'
is "$(ranks_of odd) $(grep -Evc "^$stamp \\[default[0-9,-]+\\]:" <<<"$out")" \
    "1,3,5,7 0" "--fold with times"
is "$(grep z <<<"$out" | grep -Evc "^$stamp \\[default[0-7]\\]:z+\$") $(
    tr -cd z <<<"$out" | wc -c | tr -d ' ')" "0 560000" \
    "--fold: long lines go past it whole, behind prefixes of their own"

# --- Files that are cut, folders that are full -----------------------------

run "$CRUN" --log_dir cut --tee 1 sh -c \
    'echo before; until [ -e go ]; do sleep 0.02; : >>go; done
     : >/proc/$$/fd/1; echo after'
like "$out" '^\[default0\]:after$' "a worker that truncates its own log"
is "$(cat cut/*/attempt_0/0/stdout.log)" after "the file is as it left it"

cat >full <<'S'
mount -t tmpfs -o size=64k none small || exit 77
"$CRUN" --log_dir small --tee 1 sh -c 'head -c 300000 /dev/zero || exit 5'
S
mkdir small
export CRUN
if unshare -rm mount -t tmpfs none small 2>/dev/null; then
    run unshare -rm sh full
    is "$status" 1 "a full disk: the worker is told"
    like "$err" 'No space left' "a full disk: what it says arrives"
else
    skip 2 "no mount namespace here"
fi
