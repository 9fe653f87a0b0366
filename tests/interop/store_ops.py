"""Every operation of this PyTorch's TCPStore client against a store.

    store_ops.py HOST PORT

The store has to be fresh. Prints TAP. Where the operation is newer than this
PyTorch, that is a skip.
"""
import random
import socket
import struct
import sys

import torch.distributed as dist

from peer import Background, Tap, connect, seconds

HOST, PORT = sys.argv[1], int(sys.argv[2])
# Until 2.0 a wait whose time is over leaves the connection out of step.
CANCELS = hasattr(dist.TCPStore, "append")
TIMEOUT = (RuntimeError,)


def client(**options):
    return connect(HOST, PORT, **options)


# Two clients for all that leaves a connection in order. Not one per test: each
# begins with a reverse look-up of the address, which may be slow.
a, b = client(world_size=2), client()


def sync(store):
    """Returns when the server has done what this client asked for. Sets have
    no answer: without this, another client may be faster."""
    store.num_keys()


def put(store, key, value):
    store.set(key, value)
    sync(store)


def worker_counter(tap):
    tap.equal(b.num_keys(), 1, "a client with a world size counts itself")
    second = client(world_size=2)
    tap.equal(second.num_keys(), 1, "the counter is one key")
    tap.ok(a.delete_key("init/") is False, "and none of the user's keys")


def set_and_get(tap):
    every = bytes(range(256))
    for name, value in (("text", b"value"), ("empty", b""), ("NUL", b"\0"),
                        ("every byte", every), ("40 kB", every * 157)):
        put(a, "value/" + name, value)
        tap.equal(b.get("value/" + name), value, f"set and get: {name}")
    put(a, "value/text", "another")
    tap.equal(b.get("value/text"), b"another", "a second set replaces")


def keys(tap):
    names = ["", "/", "//", "k", "/k", "k/", "k//l", "k/l", "nul\0in", "nul",
             "gr\u00f6\u00dfe", "x" * 8191]
    for number, name in enumerate(names):
        a.set(name, str(number))
    tap.equal([b.get(name) for name in names],
              [str(number).encode() for number in range(len(names))],
              "keys that are empty, long, with NUL, with doubled slashes")
    tap.equal([a.delete_key(name) for name in names], [True] * len(names),
              "each of them is a key of its own")


