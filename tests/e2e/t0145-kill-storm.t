#!/bin/bash
# The front or the agent is killed at a random moment, start-up included: a
# second later no process of the job exists, whatever the workers do to stay.
#
#   CRUN_STORM_ROUNDS   how often, 20 unless given
#   CRUN_STORM_SEED     the seed of an earlier run
. "${BASH_SOURCE%/*}/tap.sh"
[[ ${FLAVOR:-release} != tsan ]] ||
    skip_all "no process here has threads of its own to look at"
plan 10

cd "$TMP" || exit 255
export OMP_NUM_THREADS=1
rounds=${CRUN_STORM_ROUNDS:-20}
seed=${CRUN_STORM_SEED:-$RANDOM}

# storm ARGS...: not by run, whose time limit is not for a thousand rounds.
storm()
{
    "$HELPERS/kill_storm" -s "$seed" -w hostile "$@" >out 2>err
    status=$?
    out=$(cat out)
}

# What the storm sees if a launcher is no supervisor.
storm -k agent sh -c '"$@" & "$@" & wait' sh "$HELPERS/hostile"
is "$status" 1 "a launcher that lets its workers live is found out"
like "$out" 'processes left after [0-9]+ s: [1-9]' "and they are counted"

storm -n "$rounds" "$CRUN" --nproc_per_node=4 "$HELPERS/hostile" -p
echo "# $out"
like "$out" "^$rounds rounds: .*processes left after [0-9]+ s: 0" \
    "ELA-12 nothing is left"
is "$status" 0 "ELA-12 and crun ends as it should" || diag "seed $seed
$(grep -v '^\[' err | tail -n 50)"

# With restarts, so that kills meet the change of generations.
storm -n "$rounds" "$CRUN" --nproc_per_node=3 --max_restarts=1000 \
    "$HELPERS/hostile" -x 3
like "$out" "^$rounds rounds: .*processes left after [0-9]+ s: 0" \
    "ELA-12 nothing is left of a job that restarts"
is "$status" 0 "ELA-12 and crun ends as it should" || diag "seed $seed
$(grep -v '^\[' err | tail -n 50)"

# Ranks at work with each other, also just when they meet. In a /dev/shm of
# their own nobody else's files come and go.
work='while "$1" >/dev/null; do :; done'
in_shm=()
if unshare -Urm true 2>/dev/null; then
    in_shm=(unshare -Urm sh -c 'mount -t tmpfs tmpfs /dev/shm || exit
        "$@"; code=$?; ls -A /dev/shm >shm; exit $code' sh)
fi
"${in_shm[@]}" "$HELPERS/kill_storm" -s "$seed" -n "$rounds" "$CRUN" \
    --nproc_per_node=4 sh -c "$work" sh "$HELPERS/coll_check" >out 2>err
is "$?" 0 "CON-02 nothing is left of ranks that share memory" ||
    diag "$(cat out; tail -n 20 err)"
if [[ -e shm ]]; then
    is "$(cat shm)" "" "CON-02 and nothing in /dev/shm"
else
    skip 1 "no mount namespaces here"
fi

# The documented limit: with both dead nobody is there to end what workers
# have started; the workers themselves end.
storm -k both -n 2 "$CRUN" --nproc_per_node=3 "$HELPERS/hostile"
echo "# $out"
like "$out" 'workers left: 0, others: [0-9]+' \
    "ELA-12 both killed at once: the workers end"
grep -qw hostile err && grep -w hostile err | grep '^left'
is "$?" 1 "ELA-12 and what is left was started by them"
