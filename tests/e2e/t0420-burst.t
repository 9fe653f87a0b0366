#!/bin/bash
# Thousands of clients that connect in one moment to a store whose queue of
# connections holds 128.
. "${BASH_SOURCE%/*}/tap.sh"
cd "$TMP" || exit

# A thread each, so fewer where each costs much.
count=4000
case ${FLAVOR:-release} in
asan | tsan) count=400 ;;
esac

ns=(unshare -n)
[[ $EUID -eq 0 ]] || ns=(unshare -Urn)
cat >inside <<'END'
ip link set lo up && echo 128 >/proc/sys/net/core/somaxconn || exit 9
[ "$1" != probe ] || exit 0
"$1" --listen 127.0.0.1:0 --ready-fd 9 9>ready >/dev/null \
    2>crund.err &
crund=$!
i=0
while [ ! -s ready ] && [ $((i += 1)) -le 500 ]; do sleep 0.02; done
[ -s ready ] || exit 7
port=$(cut -d: -f2 <ready)
ss -ltn "sport = :$port" 2>/dev/null | awk 'NR == 2 { print $3 }' >backlog
timeout -k 5 200 "$2" 127.0.0.1 "$port" "$3"
status=$?
kill "$crund" && wait "$crund" || status=8
exit "$status"
END
if ! "${ns[@]}" sh inside probe 2>/dev/null; then
    skip_all "no network namespace here"
fi
# As many files as that needs.
if ! (ulimit -n $((count + 100))) 2>/dev/null; then
    skip_all "needs $((count + 100)) open files (ulimit -Hn)"
fi
plan 3
RUN_TIMEOUT=200 run "${ns[@]}" sh inside "$CRUND" "$HELPERS/burst" "$count"
is "$status $out" "0 $count" "STO-03 all of $count clients get through"
is "$(cat backlog)" 128 "STO-03 the queue is as long as the system allows"
is "$err$(cat crund.err)" "" "STO-03 and nobody complains"
