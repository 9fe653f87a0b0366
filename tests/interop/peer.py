"""What the programs in this folder share: TAP lines and a store's client.

They run with PyTorch from 1.13 on, so what a version lacks is asked for and
never guessed from its number.
"""
import datetime
import os
import sys
import threading
import time
import traceback

import torch.distributed as dist


class Tap:
    """Counts assertions; finish() prints the plan and ends the program."""

    def __init__(self):
        self.count = 0
        self.failed = 0

    def ok(self, passed, name, detail=""):
        self.count += 1
        if not passed:
            self.failed += 1
        print(f"{'ok' if passed else 'not ok'} {self.count} - {name}",
              flush=True)
        if not passed and detail:
            print("".join(f"# {line}\n" for line in detail.splitlines()),
                  end="", file=sys.stderr, flush=True)

    def equal(self, got, want, name):
        # Large values would drown the report.
        self.ok(got == want, name,
                f"   got: {str(got)[:200]}\nwanted: {str(want)[:200]}")

    def raises(self, kinds, call, name):
        try:
            got = call()
        except kinds as error:
            self.ok(True, name)
            return str(error)
        except Exception as error:
            self.ok(False, name, f"raised {type(error).__name__}: {error}")
        else:
            self.ok(False, name, f"raised nothing, returned {got!r}"[:200])
        return ""

    def skip(self, name, why):
        self.count += 1
        print(f"ok {self.count} - {name} # skip {why}", flush=True)

    def group(self, function, *args):
        """Runs a function of assertions; what it raises is one that failed."""
        try:
            function(self, *args)
        except Exception:
            self.ok(False, function.__name__ + " ran to its end",
                    traceback.format_exc())

    def finish(self):
        print(f"1..{self.count}", flush=True)
        # Not through the interpreter's end: threads that still wait for a
        # store would keep it.
        os._exit(1 if self.failed else 0)


def seconds(number):
    return datetime.timedelta(seconds=number)


def connect(host, port, timeout=60, **options):
    """A client's store, whatever the build was linked to."""
    options.update(is_master=False, timeout=seconds(timeout))
    try:
        return dist.TCPStore(host, port, **options)
    except RuntimeError as error:
        # Builds without libuv want to be told so, though a client needs none.
        if "libuv" not in str(error).lower():
            raise
    return dist.TCPStore(host, port, use_libuv=False, **options)


class Background:
    """A call in a thread of its own; its result is asked for later."""

    def __init__(self, call, *args):
        self.error = self.result = None
        self.thread = threading.Thread(target=self.run, args=(call, args),
                                       daemon=True)
        self.thread.start()

    def run(self, call, args):
        try:
            self.result = call(*args)
        except Exception as error:
            self.error = error

    def blocked(self, limit=20):
        """Waits until the thread sleeps in the kernel, for its socket and not
        for the interpreter's lock."""
        futex = {"x86_64": "202", "aarch64": "98"}.get(os.uname().machine)
        end = time.monotonic() + limit
        while self.thread.is_alive() and time.monotonic() < end:
            path = f"/proc/self/task/{self.thread.native_id}/syscall"
            with open(path) as file:
                if file.read().split()[0] not in ("running", "-1", futex):
                    return True
            time.sleep(0.001)
        return False

    def done(self, limit=60):
        """Waits; True if the call has returned without an error."""
        self.thread.join(limit)
        return not self.thread.is_alive() and self.error is None
