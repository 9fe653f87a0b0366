"""Rounds of the same gloo workers, each through a fresh store object.

    gloo_rounds.py STORE_ROUNDS ROUNDS

STORE_ROUNDS is a program that hosts stores behind one port, which it prints.
"next" on its standard input makes it destroy the present store with all its
connections and put a fresh one in its place; it answers with "round N". Prints
TAP: every round has to form.

    gloo_rounds.py worker

is what this starts for each rank: one round per line of its standard input.
"""
import os
import subprocess
import sys
import threading

SIZE = 2
LIMIT = 120  # seconds for one round; the first one imports PyTorch


def work():
    import torch
    import torch.distributed as dist

    # Some versions of gloo tell standard output about their connections.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    for line in sys.stdin:
        number = int(line)
        dist.init_process_group("gloo")
        tensor = torch.tensor([dist.get_rank() + number])
        dist.all_reduce(tensor)
        dist.destroy_process_group()
        print(number, tensor.item(), file=answers)


def start(command, **options):
    return subprocess.Popen(command, stdin=subprocess.PIPE, text=True,
                            stdout=subprocess.PIPE, bufsize=1, **options)


def drive(program, rounds):
    print(f"1..{rounds}", flush=True)
    host = start([program])
    port = host.stdout.readline().strip()
    workers = []
    for rank in range(SIZE):
        environment = dict(os.environ, MASTER_ADDR="127.0.0.1",
                           MASTER_PORT=port, RANK=str(rank),
                           WORLD_SIZE=str(SIZE), LOCAL_RANK=str(rank),
                           TORCHELASTIC_USE_AGENT_STORE="True",
                           TORCHELASTIC_RESTART_COUNT="0")
        workers.append(start([sys.executable, __file__, "worker"],
                             env=environment))

    def give_up():
        for process in workers + [host]:
            process.kill()

    failed = 0
    answer = "round 0\n"
    for number in range(rounds):
        # A round that hangs ends in the end of these processes' outputs.
        watchdog = threading.Timer(LIMIT, give_up)
        watchdog.start()
        try:
            if number > 0:
                host.stdin.write("next\n")
                answer = host.stdout.readline()
            for worker in workers:
                worker.stdin.write(f"{number}\n")
            results = [worker.stdout.readline() for worker in workers]
        except BrokenPipeError:
            results = []
        watchdog.cancel()
        want = f"{number} {SIZE * number + SIZE * (SIZE - 1) // 2}\n"
        good = results == [want] * SIZE and answer == f"round {number}\n"
        failed += not good
        print(f"{'ok' if good else 'not ok'} {number + 1} - "
              f"round {number} forms", flush=True)
        if not good:
            print(f"#   got: {results} after {answer!r}\n"
                  f"# wanted: {want!r} of each", file=sys.stderr, flush=True)
            break
    for process in workers + [host]:
        process.stdin.close()
    ends = []
    for process in workers + [host]:
        try:
            ends.append(process.wait(30))
        except subprocess.TimeoutExpired:
            process.kill()
            ends.append("killed")
    if ends != [0] * (SIZE + 1):
        print(f"# exit statuses of workers and host: {ends}", file=sys.stderr)
        failed += 1
    sys.exit(1 if failed else 0)


if sys.argv[1] == "worker":
    work()
else:
    drive(sys.argv[1], int(sys.argv[2]))
