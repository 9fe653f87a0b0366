"""A worker of the side-by-side test: notes how it was started and then does
what the case says.

SIDE_DIR is the folder for notes; SIDE_DO holds Python statements, which may
use what is defined here.
"""
import json
import os
import signal
import subprocess
import sys
import time

folder = os.environ["SIDE_DIR"]
rank = int(os.environ["RANK"])
attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])


def note(name, text=""):
    """Leaves a file, complete from the moment that it exists."""
    path = os.path.join(folder, f"{name}.{attempt}.{rank}")
    with open(path + "~", "w") as file:
        file.write(text)
    os.rename(path + "~", path)


def wait_for(name, of_rank=None):
    """Until a note exists; whoever runs the test bounds the time."""
    path = os.path.join(folder, f"{name}.{attempt}."
                        f"{rank if of_rank is None else of_rank}")
    while not os.path.exists(path):
        time.sleep(0.02)


def meet():
    """Waits until all workers of this attempt have come here."""
    note("here")
    for other in range(int(os.environ["WORLD_SIZE"])):
        wait_for("here", other)


def tell_signals(*signals, end=True):
    """Notes each of these signals, and ends with 0 unless told not to."""
    def handler(number, frame):
        note(signal.Signals(number).name)
        if end:
            os._exit(0)

    for number in signals:
        signal.signal(number, handler)


def command_line():
    with open("/proc/self/cmdline", "rb") as file:
        return os.fsdecode(file.read()).split("\0")[:-1]


def main():
    note("start", json.dumps({
        "environment": dict(os.environ),
        "command": command_line(),
        "program": sys.argv[0],
        "arguments": sys.argv[1:],
        "unbuffered": sys.stdout.write_through,
        "folder": os.getcwd(),
        "umask": os.umask(0),
        "descriptors": sorted(int(fd) for fd in os.listdir("/proc/self/fd")
                              if os.path.exists(f"/proc/self/fd/{fd}")),
        "leads": os.getpgrp() == os.getpid(),
        "pid": os.getpid(),
    }))
    exec(os.environ.get("SIDE_DO", ""), globals())


if __name__ == "__main__":
    if os.environ.get("SIDE_RECORD"):
        from torch.distributed.elastic.multiprocessing.errors import record
        main = record(main)
    main()
