"""This PyTorch's FileStore and crun's file store on one file.

    file_store.py FILE_OPS      the program built from file_ops.c

Prints TAP. Where an operation is newer than this PyTorch, that is a skip.
"""
import os
import subprocess
import sys
import tempfile

import torch.distributed as dist

from peer import Background, Tap, seconds

FILE_OPS = sys.argv[1]
FOLDER = tempfile.TemporaryDirectory()
TIMEOUT = (RuntimeError,)
# Newer ones count how many have the file open, in a key of their own.
COUNTS_OPENED = hasattr(dist.FileStore, "append")


class Peer:
    """crun's store in a process of its own."""

    def __init__(self, path, world_size=0):
        self.process = subprocess.Popen(
            [FILE_OPS, path, str(world_size)], stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, text=True)
        self.expect("=open")

    def read(self):
        return self.process.stdout.readline().rstrip("\n")

    def expect(self, line):
        got = self.read()
        if got != line:
            raise AssertionError(f"file_ops said {got!r}, not {line!r}")

    def send(self, *words):
        self.process.stdin.write(" ".join(map(str, words)) + "\n")
        self.process.stdin.flush()

    def __call__(self, *words):
        """The result of a call; its first character says whether it is one."""
        self.send(*words)
        return self.read()

    def close(self):
        self.process.stdin.close()
        if self.process.wait(60) != 0:
            raise AssertionError("file_ops failed")


def word(value):
    return "x" + value.hex()


def fresh_path(name):
    return os.path.join(FOLDER.name, name.replace(" ", "-"))


def both(name, world_size=0):
    """A store of each kind on a new file; the order is one's and the other's.
    A world size of 0 would have 1.13 remove the file at its last close."""
    path = fresh_path(name)
    ours = Peer(path, world_size)
    theirs = dist.FileStore(path, world_size or -1)
    theirs.set_timeout(seconds(60))
    return path, ours, theirs


def values(tap):
    _, ours, theirs = both("values")
    every = bytes(range(256))
    for name, value in (("text", b"value"), ("empty", b""), ("NUL", b"\0"),
                        ("every byte", every), ("1 MB", every * 4096)):
        key = name.replace(" ", "-")
        theirs.set("t/" + key, value)
        tap.ok(ours("get", "t/" + key) == "=" + word(value),
               f"crun reads what PyTorch sets: {name}")
        tap.equal(ours("set", "o/" + key, word(value)), "=",
                  f"crun sets: {name}")
        tap.equal(theirs.get("o/" + key), value,
                  f"PyTorch reads what crun sets: {name}")
    ours("set", "t/text", word(b"another"))
    tap.equal(theirs.get("t/text"), b"another", "a later set replaces")
    theirs.set("t/text", "a third")
    tap.equal(ours("get", "t/text"), "=" + word(b"a third"),
              "and so does PyTorch's")
    theirs.set("//two//", "slashes")
    tap.equal(ours("get", "//two//"), "=" + word(b"slashes"),
              "slashes in keys are kept")
    ours.close()


def counters(tap):
    _, ours, theirs = both("counters")
    tap.equal(theirs.add("n", 5), 5, "PyTorch begins a counter")
    tap.equal(ours("add", "n", -7), "=-2", "crun goes on")
    tap.equal(theirs.add("n", 1), -1, "and PyTorch")
    tap.equal(theirs.get("n"), b"-1", "a counter is decimal text")
    theirs.set("empty", "")
    tap.equal(ours("add", "empty", 3), "=3", "an empty value counts as 0")
    theirs.set("text", "abc")
    tap.equal(ours("add", "text", 1)[0], "!", "text is no number")
    ours.close()


def together(tap):
    _, ours, theirs = both("together")
    ours.send("add", "sum", 1, 3000)
    for _ in range(3000):
        theirs.add("sum", 1)
    tap.equal(ours.read()[0], "=", "3,000 adds of crun")
    tap.equal(theirs.add("sum", 0), 6000, "beside 3,000 of PyTorch")
    ours.close()


def compare_set(tap):
    path, ours, theirs = both("compare_set")
    if not hasattr(theirs, "compare_set"):
        tap.skip("compare_set", "this PyTorch has none")
        return
    rows = ((None, b"", b"new"), (None, b"x", b"new"), (b"x", b"x", b"new"),
            (b"x", b"y", b"new"), (b"x", b"", b"new"), (b"", b"", b"new"))
    for number, (old, expected, desired) in enumerate(rows):
        results = []
        for kind in "t", "o":
            key = f"{kind}{number}"
            if old is not None:
                theirs.set(key, old)
            if kind == "t":
                now = theirs.compare_set(key, expected.decode(),
                                         desired.decode())
                now = now if isinstance(now, bytes) else now.encode()
                results.append(("=" + word(now), ours("check", key)))
            else:
                results.append((ours("compare_set", key, word(expected),
                                     word(desired)), ours("check", key)))
            if results[-1][1] == "=1":
                results[-1] += (theirs.get(key), ours("get", key))
        tap.equal(results[1], results[0],
                  f"compare_set of {old} from {expected} as PyTorch's")
    ours.close()


