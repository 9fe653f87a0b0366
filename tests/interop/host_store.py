"""Hosts a TCPStore of this PyTorch until it is killed.

    host_store.py [libuv|legacy]

Prints the port. Status 77 says that this build cannot host such a store.
"""
import signal
import sys

import torch.distributed as dist

options = {}
takes = "use_libuv" in dist.TCPStore.__init__.__doc__
if takes:
    options["use_libuv"] = sys.argv[1] == "libuv"
elif sys.argv[1] == "libuv":
    sys.exit(77)
try:
    store = dist.TCPStore("127.0.0.1", 0, is_master=True,
                          wait_for_workers=False, **options)
except RuntimeError as error:
    if options.get("use_libuv") and "libuv" in str(error).lower():
        sys.exit(77)
    raise
print(store.port, flush=True)
signal.pause()