def large(tap):
    for size in ((8 << 20) - 1, 8 << 20, (8 << 20) + 1, 64 << 20):
        value = random.Random(size).getrandbits(64).to_bytes(8, "big")
        value = (value * (size // 8 + 1))[:size]
        put(a, "large", value)
        tap.ok(b.get("large") == value, f"a value of {size} bytes")
    got = a.compare_set("large", value, "small")
    tap.equal(got, b"small", "compare_set: 64 MiB expected")
    got = a.compare_set("large", "small", value)
    tap.ok(got == value, "compare_set: 64 MiB desired")
    a.delete_key("large")


def add(tap):
    tap.equal([a.add("n", 1), b.add("n", 41), a.add("n", -50)], [1, 42, -8],
              "add counts, for every client")
    tap.equal(b.get("n"), b"-8", "a counter is text")
    tap.equal([a.add("zero", 0), b.get("zero")], [0, b"0"], "add of 0 creates")
    a.set("text", " 41xyz")
    tap.equal(a.add("text", 1), 42, "add on a text that starts with a number")
    top = (1 << 63) - 1
    tap.equal([a.add("top", top), a.add("top", 1)], [top, -top - 1],
              "add wraps")
    put(a, "word", "word")
    tap.raises(RuntimeError, lambda: client().add("word", 1),
               "add on a word fails")
    tap.equal(b.get("word"), b"word", "and changes nothing")


def compare_set(tap):
    tap.equal([a.compare_set("cs1", "x", "new"), b.delete_key("cs1")],
              [b"x", False], "compare_set: missing, expected: not created")
    tap.equal([a.compare_set("cs2", "", "new"), b.get("cs2")],
              [b"new", b"new"], "compare_set: missing, nothing expected")
    tap.equal([a.compare_set("cs2", "new", "newer"), b.get("cs2")],
              [b"newer", b"newer"], "compare_set: as expected")
    tap.equal([a.compare_set("cs2", "new", "newest"), b.get("cs2")],
              [b"newer", b"newer"], "compare_set: another value")
    tap.equal([a.compare_set("cs2", "", "newest"), b.get("cs2")],
              [b"newer", b"newer"], "compare_set: nothing expected, but there")
    tap.equal([a.compare_set("cs2", "newer", ""), b.get("cs2")], [b"", b""],
              "compare_set: to an empty value")
    tap.equal([a.compare_set("cs2", "", "full"), b.get("cs2")],
              [b"full", b"full"], "compare_set: from an empty value")
    tap.equal(a.compare_set("cs3", "", ""), b"",
              "compare_set: missing, to an empty value")
    tap.ok(b.delete_key("cs3"), "which creates the key")


def check(tap):
    if not hasattr(dist.TCPStore, "check"):
        return tap.skip("check", "newer than this PyTorch")
    a.set("c1", "")
    put(a, "c2", "x")
    tap.equal([b.check(k) for k in (["c1"], ["c1", "c2"], ["c1", "no"],
                                    ["no"], ["c2", "c2"], [])],
              [True, True, False, False, True, True], "check")


def delete_and_count(tap):
    before = a.num_keys()
    for number in range(100):
        a.set(f"d{number}", "x")
    tap.equal(a.num_keys() - before, 100, "num_keys counts keys")
    a.set("d0", "y")
    tap.equal(a.num_keys() - before, 100, "and not values")
    tap.equal([b.delete_key("d0"), b.delete_key("d0"), a.num_keys() - before],
              [True, False, 99], "delete_key")
    for number in range(1, 100):
        a.delete_key(f"d{number}")
    tap.equal(b.num_keys(), before, "num_keys after all is deleted")
    lonely = client()
    lonely.set_timeout(seconds(0.2))
    tap.raises(TIMEOUT, lambda: lonely.get("d0"), "get of a deleted key")


def extended(tap):
    if not hasattr(dist.TCPStore, "append"):
        return tap.skip("append, multi_get, multi_set",
                        "newer than this PyTorch")
    a.append("ap", "po")
    sync(a)
    b.append("ap", b"tato\0")
    b.append("ap", "")
    tap.equal(b.get("ap"), b"potato\0", "append")
    names = [f"multi{number}" for number in range(10000)]
    values = [str(number) * (number % 7) for number in range(10000)]
    a.multi_set(names, values)
    tap.ok(b.multi_get(names) == [value.encode() for value in values],
           "multi_set and multi_get of 10000 keys")
    tap.equal(b.multi_get([]), [], "multi_get of none")
    a.multi_set([], [])
    tap.equal(b.multi_get(["ap", "ap"]), [b"potato\0"] * 2,
              "multi_get of one key twice")
    getter = Background(b.multi_get, ["ap", "late"])
    getter.blocked()
    a.set("late", "x")
    tap.ok(getter.done() and getter.result == [b"potato\0", b"x"],
           "multi_get waits for a missing key", str(getter.error))


def waits(tap):
    a.set("w", "x")
    b.wait(["w"])
    b.wait(["w", "w"])
    b.wait([])
    tap.ok(True, "wait for keys that exist")

    def woken(name, wake, keys):
        waiter = Background(b.wait, keys)
        blocked = waiter.blocked()
        wake()
        tap.ok(blocked and waiter.done(), f"wait is woken by {name}",
               f"blocked {blocked}, error {waiter.error}")

    woken("set", lambda: a.set("w1", "x"), ["w1"])
    woken("add", lambda: a.add("w2", 1), ["w2"])
    woken("compare_set", lambda: a.compare_set("w3", "", "x"), ["w3"])
    woken("several sets", lambda: [a.set(k, "") for k in ("w6", "w5", "w4")],
          ["w4", "w", "w5", "w6", "w4"])
    if hasattr(a, "append"):
        woken("append", lambda: a.append("w7", "x"), ["w7"])
        woken("multi_set", lambda: a.multi_set(["w8", "w9"], ["", "x"]),
              ["w9", "w8"])
    getter = Background(b.get, "w10")
    getter.blocked()
    a.set("w10", "value")
    tap.ok(getter.done() and getter.result == b"value",
           "get waits for its key", str(getter.error))
    stores = [client() for _ in range(8)]
    waiters = [Background(store.wait, ["w11"]) for store in stores]
    for waiter in waiters:
        waiter.blocked()
    a.set("w11", "x")
    tap.ok(all([waiter.done() for waiter in waiters]),
           "eight clients wait for one key")


def time_outs(tap):
    tap.raises(TIMEOUT, lambda: client().wait(["never"], seconds(0.2)),
               "wait for a missing key times out")
    if not CANCELS:
        return tap.skip("use after a time-out", "newer than this PyTorch")
    waiter = Background(b.wait, ["never"], seconds(1))
    waiter.blocked()
    tap.equal(a.compare_set("never", "x", "y"), b"x",
              "a compare_set that does nothing")
    waiter.thread.join(30)
    tap.ok(isinstance(waiter.error, TIMEOUT), "wakes nobody")
    tap.equal([b.add("after", 2), b.get("after")], [2, b"2"],
              "the connection works after a time-out")
    # The answer may be on its way when the client takes its wait back.
    wrong = 0
    for number in range(300):
        setter = Background(a.set, f"race{number}", "x")
        try:
            b.wait([f"race{number}"], seconds(0.0002 * (number % 5)))
        except TIMEOUT:
            pass
        setter.done()
        wrong += b.add("races", 1) != number + 1
        wrong += b.get(f"race{number}") != b"x"
    tap.equal(wrong, 0, "time-outs that race the answer: 300")


def queues(tap):
    if not hasattr(dist.TCPStore, "queue_push"):
        return tap.skip("queues", "newer than this PyTorch")
    before = a.num_keys()
    tap.equal([a.queue_len("q"), a.check(["q"])], [0, False], "no queue yet")
    for value in ("1", "", "3", b"\0\xff"):
        a.queue_push("q", value)
    sync(a)
    tap.equal([b.queue_len("q"), b.check(["q"]), b.num_keys() - before],
              [4, True, 0], "a queue has a length and is no key")
    b.wait(["q"])
    tap.equal([b.queue_pop("q") for _ in range(4)],
              [b"1", b"", b"3", b"\0\xff"], "first in, first out")
    tap.equal([a.queue_len("q"), a.check(["q"])], [0, False], "empty again")
    tap.raises(dist.QueueEmptyError, lambda: b.queue_pop("q", block=False),
               "a pop that does not wait")
    b.set_timeout(seconds(0.2))
    tap.raises(TIMEOUT, lambda: b.queue_pop("q"), "a pop that times out")
    b.set_timeout(seconds(60))
    popper = Background(b.queue_pop, "q")
    popper.blocked()
    a.queue_push("q", "late")
    tap.ok(popper.done() and popper.result == b"late",
           "a pop that waits", str(popper.error))
    stores = [client() for _ in range(4)]
    poppers = [Background(store.queue_pop, "many") for store in stores]
    for popper in poppers:
        popper.blocked()
    for number in range(4):
        a.queue_push("many", str(number))
    tap.ok(all([popper.done() for popper in poppers]),
           "each push wakes one of several that wait",
           str([popper.error for popper in poppers]))
    tap.equal(sorted(popper.result for popper in poppers),
              [b"%d" % number for number in range(4)], "each gets its own")


def list_keys(tap):
    if not hasattr(dist.TCPStore, "list_keys"):
        return tap.skip("list_keys", "newer than this PyTorch")
    a.set("", "x")
    put(a, "list\0ed", "")
    found = b.list_keys()
    tap.ok({"", "list\0ed"} <= set(found) and len(set(found)) == len(found),
           "list_keys", str(found[:20]))
    tap.equal(len(found), b.num_keys() - 1, "it lists all but init/")


def barrier(tap):
    if not hasattr(dist.TCPStore, "barrier"):
        return tap.skip("barrier", "newer than this PyTorch")
    c = client()
    a.barrier("b1", 1)
    tap.equal(b.get("b1"), b"1", "barrier of one, and its counter")
    waiters = [Background(s.barrier, "b3", 3) for s in (a, b)]
    for waiter in waiters:
        waiter.blocked()
    tap.ok(all(waiter.thread.is_alive() for waiter in waiters),
           "barrier of three: two are held")
    c.barrier("b3", 3)
    tap.ok(all([waiter.done() for waiter in waiters]),
           "the third releases them", str([w.error for w in waiters]))
    c.barrier("b3", 3)
    tap.ok(True, "a fourth passes")
    tap.raises(TIMEOUT, lambda: a.barrier("b2", 2, seconds(0.2)),
               "barrier times out")
    tap.equal([a.add("b2", 0), a.num_keys() > 0], [1, True],
              "and the connection works")


def prefixes(tap):
    inner = dist.PrefixStore("inner/", a)
    outer = dist.PrefixStore("pfx", inner)
    outer.set("kk", "value")
    tap.equal(b.get("inner//pfx/kk"), b"value", "nested prefixes: set")
    b.set("inner//pfx/back", "value")
    tap.equal([outer.get("back"), outer.add("n", 3), b.get("inner//pfx/n"),
               outer.compare_set("kk", "value", "v2"), b.delete_key("kk"),
               outer.delete_key("kk")],
              [b"value", 3, b"3", b"v2", False, True],
              "nested prefixes: all other operations")


def clone(tap):
    if not hasattr(dist.TCPStore, "clone"):
        return tap.skip("clone", "newer than this PyTorch")
    waiter = Background(a.clone().get, "cloned")
    waiter.blocked()
    a.set("cloned", "x")
    tap.ok(waiter.done() and waiter.result == b"x",
           "a clone waits while the original works", str(waiter.error))


def watch_key(tap):
    """The operation that only the first dialect has. The library's client has
    it, its Python face does not, so these are its bytes."""
    if CANCELS:
        return tap.skip("watch_key", "older than this PyTorch")

    def text(value):
        return struct.pack("<Q", len(value)) + value

    a.set("watched", "old")
    with socket.create_connection((HOST, PORT), 60) as watch:
        stream = watch.makefile("rb")
        watch.sendall(b"\7" + text(b"/watched"))
        tap.equal(stream.read(1), b"\3", "watch_key is acknowledged")
        watch.sendall(b"\7" + text(b"/watched2"))
        tap.equal(stream.read(1), b"\3", "so is a second one")
        a.set("unwatched", "x")
        a.set("watched", "new")
        a.set("watched2", "x")
        a.add("watched2n", 1)
        a.delete_key("watched")
        want = b"".join((
            b"\0", text(b"/watched"), text(b"old"), text(b"new"),
            b"\1", text(b"/watched2"), text(b""), text(b"x"),
            b"\2", text(b"/watched"), text(b"new"), text(b"")))
        tap.equal(stream.read(len(want)), want,
                  "an update, a creation, a removal are told in order")
    tap.equal(a.get("watched2"), b"x", "a watcher leaves, the rest goes on")


tap = Tap()
for function in (worker_counter, set_and_get, keys, large, add, compare_set,
                 check, delete_and_count, extended, waits, time_outs, queues,
                 list_keys, barrier, prefixes, clone, watch_key):
    tap.group(function)
tap.finish()
