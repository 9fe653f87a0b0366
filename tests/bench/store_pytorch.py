"""Measures PyTorch's own store client.

    store_pytorch.py

Answers each line "ADDRESS PORT OPERATION BYTES CLIENTS MS" with one line
"ops_s=N": so many processes, with a client each, do nothing else than set,
get or add (of 1) for so long. A set has no answer; the time until one more
request has been answered, which shows that all were executed, is counted too.
One process for all measurements, because to import torch takes seconds.
"""
import os
import struct
import sys
import time

import torch.distributed as dist

RESULT = struct.Struct("qqq")


def connect(address, port):
    options = {}
    # A build without libuv refuses to be even a client of the default kind.
    if "use_libuv" in dist.TCPStore.__init__.__doc__:
        options["use_libuv"] = False
    return dist.TCPStore(address, port, None, False, wait_for_workers=False,
                         **options)


def operation(store, name, key, size):
    value = "v" * size
    if name == "add":
        store.add(key, 0)
        return lambda: store.add(key, 1)
    store.set(key, value)
    if name == "set":
        return lambda: store.set(key, value)
    return lambda: store.get(key)


def work(number, address, port, name, size, seconds, ready, go, results):
    store = connect(address, port)
    kind = "count" if name == "add" else "value"
    call = operation(store, name, f"bench/{kind}/{number:04}", size)
    store.num_keys()
    os.write(ready, b"r")
    os.read(go, 1)
    begin = time.perf_counter_ns()
    end = begin + int(seconds * 1e9)
    count = 0
    while time.perf_counter_ns() < end:
        call()
        count += 1
    store.num_keys()
    os.write(results, RESULT.pack(count, begin, time.perf_counter_ns()))


def measure(address, port, name, size, clients, seconds):
    ready, go, results = os.pipe(), os.pipe(), os.pipe()
    children = []
    for number in range(clients):
        child = os.fork()
        if child == 0:
            status = 1
            try:
                os.close(go[1])
                work(number, address, port, name, size, seconds, ready[1],
                     go[0], results[1])
                status = 0
            finally:
                sys.stderr.flush()
                os._exit(status)
        children.append(child)
    for pipe in ready, results:
        os.close(pipe[1])
    os.close(go[0])
    # A child that fails ends; when all have, read() sees the end.
    if sum(len(os.read(ready[0], 1)) for _ in children) == clients:
        os.close(go[1])
        go = (go[0], -1)
    records = []
    while record := os.read(results[0], RESULT.size):
        records.append(RESULT.unpack(record))
    for pipe in ready[0], results[0], go[1]:
        if pipe >= 0:
            os.close(pipe)
    if any([os.waitpid(child, 0)[1] for child in children]):
        sys.exit("store_pytorch.py: a client failed")
    counts, begins, ends = zip(*records)
    return sum(counts) * 1e9 / (max(ends) - min(begins))


def main():
    for line in sys.stdin:
        address, port, name, size, clients, ms = line.split()
        rate = measure(address, int(port), name, int(size), int(clients),
                       int(ms) / 1000)
        print(f"ops_s={rate:.0f}", flush=True)


main()