def deleting_and_counting(tap):
    _, ours, theirs = both("delete")
    for key in "abcd":
        theirs.set(key, key)
    tap.ok(theirs.delete_key("a"), "PyTorch deletes")
    tap.equal(ours("check", "a"), "=0", "crun misses it")
    tap.equal(ours("delete", "b"), "=1", "crun deletes")
    tap.equal(ours("delete", "b"), "=0", "but once")
    tap.raises(TIMEOUT, lambda: theirs.wait(["b"], seconds(0.01)),
               "PyTorch misses it")
    tap.equal(ours("num_keys"), f"={theirs.num_keys()}",
              "both count the same keys")
    ours("set", "b", word(b"again"))
    tap.equal(theirs.get("b"), b"again", "a deleted key can be set again")
    listed = sorted(ours("list_keys")[1:].split())
    tap.equal(listed, ["b", "c", "d"], "crun lists the keys of users")
    if hasattr(theirs, "list_keys"):
        # What PyTorch makes of the keys without a slash is left out.
        tap.equal(sorted(set(theirs.list_keys()) & set("abcd")), listed,
                  "and so does PyTorch")
    else:
        tap.skip("list_keys", "this PyTorch has none")
    ours.close()


def several_at_a_time(tap):
    _, ours, theirs = both("several")
    if not COUNTS_OPENED:
        tap.skip("append, multi_get, multi_set", "this PyTorch has none")
    else:
        theirs.append("log", "one ")
        tap.equal(ours("append", "log", word(b"two ")), "=", "crun appends")
        theirs.append("log", "three")
        tap.equal(ours("get", "log"), "=" + word(b"one two three"),
                  "PyTorch appends")
        theirs.multi_set(["m1", "m2"], ["1", ""])
        tap.equal(ours("multi_get", "m2", "m1"),
                  f"= {word(b'')} {word(b'1')}", "crun gets several")
        tap.equal(ours("multi_set", "m3", word(b"3"), "m4", word(b"4")), "=",
                  "crun sets several")
        tap.equal(theirs.multi_get(["m4", "m3"]), [b"4", b"3"],
                  "PyTorch gets several")
    ours.close()


def waiting(tap):
    path, ours, theirs = both("waiting")
    ours.send("get", "later")
    theirs.set("later", "1")
    tap.equal(ours.read(), "=" + word(b"1"), "crun waits for PyTorch")
    for name, arguments in (("set", ("from-set", word(b"1"))),
                            ("add", ("from-add", 1)),
                            ("compare_set",
                             ("from-cas", word(b""), word(b"1")))):
        # Another store: one FileStore makes its calls one at a time.
        waiter = dist.FileStore(path, -1)
        waiter.set_timeout(seconds(60))
        call = Background(waiter.get, arguments[0])
        call.blocked()
        tap.equal(ours(name, *arguments)[0], "=", f"crun: {name}")
        tap.ok(call.done() and call.result == b"1",
               f"PyTorch waits for crun: {name}")
    got = ours("within", 50, "wait", "later", "never")
    tap.ok(got[0] == "!" and "'never'" in got, "crun's time-out", got)
    tap.equal(ours("check", "later"), "=1", "after which it goes on")
    ours.close()


def end_of_life(tap):
    path, ours, theirs = both("ours first", 2)
    ours.close()
    tap.ok(os.path.exists(path), "the file stays when crun closes first")
    theirs.set("k", "v")
    del theirs
    tap.ok(not os.path.exists(path), "and goes when PyTorch has closed")

    path, ours, theirs = both("theirs first", 2)
    theirs.set("k", "v")
    del theirs
    tap.ok(os.path.exists(path), "it stays when PyTorch closes first")
    tap.equal(ours("get", "k"), "=" + word(b"v"), "with what was set")
    ours.close()
    tap.ok(not os.path.exists(path), "and goes when crun has closed")

    path, ours, theirs = both("no world size")
    del theirs
    ours.close()
    tap.ok(os.path.exists(path), "without a world size it stays")


def crash(tap):
    path, ours, theirs = both("crash")
    theirs.set("k", "v")
    with open(path, "ab") as file:
        file.write(b"\x02\0\0\0/k\xff\0")
    tap.equal(ours("get", "k")[0], "!", "a torn record is an error to crun")
    tap.equal(ours("set", "k2", word(b"v2")), "=", "its next set removes it")
    tap.equal(theirs.get("k2"), b"v2", "so that PyTorch goes on")
    tap.equal(theirs.get("k"), b"v", "with all that was whole")
    ours.close()


def main():
    tap = Tap()
    for group in (values, counters, together, compare_set,
                  deleting_and_counting, several_at_a_time, waiting,
                  end_of_life, crash):
        tap.group(group)
    FOLDER.cleanup()
    tap.finish()


main()
