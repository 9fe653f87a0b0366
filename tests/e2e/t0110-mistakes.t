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
2|--nproc_per_node\?|--standalone --nproc_per_nodes=4 ./w
2|--nprocpernode=2|--nprocpernode=2 ./w
2|nproc_per_node=.?0|--nproc-per-node 0 ./w
2|nproc_per_node=.?-1|--nproc-per-node -1 ./w
2|1\.5|--nproc-per-node 1.5 ./w
2|x.?: expected a number|--nproc-per-node x ./w
2|99999999999|--nproc-per-node 99999999999 ./w
2|--nproc_per_node: its value is empty|--nproc-per-node= ./w
2|--nnodes=.2:1|--nnodes 2:1 ./w
2|--nnodes=.0|--nnodes 0 ./w
2|--nnodes=.1:2:3|--nnodes 1:2:3 ./w
2|--nnodes=.a|--nnodes a ./w
2|--max_restarts=.-1|--max-restarts -1 ./w
2|--max_restarts=.x|--max-restarts x ./w
2|--monitor_interval=.0|--monitor-interval 0 ./w
2|--shutdown_timeout=.-1|--shutdown-timeout -1 ./w
2|--start_method=.foo.*spawn|--start-method foo ./w
2|ambiguous: --rdzv_backend|--rdzv x ./w
2|--role needs a value.*--standalone|--role --standalone ./w
2|etcd.*c10d|--rdzv-backend etcd ./w
2|etcd-v2.*c10d|--rdzv-backend etcd-v2 ./w
2|zeus.*static, c10d|--rdzv-backend zeus ./w
2|h:x.*port|--rdzv-endpoint h:x ./w
2|.c. lacks a value|--rdzv-conf a=b,c ./w
2|backend=|--rdzv-conf backend=c10d ./w
2|--redirects=.4|-r 4 ./w
2|--redirects=.10:1.*no local rank 10|-r 10:1 ./w
2|--tee=.x|-t x ./w
2|--local_ranks_filter=.0,3|--nproc_per_node=2 --local-ranks-filter 0,3 ./w
2|SIGFOO|--signals-to-handle SIGTERM,SIGFOO ./w
2|SIGKILL|--signals-to-handle KILL ./w
2|--run_path.*python -u|--run-path ./w
2|--logs_specs=.mine|--logs-specs mine ./w
2|--event_log_handler=.mine|--event-log-handler mine ./w
2|--crash_loop=.3|--crash-loop 3 ./w
2|--omp_num_threads=.0|--omp-num-threads 0 ./w
2|--exit_code=.3|--exit-code 3 ./w
2|--print_completion=.tcsh|--print-completion tcsh
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
plan $((4 * ncases + 6))

while IFS='|' read -r want named args; do
    # shellcheck disable=SC2086 # words are meant
    run "$CRUN" --log-dir logs $args
    is "$status" "$want" "ARG-05: status of: crun $args"
    like "$err" "$named" "ARG-05: message of: crun $args"
    [[ -z $out && $(grep -c 'error:' <<<"$err") -eq 1 && ! -e started ]]
    ok $? "ARG-05: one error, nothing started: crun $args"
    [[ $want -ne 2 || ! -e logs && $err == *usage:* ]]
    ok $? "ARG-05: no folder; the usage: crun $args"
    rm -rf logs
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

run env TORCHELASTIC_ENABLE_FILE_TIMER=1 "$CRUN" ./w
is "$status" 1 "a file timer is refused"
like "$err" 'error: TORCHELASTIC_ENABLE_FILE_TIMER=1: .*unset it' \
    "by name, with what to do"
