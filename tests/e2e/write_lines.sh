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

# talk N OUT ERR [OPTION...]: eight ranks write N lines to each stream, into
# these files, both into one if it is the same; again where a rank was held up
# within a line, and without the folder logs then, which the options may name.
talk()
{
    local n=$1 out=$2 err=$3 status
    local talkers=(env WRITE_LINES_STALLED="$PWD/stalled" "$CRUN"
        --nproc_per_node=8 "${@:4}" "$HELPERS/write_lines" "$n")
    for _ in 1 2 3 4 5 6 7 8; do
        rm -rf stalled logs
        if [[ $out == "$err" ]]; then
            "${talkers[@]}" >"$out" 2>&1
        else
            "${talkers[@]}" >"$out" 2>"$err"
        fi
        status=$?
        [[ -e stalled ]] || break
    done
    return $status
}
