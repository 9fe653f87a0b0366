#!/bin/bash
# Bad input: one clear error, a status that is not 0, nothing started.
. "${BASH_SOURCE%/*}/tap.sh"

cd "$TMP" || exit 255
printf '#!/bin/sh\ntouch started\n' >w
chmod +x w
echo text >plain
printf '#!/bin/sh\n' >script
printf '\177ELF' >noexec
mkdir folder
printf '#!/no/such/interpreter\n' >lost
chmod +x lost
printf '\177ELF garbage' >broken
chmod +x broken

# status | what the message must name | command line
cases='2|unknown option --nosuch|--nosuch ./w
2|--nproc_per_node\?|--nproc_per_nodes=4 ./w
2|--nprocpernode=2|--nprocpernode=2 ./w
2|nproc_per_node=0|--nproc-per-node 0 ./w
2|nproc_per_node=-1|--nproc-per-node -1 ./w
2|1\.5|--nproc-per-node 1.5 ./w
2|.x.: expected a number|--nproc-per-node x ./w
2|99999999999|--nproc-per-node 99999999999 ./w
2|--nproc_per_node: its value is empty|--nproc-per-node= ./w
2|--master_port|--master_port 70000 ./w
2|no program given|--nproc_per_node=2
1|nosuch.*127|--nproc_per_node=2 nosuch
1|\./nosuch.*127|./nosuch
1|nosuch\.py.*127|nosuch.py
1|folder.*126|./folder
1|noexec.*126|./noexec
1|script.*126|./script
1|plain.*126|--no_python ./plain
1|interpreter /no/such/interpreter.*127|./lost
1|exclude each other|-m --no_python w
1|192\.0\.2\.1|--master_addr 192.0.2.1 ./w
1|no-such-host\.invalid|--master_addr no-such-host.invalid ./w'
ncases=$(wc -l <<<"$cases")
plan $((3 * ncases + 4))

while IFS='|' read -r want named args; do
    # shellcheck disable=SC2086 # words are meant
    run "$CRUN" $args
    is "$status" "$want" "status of: crun $args"
    like "$err" "$named" "message of: crun $args"
    [[ -z $out && $(grep -c 'error:' <<<"$err") -eq 1 && ! -e started ]]
    ok $? "one error, nothing started: crun $args"
done <<<"$cases"

# Found only when the kernel looks at it.
run "$CRUN" --nproc_per_node=2 ./broken
is "$status" 1 "broken ELF file: status"
like "$err" 'rank 1: not started' "broken ELF file: the other rank is not started"
like "$err" 'could not be started: Exec format error.*exit code 126' "broken ELF file: report"

run "$CRUN" --nproc_per_node=gpu ./w
if [[ $status -eq 0 ]]; then
    skip 1 "there is a GPU here"
else
    like "$err" 'nproc_per_node=gpu: ' "no GPU is said"
fi
