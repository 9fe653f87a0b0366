#!/bin/bash
# The workers' output reaches crun's stdout and stderr whole.
. "${BASH_SOURCE%/*}/tap.sh"
. "${BASH_SOURCE%/*}/write_lines.sh"
plan 27

cd "$TMP" || exit 255
export OMP_NUM_THREADS=1

talk 300 out err
is "$?" 0 "eight talkative workers"
is "$(checks out 1 300)" 0 "LOG-01 stdout: whole lines in order"
is "$(checks err 2 300)" 0 "LOG-01 stderr: whole lines in order"

talk 100 both both
grep ':1:[0-9]*:[0-9]*:' both >one
grep ':2:[0-9]*:[0-9]*:' both >two
is "$(checks one 1 100)$(checks two 2 100)$(wc -l <both)" 001600 \
    "both streams in one file: whole lines"

# A slow reader holds the workers up, and nothing is lost.
"$CRUN" --nproc_per_node=8 "$HELPERS/write_lines" 200 2>/dev/null |
    { sleep 1; cat >slow; }
is "$(checks slow 1 200)" 0 "slow reader: nothing is lost"

# Every byte value, then a character split over two writes.
if command -v python3 >/dev/null; then
    cat >bytes.py <<'P'
import os, time
os.write(1, bytes(range(256)) + b"\n")
os.write(1, b"\xe2\x82"); time.sleep(0.3); os.write(1, b"\xac\n")
for i in range(100): os.write(1, b"line %d\n" % i)
P
    python3 bytes.py >want
    "$CRUN" bytes.py >got
    cmp want got
    ok $? "LOG-02 bytes pass unchanged"

    # A terminal is inherited: the worker sees one, and so do its children.
    cat >terminal.py <<'P'
import os, pty, sys
chunks = []
def read(fd):
    data = os.read(fd, 4096)
    chunks.append(data)
    return data
rc = pty.spawn(sys.argv[1:], read)
sys.exit(os.waitstatus_to_exitcode(rc))
P
    python3 terminal.py "$CRUN" sh -c 'test -t 1 && test -t 2 && echo tty' \
        </dev/null >tty
    like "$(cat tty)" '^tty' "a terminal is inherited"
else
    skip 2 "no python3 here"
fi

# The last words of a dying worker, without a newline.
lost=0
for how in 'kill -9 $$' 'kill -ABRT $$' 'exit 3'; do
    for _ in 1 2 3 4 5; do
        "$CRUN" --nproc_per_node=4 sh -c \
            "printf LAST >&2; [ \$RANK = 0 ] || sleep 20; $how" 2>err
        # The others may be stopped before they say anything.
        grep -q '^LAST' err || ((++lost))
        grep -q 'LASTLAST' err && ((++lost))
    done
done
is "$lost" 0 "LOG-05 last words arrive, on a line of their own"
is "$("$CRUN" printf 'no newline')" "no newline" "the end of output is not touched"
like "$(cat err)" '^crun: sh FAILED' "the report begins on a line of its own"

# An unfinished line is shown soon; another rank's does not run into it.
mkfifo fifo
"$CRUN" --nproc_per_node=2 sh -c \
    'if [ $RANK = 0 ]; then printf half; touch shown; sleep 1000;
     else until [ -e go ]; do sleep 0.05; done; echo whole; sleep 1000; fi' \
    >fifo 2>/dev/null &
job=$!
exec 5<fifo
head -c 4 <&5 >first
is "$(cat first)" half "a partial line is shown"
touch go
read -r rest <&5
read -r whole <&5
is "$rest$whole" whole "another rank's line starts on a new one"
{ kill -9 $job; wait $job; } 2>/dev/null
exec 5<&-

# A reader that leaves: the workers get SIGPIPE as without crun.
status=$(RUN_TIMEOUT=20; run sh -c \
    "{ '$CRUN' --nproc_per_node=2 sh -c 'while echo y; do :; done' 2>err;
       echo \$? >code; } | head -n 1"; echo "$status $out")
is "$status" "0 y" "reader leaves: crun ends"
like "$(cat code err)" 'SIGPIPE|exit code' "reader leaves: the workers are told"

# Far more than is queued, as fast as it goes.
seq 1 400000 >want
"$CRUN" --nproc_per_node=2 seq 1 400000 >got
is "$? $(sort -n got | uniq -c | awk '$1 != 2' | wc -l) $(wc -l <got)" \
    "0 0 800000" "much output to a file"
"$CRUN" seq 1 400000 | cat >got
cmp want got
ok $? "much output to a pipe"
"$CRUN" --nproc_per_node=2 sh -c 'exec head -c 30000000 /dev/zero' |
    { sleep 0.3; tr -d '\n' | wc -c >count; }
is "$(tr -d ' ' <count)" 60000000 "one endless line from each of two workers"

bad=0
for _ in 1 2 3; do
    n=$(timeout -s KILL 100 "$CRUN" --nproc_per_node=32 seq 1 60000 | cat | wc -l)
    [[ $n -eq 1920000 ]] || ((++bad))
done
is "$bad" 0 "many workers, all writing at once into one pipe"

# A disk that is full, a limit on files: an error, not a hang or a death.
run sh -c "'$CRUN' --nproc_per_node=2 yes >/dev/full"
is "$status" 1 "full disk: status 1"
like "$err" 'writing to stdout failed: No space left' "full disk: is told"
like "$err" 'failed first: signal 13' "full disk: workers get SIGPIPE"
run sh -c "'$CRUN' sh -c 'echo lost' >/dev/full"
is "$status" 1 "output that is lost is a failure even if the workers succeed"
run sh -c "ulimit -f 1; '$CRUN' sh -c 'head -c 100000 /dev/zero' >limited"
is "$status" 1 "limit of file size: status 1"
like "$err" 'writing to stdout failed: File too large' "limit of file size: is told"

# Both streams in one place: what one worker writes stays in order.
out=$("$CRUN" sh -c 'echo a; echo b >&2; echo c; echo d >&2' 2>&1 | tr -d '\n')
is "$out" abcd "order of stdout and stderr in one pipe"

# crun's own lines do not cut a worker's.
"$CRUN" --nproc_per_node=2 sh -c 'if [ $RANK = 0 ]; then printf half >&2
    touch begun; exec sleep 100; else until [ -e begun ]; do sleep 0.05; done
    sleep 0.5; exit 3; fi' 2>err
like "$(cat err)" '^half$' "a worker's unfinished line stands alone"
like "$(cat err)" '^crun: sh FAILED: rank 1' "crun's line does, too"
