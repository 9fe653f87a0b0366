#!/bin/bash
# crund hosts a store: its options, where it listens, how it ends, and peers
# that are no clients.
. "${BASH_SOURCE%/*}/tap.sh"
plan 94

PEER=$HELPERS/crund_peer
cd "$TMP" || exit 255

# start ARGS...: starts crund on a free port; sets $pid and $port.
start()
{
    "$CRUND" --listen 127.0.0.1:0 "$@" >out 2>err &
    pid=$!
    wait_for 10 test -s out
    port=$(sed 's/.*://' out)
}

# stop [SIGNAL]: ends it; sets $status. The next one writes a new "out".
stop()
{
    kill "-${1:-TERM}" "$pid"
    wait "$pid"
    status=$?
    rm -f out
}

# say N HEX: sends bytes to $port; prints N bytes of the reply.
say()
{
    timeout 60 "$PEER" say "$port" "$1" "${2// /}"
}

GREET=00cef7853c
PING="$GREET 0d 01020304"

# fds: how many descriptors crund has.
fds()
{
    local all=(/proc/"$pid"/fd/*)
    echo "${#all[@]}"
}

has_fds()
{
    [[ $(fds) -eq $1 ]]
}

# rss: its resident memory in KiB.
rss()
{
    awk '/^VmRSS/ { print $2 }' "/proc/$pid/status"
}

# --- options ---
run "$CRUND" --version
is "$status $out" "0 crund $(cat "$ROOT/VERSION")" "--version"
run "$CRUND" --help
is "$status" 0 "--help succeeds"
for name in listen ready-fd max-clients max-key-bytes max-value-bytes \
    max-keys max-memory old-clients token-file store-allow; do
    like "$out" "^ +--$name [A-Z1]" "--help lists --$name"
done

# mistake WHAT REGEX ARGS...
mistake()
{
    local what=$1 regex=$2
    shift 2
    run "$CRUND" "$@"
    is "$status" 2 "$what is a mistake"
    like "$err" "^crund: error: .*$regex" "$what is named"
}
mistake "no address" '--listen'
mistake "no port" "'localhost'.*HOST:PORT" --listen localhost
mistake "a port that is none" "'localhost:x'" --listen localhost:x
mistake "a port too large" "'localhost:65536'" --listen localhost:65536
mistake "IPv6 without brackets" 'brackets' --listen ::1:0
mistake "an unknown option" '--max-client=3.*--max-clients' \
    --listen :0 --max-client=3
mistake "a number that is none" "--max-clients='many'" \
    --listen :0 --max-clients many
mistake "a size that is none" "--max-memory='1T'" --listen :0 --max-memory 1T
mistake "an unknown version" "'1.5'.*1.13" --listen :0 --old-clients 1.5
mistake "no file with a secret" '--token-file: its value is empty' \
    --listen :0 --token-file=
mistake "no network" '--store-allow: its value is empty' \
    --listen :0 --store-allow=
mistake "an argument" "'more'" --listen :0 more
mistake "standard output as the descriptor" "--ready-fd='1'" \
    --listen :0 --ready-fd 1
mistake "a closed descriptor" '--ready-fd=7' --listen :0 --ready-fd 7 7<&-

# --- listening ---
start
is "$(cat out)" "127.0.0.1:$port" "it prints where it listens"
is "$(say 4 "$PING")" 01020304 "and serves there"
run "$CRUND" --listen "127.0.0.1:$port"
is "$status" 1 "PORT-01 a port in use is an error"
like "$err" "crund: error: .*127.0.0.1 port $port.*in use" "PORT-01 it is named"
stop TERM
is "$status" 0 "SIGTERM ends it with 0"
run "$CRUND" --listen 192.0.2.1:0
is "$status" 1 "an address of another machine is an error"
like "$err" '192.0.2.1.*no address of this machine' "it is named"
run "$CRUND" --listen 'no such host:0'
is "$status" 1 "a name that does not resolve is an error"
like "$err" 'no such host.*does not resolve' "it is named"
start
is "$(cat err | grep -vc 'may be open')" 0 "PORT-03 nothing else is said"
stop INT
is "$status" 0 "SIGINT ends it with 0"

# On the same port again and again, with a client connected.
bad=0
"$CRUND" --listen "127.0.0.1:$port" >out 2>err &
pid=$!
for ((i = 0; i < 20; i++)); do
    wait_for 10 test -s out
    [[ $(say 4 "$PING") == 01020304 ]] || ((++bad))
    "$PEER" idle "$port" 3 >idle &
    idle=$!
    wait_for 10 test -s idle
    stop $((i % 2 ? 9 : 15)) 2>/dev/null
    kill "$idle" && wait "$idle"
    rm -f idle
    "$CRUND" --listen "127.0.0.1:$port" >out 2>err &
    pid=$!
done
is "$bad" 0 "PORT-03 20 reruns on one port, with clients connected"
wait_for 10 test -s out
stop

for listen in '*:0' ':0'; do
    "$CRUND" --listen "$listen" >out 2>err &
    pid=$!
    wait_for 10 test -s out
    port=$(sed 's/.*://' out)
    is "$(say 4 "$PING")" 01020304 "$listen listens on every address"
    stop
done
if grep -q ' lo$' /proc/net/if_inet6 2>/dev/null; then
    "$CRUND" --listen '[::1]:0' >out 2>err &
    pid=$!
    wait_for 10 test -s out
    port=$(cat out)
    like "$port" '^\[::1\]:[1-9][0-9]*$' "IPv6 is printed as it is typed"
    is "$(say 4 "$PING")" 01020304 "and served"
    stop
else
    skip 2 "no IPv6 here"
fi

# --- being ready ---
mkfifo ready
"$CRUND" --listen 127.0.0.1:0 --ready-fd 9 >out 2>err 9>ready &
pid=$!
line=$(timeout 60 cat ready) # to the end of file
is "$line" "$(cat out)" "--ready-fd gets the same line, and its end"
stop

# Nothing but the descriptor of --ready-fd is open at the start.
"$CRUND" --listen 127.0.0.1:0 --ready-fd 9 9>ready <&- >&- 2>&- &
pid=$!
port=$(timeout 60 sed 's/.*://' ready)
is "$(say 4 "$PING")" 01020304 "it serves without descriptors 0 to 2"
is "$(readlink /proc/$pid/fd/{0,1,2} | sort -u)" /dev/null \
    "which are nobody's sockets"
stop
is "$status" 0 "and ends with 0"

# A reader of its output that has gone.
"$CRUND" --listen 127.0.0.1:0 --ready-fd 9 9>ready > >(exit 0) 2>err &
pid=$!
port=$(timeout 60 sed 's/.*://' ready)
is "$(say 4 "$PING")" 01020304 "it serves though nobody reads its output"
stop
is "$status" 0 "and ends with 0"

# A reader of its log that does not read: the pipe is full from the start.
mkfifo log
exec 8<>log
dd if=/dev/zero of=log bs=4096 oflag=nonblock 2>/dev/null
"$CRUND" --listen 127.0.0.1:0 >out 2>&8 &
pid=$!
wait_for 10 test -s out
port=$(sed 's/.*://' out)
"$PEER" garbage "$port" 100
is "$(say 4 "$PING")" 01020304 "it serves though nobody reads its log"
stop
is "$status" 0 "and ends with 0"
exec 8>&-

# --- limits ---
start --max-key-bytes 8 --max-value-bytes 1K --max-keys 2 --max-clients 3
is "$(say 12 "$GREET 01 0100000000000000 6b 0004000000000000 \
    $(printf '%02048d' 0) 03 0100000000000000 6b")" \
    "0004000000000000$(printf '%08d' 0)" "a value of 1K is stored"
is "$(say 1 "$GREET 01 0100000000000000 6b 0104000000000000")" closed \
    "STO-06 one byte more ends the client"
like "$(cat err)" 'a value of 1025 bytes .*1024 peer=127.0.0.1:[0-9]+$' \
    "and is logged with the peer"
is "$(say 1 "$GREET 01 0900000000000000")" closed "--max-key-bytes"
is "$(say 1 "$GREET 05 0300000000000000")" closed "--max-keys"
is "$(grep -c peer= err)" 3 "one line each"
"$PEER" idle "$port" 3 >idle &
idle=$!
wait_for 10 test -s idle
is "$(say 1 "$PING")" closed "--max-clients"
kill "$idle" && wait "$idle"
rm -f idle
stop

start --max-memory 16K
is "$(say 1 "$GREET 01 0100000000000000 6b 0080000000000000 \
    $(printf '%065536d' 0)")" closed "--max-memory"
is "$(say 4 "$PING")" 01020304 "which others do not feel"
stop

start
is "$(say 1 '07 0100000000000000 6b')" 03 "1.13 is what old clients are"
stop
start --old-clients 2.1
is "$(say 8 '07 0100000000000000 6b')" 0000000000000000 "--old-clients 2.1"
stop
start --old-clients none
is "$(say 8 '06')" closed "--old-clients none"
is "$(say 4 "$PING")" 01020304 "new ones are served in any case"
stop

# --- descriptors ---
(
    ulimit -Sn 64
    exec "$CRUND" --listen 127.0.0.1:0 --max-clients 100
) >out 2>err &
pid=$!
wait_for 10 test -s out
is "$(awk '/Max open files/ { print $4 == $5 }' /proc/$pid/limits)" 1 \
    "STO-12 the soft limit becomes the hard one"
is "$(cat err)" "" "which is said nothing about"
stop
(
    ulimit -n 64
    exec "$CRUND" --listen 127.0.0.1:0 --max-clients 100
) >out 2>err &
pid=$!
wait_for 10 test -s out
port=$(sed 's/.*://' out)
like "$(cat err)" ' 64 files.*ulimit.* 100 clients' \
    "STO-12 a hard limit that is too low is told"
"$PEER" work "$port" 4 >work 2>work.err &
work=$!
wait_for 10 test -s work
"$PEER" silent "$port" 100 >silent &
silent=$!
wait_for 10 test -s silent
bad=0
for ((i = 0; i < 10; i++)); do
    [[ $(say 4 "$PING") == 01020304 ]] || ((++bad))
done
is "$bad" 0 "STO-12 new clients are served with all descriptors in use"
kill "$silent" && wait "$silent"
kill "$work" && wait "$work"
is "$(tail -n 1 work)$(cat work.err)" "worked well" "STO-12 and old ones"
is "$(wc -l <err)" 2 "STO-12 it is told once"
stop
rm -f work silent

# --- peers that are no clients ---
start
"$PEER" work "$port" 4 >work 2>work.err &
work=$!
wait_for 10 test -s work
before=$(fds)
size=$(rss)
"$PEER" vanish "$port" 10000
is "$?" 0 "STO-02 10000 peers connect and vanish"
wait_for 10 has_fds "$before"
ok $? "STO-02 the number of descriptors is as before"
"$PEER" garbage "$port" 10000
is "$?" 0 "STO-01 10000 connections of garbage"
wait_for 10 has_fds "$before"
ok $? "STO-01 the number of descriptors is as before"
if [[ ${FLAVOR:-release} == release ]]; then
    (($(rss) - size < 16 * 1024))
    ok $? "STO-01 its memory has grown by less than 16 MiB"
else
    skip 1 "memory is measured without sanitizers"
fi
kill "$work" && wait "$work"
is "$(tail -n 1 work)$(cat work.err)" "worked well" \
    "STO-01 STO-02 no client has noticed"
stop
is "$status" 0 "it ends with 0"
lines=$(grep -c peer= err)
((lines > 5 && lines < 5000))
ok $? "STO-01 few lines are logged ($lines)"
rm -f work

# --- idle clients ---
start
"$PEER" idle "$port" 100 >idle &
warm=$!
wait_for 10 test -s idle
size=$(rss)
rm -f idle
"$PEER" idle "$port" 3000 >idle &
idle=$!
wait_for 30 test -s idle
if [[ ${FLAVOR:-release} == release ]]; then
    each=$((($(rss) - size) * 1024 / 3000))
    ((each < 1024))
    ok $? "an idle client takes less than 1 KiB of memory ($each bytes)"
else
    skip 1 "memory is measured without sanitizers"
fi
is "$(say 4 "$PING")" 01020304 "3100 idle clients are in nobody's way"
stop
kill "$idle" "$warm" && wait "$idle" "$warm"
is "$status" 0 "TERM ends it with 3100 clients connected"
