"""The collective benchmark over Gloo, as PyTorch's users have it.

    coll_gloo.py LOOP FOLDER

LOOP is coll_loop.c as a shared library: the loop is the same as for the other
libraries and calls back. A launcher has set RANK and the like.
"""

import ctypes
import sys
import traceback

import torch
import torch.distributed as dist

ADDRESS = ctypes.c_void_p
COUNT = ctypes.c_size_t
TWO_BUFFERS = ctypes.CFUNCTYPE(ctypes.c_int, ADDRESS, ADDRESS, COUNT)
ONE_BUFFER = ctypes.CFUNCTYPE(ctypes.c_int, ADDRESS, COUNT)
MESSAGE = ctypes.CFUNCTYPE(ctypes.c_int, ADDRESS, COUNT, ctypes.c_int)
NOTHING = ctypes.CFUNCTYPE(ctypes.c_int)


class BenchColl(ctypes.Structure):
    """struct bench_coll of coll_loop.h. Fields that are not set are NULL."""

    _fields_ = [
        ("rank", ctypes.c_int),
        ("size", ctypes.c_int),
        ("reduces_in_place", ctypes.c_int),
        ("all_reduce", TWO_BUFFERS),
        ("broadcast", ONE_BUFFER),
        ("all_gather", TWO_BUFFERS),
        ("reduce_scatter", TWO_BUFFERS),
        ("all_to_all", TWO_BUFFERS),
        ("barrier", NOTHING),
        ("send", MESSAGE),
        ("recv", MESSAGE),
        ("exchange", TWO_BUFFERS),
        ("alloc", ADDRESS),
        ("free", ADDRESS),
    ]


views = {}


def tensor(address, count):
    """The count floats at address, not a copy of them."""
    key = address, count
    if key not in views:
        memory = (ctypes.c_float * count).from_address(address)
        views[key] = torch.frombuffer(memory, dtype=torch.float32)
    return views[key]


def parts(address, count):
    key = address, count, "parts"
    if key not in views:
        whole = tensor(address, count * dist.get_world_size())
        views[key] = list(whole.chunk(dist.get_world_size()))
    return views[key]


def guarded(kind):
    """An exception cannot pass through C: it becomes -1."""

    def wrap(function):
        def call(*args):
            try:
                function(*args)
                return 0
            except Exception:
                traceback.print_exc()
                return -1

        return kind(call)

    return wrap


@guarded(TWO_BUFFERS)
def all_reduce(_, recv, count):
    dist.all_reduce(tensor(recv, count))


@guarded(ONE_BUFFER)
def broadcast(buf, count):
    dist.broadcast(tensor(buf, count), 0)


@guarded(TWO_BUFFERS)
def all_gather(send, recv, count):
    dist.all_gather(parts(recv, count), tensor(send, count))


@guarded(TWO_BUFFERS)
def all_to_all(send, recv, count):
    size = dist.get_world_size()
    dist.all_to_all_single(
        tensor(recv, count * size), tensor(send, count * size)
    )


@guarded(NOTHING)
def barrier():
    dist.barrier()


@guarded(MESSAGE)
def send(buf, count, peer):
    dist.send(tensor(buf, count), peer)


@guarded(MESSAGE)
def recv(buf, count, peer):
    dist.recv(tensor(buf, count), peer)


def main():
    loop = ctypes.CDLL(sys.argv[1])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    coll = BenchColl(
        rank=dist.get_rank(),
        size=dist.get_world_size(),
        reduces_in_place=1,
        all_reduce=all_reduce,
        broadcast=broadcast,
        all_gather=all_gather,
        all_to_all=all_to_all,
        barrier=barrier,
        send=send,
        recv=recv,
    )
    rc = loop.bench_coll_loop(ctypes.byref(coll), sys.argv[2].encode())
    dist.destroy_process_group()
    return 1 if rc < 0 else 0


sys.exit(main())
