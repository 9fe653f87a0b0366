# What scripts share that run helpers/write_lines with eight ranks.
#
# shellcheck shell=bash

# checks FILE STREAM NLINES: prints how many of its lines are not whole, or not
# in order within their rank.
checks()
{
    awk -F: -v stream="$2" -v nlines="$3" '
        $2 != stream || length($5) != $4 || $5 !~ /^x+$/ { bad++; next }
        $3 != next_of[$1] + 0 { bad++ }
        { next_of[$1] = $3 + 1 }
        END {
            for (r = 0; r < 8; r++) if (next_of[r] != nlines) bad++
            print bad + 0
        }' "$1"
}

# talk N OUT [ERR]: eight ranks write N lines to each stream, into these files,
# without ERR both into OUT; again where a rank was held up within a line.
talk()
{
    local status
    for _ in 1 2 3 4 5; do
        rm -f stalled
        if [[ $# -eq 2 ]]; then
            WRITE_LINES_STALLED=$PWD/stalled "$CRUN" --nproc_per_node=8 \
                "$HELPERS/write_lines" "$1" >"$2" 2>&1
        else
            WRITE_LINES_STALLED=$PWD/stalled "$CRUN" --nproc_per_node=8 \
                "$HELPERS/write_lines" "$1" >"$2" 2>"$3"
        fi
        status=$?
        [[ -e stalled ]] || break
    done
    return $status
}
