"""The command lines of the side-by-side test, and what differs on purpose.

The name of each difference is that of its row in docs/migration.md, which
tells the reason.
"""
import os
import signal
import stat

from torchrun_side import ABSENT, ANY, WORKER, Case, Differs


def each(change):
    """Of a value, or of a list with one for each worker."""
    def apply(value):
        return [change(item) for item in value] \
            if isinstance(value, list) else change(value)
    return apply


@each
def in_folder(path):
    """A relative path as crun tells it."""
    return "FOLDER/cwd/" + path


@each
def in_one_folder(path):
    """An error file where there are no other files."""
    base, _, attempt, rank, name = path.rsplit("/", 4)
    return f"{base}/{attempt}.{rank}.{name}"


# What differs whenever workers are started by default options ...
CHANNEL = Differs("agent-channel", "env CRUN_AGENT", ABSENT, "NAME")
ADDRESS = Differs("master-addr", "env MASTER_ADDR", "HOST", "127.0.0.1")
NOTHING = [Differs("temporary-logs", "temporary", ANY, {})]
TEMPORARY = [*NOTHING,
             Differs("temporary-logs", "env TORCHELASTIC_ERROR_FILE", ANY,
                     in_one_folder)]
LOCAL = [CHANNEL, ADDRESS, *TEMPORARY]
# ... with an address that is given ...
STATIC = [CHANNEL, *TEMPORARY]
# ... and with a folder for logs.
LOGGED = [CHANNEL, ADDRESS,
          Differs("log-paths", "env TORCHELASTIC_ERROR_FILE", ANY,
                  in_folder)]
NO_ID = Differs("c10d-id", "env TORCHELASTIC_RUN_ID", "none", "UUID")

ONE = ("start.0.0",)
TWO = ("start.0.0", "start.0.1")
NPROC2 = "--nproc_per_node=2"


def failed(*ranks, attempt=0, code=3, others="signal.pause()"):
    """These ranks fail; the others do not before they are stopped."""
    return ("meet()\n"
            f"if attempt <= {attempt} and rank in {ranks!r}: os._exit({code})\n"
            f"elif attempt <= {attempt}: {others}")


# --- environment -----------------------------------------------------------

ENVIRONMENT = [
    Case("one worker, no options", differs=LOCAL),
    Case("--standalone", ["--standalone"], differs=LOCAL),
    Case("three workers", ["--nproc_per_node", "3"], differs=LOCAL),
    Case("three workers by a dashed option and =", ["--nproc-per-node=3"],
         differs=LOCAL),
    Case("--nproc_per_node cpu on one CPU", ["--nproc_per_node", "cpu"],
         prefix=["taskset", "-c", str(min(os.sched_getaffinity(0)))],
         differs=LOCAL),
    Case("a role", ["--role", "trainer", NPROC2], differs=LOCAL),
    Case("--max_restarts without a failure", ["--max_restarts=3"],
         differs=LOCAL),
    Case("a port", ["--master_port=29617", NPROC2], differs=STATIC),
    Case("an address and a port",
         ["--master_addr", "localhost", "--master_port=29618"],
         differs=STATIC),
    Case("static, by an endpoint",
         ["--rdzv_endpoint=localhost:29619", NPROC2], differs=STATIC),
    Case("static, with a run id",
         ["--master_port=29620", "--rdzv_id", "run7"], differs=STATIC),
    Case("c10d at localhost:0",
         ["--rdzv_backend", "c10d", "--rdzv_endpoint", "localhost:0",
          "--rdzv_id=run8", NPROC2], differs=LOCAL),
    Case("c10d at a local address",
         ["--rdzv_backend", "c10d", "--rdzv_endpoint", "127.0.0.1:0",
          "--rdzv_id=run9", "--local_addr=127.0.0.1"], differs=STATIC),
    Case("c10d without an endpoint", ["--rdzv_backend=c10d"],
         differs=[*LOCAL, NO_ID]),
    Case("c10d with --rdzv_conf",
         ["--rdzv_backend=c10d", "--rdzv_endpoint=localhost:0",
          "--rdzv_conf", "join_timeout=60,is_host=1"],
         differs=[*LOCAL, NO_ID]),
    Case("--nnodes 1:1", ["--nnodes=1:1"], differs=LOCAL),
    Case("--standalone and a run id", ["--standalone", "--rdzv_id=mine"],
         differs=[*LOCAL, Differs("run-id", "env TORCHELASTIC_RUN_ID",
                                  "UUID", "mine")]),
    Case("a run id alone", ["--rdzv_id=mine"],
         differs=[*LOCAL, Differs("run-id", "env TORCHELASTIC_RUN_ID",
                                  "UUID", "mine")]),
    Case("--standalone and a port", ["--standalone", "--master_port=29624"],
         differs=[*LOCAL, Differs("standalone-port", "env MASTER_PORT", ANY,
                                  "29624")]),
    Case("an address alone", ["--master_addr=127.0.0.2"],
         differs=[*STATIC,
                  Differs("master-addr", "env MASTER_ADDR", "HOST",
                          "127.0.0.2")]),
    Case("OMP_NUM_THREADS unset, one worker",
         env={"OMP_NUM_THREADS": None}, differs=LOCAL),
    Case("OMP_NUM_THREADS unset, two workers", [NPROC2],
         env={"OMP_NUM_THREADS": None}, differs=LOCAL),
    Case("OMP_NUM_THREADS set", [NPROC2],
         env={"OMP_NUM_THREADS": "7"}, differs=LOCAL),
    Case("OMP_NUM_THREADS empty", [NPROC2],
         env={"OMP_NUM_THREADS": ""}, differs=LOCAL),
    Case("--virtual_local_rank", ["--virtual_local_rank", NPROC2],
         differs=LOCAL),
    Case("--virtual_local_rank and a list of devices",
         ["--virtual_local_rank", NPROC2],
         env={"CUDA_VISIBLE_DEVICES": "5,GPU-11112222"}, differs=LOCAL),
    Case("a list of devices", [NPROC2],
         env={"CUDA_VISIBLE_DEVICES": "5,GPU-11112222"}, differs=LOCAL),
    Case("variables of an outer launcher", [NPROC2],
         env={"RANK": "5", "WORLD_SIZE": "99", "LOCAL_RANK": "3",
              "MASTER_ADDR": "bogus", "GROUP_RANK": "4", "ROLE_RANK": "7",
              "TORCHELASTIC_RESTART_COUNT": "9",
              "TORCHELASTIC_RUN_ID": "theirs",
              "TORCHELASTIC_USE_AGENT_STORE": "False",
              "TORCH_NCCL_ASYNC_ERROR_HANDLING": "3",
              "NODE_RANK": "6", "LOCAL_SIZE": "8", "MINE": "a\nb"},
         differs=LOCAL),
    Case("PET_ variables",
         env={"PET_NPROC_PER_NODE": "2", "PET_ROLE": "pet",
              "PET_MAX_RESTARTS": "2", "PET_MASTER_PORT": "29621"},
         differs=STATIC),
    Case("the command line beats PET_", ["--nproc_per_node=1"],
         env={"PET_NPROC_PER_NODE": "3", "PET_STANDALONE": "1"},
         differs=LOCAL),
    Case("PET_ flags", env={"PET_STANDALONE": "0", "PET_NO_PYTHON": "1"},
         program=["python3", WORKER], differs=LOCAL),
    Case("the null device for logs", ["--log_dir", "/dev/null", "-t", "3"],
         do="print('WORKER out'); print('WORKER err', file=sys.stderr)",
         differs=[CHANNEL, ADDRESS]),
    Case("--signals_to_handle", ["--signals_to_handle", "SIGTERM,SIGUSR2"],
         differs=LOCAL),
    Case("an unshared store", [NPROC2],
         env={"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}, differs=LOCAL),
    Case("a restart", ["--max_restarts=1", NPROC2], do=failed(1),
         differs=LOCAL),
    Case("restarts, given a port",
         ["--max_restarts=2", "--master_port=29622", NPROC2],
         do=failed(0, attempt=1), differs=STATIC),
    Case("restarts used up", ["--max_restarts=1", NPROC2],
         do=failed(1, attempt=9), differs=LOCAL),
    Case("options that mean nothing on one node",
         ["--monitor_interval=0.2", "--start_method=fork", "--node_rank=0",
          "--event_log_handler=null"], differs=LOCAL),
]

# --- program and arguments -------------------------------------------------

BLANKS = ["a b", "c'd", 'e"f', "$HOME", "*", "", "--x=y z", "\\", "\t"]


def make_script(run):
    """A shell script that is not called *.py."""
    path = run.path("cwd", "script")
    with open(path, "w") as file:
        file.write(f'#!/bin/sh\nexec python3 {WORKER} "$@"\n')
    os.chmod(path, 0o755)


def make_module(run):
    with open(run.path("cwd", "mymodule.py"), "w") as file:
        file.write("import runpy, sys\n"
                   f"runpy.run_path({WORKER!r}, run_name='__main__')\n")


def make_python(run):
    """Another interpreter, first on PATH."""
    os.mkdir(run.path("bin"))
    path = run.path("bin", "python3")
    python = os.path.join(run.env["PATH"].split(":")[0], "python3")
    with open(path, "w") as file:
        file.write(f'#!/bin/sh\nexec env -u PWD OTHER=1 {python} "$@"\n')
    os.chmod(path, 0o755)
    run.env["PATH"] = run.path("bin") + ":" + run.env["PATH"]


def make_python_exec(run):
    make_python(run)
    run.env["PYTHON_EXEC"] = run.path("bin", "python3")


ARGUMENTS = [
    Case("arguments arrive as they are", args=BLANKS, differs=LOCAL),
    Case("options after the program are its own", ["--max_restarts=0"],
         args=["--max_restarts=9", "--standalone", "-t", "-h", "--"],
         differs=LOCAL),
    Case("-- ends the options and another one is passed on",
         ["--standalone", "--"], args=["--", "x", "--"], differs=LOCAL),
    Case("local_rank in arguments", [NPROC2],
         args=["$local_rank", "${local_rank}", "a${local_rank}b$local_rank",
               "--x=${local_rank}", "$local_rankx", "${x}", "$", "${",
               "${local_rank", "$LOCAL_RANK"],
         differs=LOCAL),
    Case("two dollars", args=["$$", "$${local_rank}"],
         differs=[*LOCAL,
                  Differs("dollars", "arguments", ["$", "${local_rank}"],
                          ["$$", "$${local_rank}"]),
                  Differs("dollars", "command", ANY, ANY)]),
    Case("-m", ["-m"], program=["mymodule"], args=["x", *BLANKS],
         prepare=make_module, env={"PYTHONPATH": "."}, differs=LOCAL),
    Case("--module with an option", ["--module", "--role=x"],
         program=["mymodule"], prepare=make_module, differs=LOCAL),
    Case("--no_python", ["--no_python"], program=["python3", WORKER],
         args=BLANKS, differs=LOCAL),
    Case("--no-python with a path", ["--no-python"], program=["./script"],
         prepare=make_script, args=BLANKS, differs=LOCAL),
    Case("an executable without --no_python", program=["./script"],
         prepare=make_script,
         differs=[*NOTHING, Differs("executables", "status", 1, 0),
                  Differs("executables", "workers", [], ["0.0"])]),
    Case("PYTHON_EXEC", prepare=make_python_exec, differs=LOCAL),
    Case("another python3 first on PATH", prepare=make_python,
         differs=[*LOCAL,
                  Differs("interpreter", "env OTHER", ABSENT, "1")]),
    Case("short options", ["-r3", "-t", "0", "-r=0"], differs=LOCAL),
    Case("the last one of a repeated option counts",
         ["--nproc_per_node=5", "--nproc-per-node", "2"], differs=LOCAL),
    Case("abbreviations", ["--nproc_per=2", "--stand", "--max-r", "1"],
         differs=LOCAL),
    Case("torch.distributed.launch --use_env", ["--use_env", NPROC2],
         module="torch.distributed.launch", args=["x"], differs=LOCAL),
    Case("torch.distributed.launch", [NPROC2],
         module="torch.distributed.launch", args=["x"],
         differs=[*LOCAL,
                  Differs("local-rank", "arguments",
                          [["--local-rank=0", "x"], ["--local-rank=1", "x"]],
                          ["x"]),
                  Differs("local-rank", "command", ANY, ANY)]),
    Case("torch.distributed.launch with --use_env and the argument",
         ["--use_env", NPROC2], module="torch.distributed.launch",
         args=["--local-rank=${local_rank}", "x"], differs=LOCAL),
]

# --- logs ------------------------------------------------------------------

SAY = ("print(f'WORKER {rank} out')\n"
       "print(f'WORKER {rank} err', file=sys.stderr)\n")
SAY_MORE = SAY + ("print(f'WORKER {rank} two\\nWORKER {rank} epoch 3\\n')\n"
                  "os.write(2, b'WORKER\\n')\n")


NO_FILTER_FILES = Differs(
    "filter-files", "files", ANY, lambda files: {
        path: text for path, text in files.items()
        if "/filtered_" not in path or text})


def logs(*options, say=SAY, n=3, more=(), **fields):
    return Case("logs: " + " ".join(options) + fields.pop("note", ""),
                ["--log_dir=logs", f"--nproc_per_node={n}",
                 "--rdzv_id=job", "--rdzv_backend=c10d",
                 "--rdzv_endpoint=localhost:0", *options],
                do=say, differs=[*LOGGED, *more], **fields)


LOGS = [
    logs(),
    logs("-r", "3"),
    logs("-r", "1"),
    logs("-t", "3", say=SAY_MORE),
    logs("-t", "2"),
    logs("--redirects", "0:1,1:2"),
    logs("--tee", "0:3,2:1"),
    logs("-r", "0:3,1:1", "-t", "1:3,2:2"),
    logs("--local_ranks_filter", "0,2"),
    logs("--local-ranks-filter=1", "--tee=3"),
    logs("--local-ranks-filter=1", "-r", "3"),
    logs("-t3", "--role=trainer"),
    logs("-t", "3", "--log_line_prefix_template",
         "<${role_name} ${rank} ${local_rank} ${other}$$> "),
    logs("-t", "3", note=" and a template by a variable",
         env={"TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE": "(${rank}) "}),
    logs("-t", "3", "--duplicate_stdout_filters", "epoch,two",
         "--duplicate-stderr-filters=1 err", say=SAY_MORE),
    logs("-r", "3", "--duplicate_stdout_filters", "epoch", say=SAY_MORE,
         more=[NO_FILTER_FILES]),
    logs("-t", "3", "--duplicate_stdout_filters", ",,", n=1,
         say="print('WORKER a,b'); print('WORKER ab')"),
    logs("-t", "3", "--max_restarts=1", say=SAY + failed(1)),
    logs("-r", "3", "--max_restarts=1", "--duplicate_stdout_filters=1",
         say=SAY + failed(1, attempt=9), more=[NO_FILTER_FILES]),
    logs("-t", "3", n=1, note=", the last line has no end",
         say="os.write(1, b'WORKER 1\\nWORKER 2')",
         more=[Differs("last-line", "stdout",
                       ["[default0]:WORKER 1\n", "[default0]:WORKER 2"],
                       ["[default0]:WORKER 1\n", "[default0]:WORKER 2\n"])]),
    logs("-t", "3", n=1, note=", carriage returns",
         say="os.write(1, b'\\r 10%\\r 20%\\n')",
         more=[Differs("carriage-return", "stdout",
                       ["[default0]:\n", "[default0]: 10%\n",
                        "[default0]: 20%\n"],
                       ["[default0]:\r 10%\r 20%\n"])]),
    logs("-t", "3", n=1, note=", bytes that are no text",
         say="os.write(1, b'\\xff \\xc3\\n')",
         more=[Differs("bytes", "stdout", ["[default0]:\ufffd \ufffd\n"],
                       ["[default0]:\\xff \\xc3\n"])]),
    Case("logs: a temporary folder", ["-r", "3"], do=SAY,
         differs=[CHANNEL, ADDRESS]),
    Case("logs: parents are made", ["--log_dir", "a b/c", "-r", "1"], do=SAY,
         differs=LOGGED),
    Case("no logs", [NPROC2], do=SAY, differs=LOCAL),
]

# --- how it ends -----------------------------------------------------------

STATUS = [
    Case(f"workers that exit with {code}", [NPROC2],
         do=failed(1, code=code), differs=LOCAL)
    for code in (1, 3, 255)
] + [
    Case(f"a worker killed by {number.name}", [NPROC2],
         do="meet()\n"
            f"if rank == 1: os.kill(os.getpid(), {number:d})\n"
            "signal.pause()", differs=LOCAL)
    for number in (signal.SIGKILL, signal.SIGABRT, signal.SIGTERM)
] + [
    Case("a worker that ends early", [NPROC2],
         do="if rank: wait_for('go', 0)\nelse: note('go')", differs=LOCAL),
    Case("a failed worker's survivors get SIGTERM", [NPROC2],
         do="tell_signals(signal.SIGTERM, end=False)\nnote('ready')\n"
            "if rank == 1:\n    wait_for('ready', 0)\n    os._exit(3)\n"
            "wait_for('SIGTERM')", differs=LOCAL),
    Case("a failed worker's child", [NPROC2],
         do="meet()\nif rank == 1:\n"
            "    note('child', str(subprocess.Popen(['sleep', '600']).pid))\n"
            "    os._exit(3)\n"
            "signal.pause()",
         differs=[*LOCAL,
                  Differs("nothing-survives", "left", ["child.0.1"], [])]),
    Case("a successful worker's child",
         do="note('child', str(subprocess.Popen(['sleep', '600']).pid))",
         differs=[*LOCAL,
                  Differs("nothing-survives", "left", ["child.0.0"], [])]),
]

# --- reports ----------------------------------------------------------------

RAISE = ("meet()\nif rank == 1: raise ValueError('no luck today')\n"
         "signal.pause()")
# As a program that is not in Python may write it.
BY_HAND = ("meet()\nif rank == 1:\n"
           "    with open(os.environ['TORCHELASTIC_ERROR_FILE'], 'w') as f:\n"
           "        f.write('{\"message\": \"disk on fire\",'\n"
           "                ' \"timestamp\": \"1700000000\"}')\n"
           "    os._exit(9)\n"
           "signal.pause()")


def parent_error_file(run):
    run.env["TORCHELASTIC_ERROR_FILE"] = run.path("cwd", "parent.json")


def report(name, do, more=(), parent=True, **fields):
    return Case("report: " + name, ["--log_dir=logs", NPROC2], do=do,
                prepare=parent_error_file if parent else None,
                reports=True, extra=["--report=../report.json"],
                differs=[*LOGGED, *more], **fields)


# What the report says of a worker that left no error file ...
NO_TRACEBACK = Differs(
    "no-traceback", "failure: traceback",
    "To enable traceback see: "
    "https://pytorch.org/docs/stable/elastic/errors.html", "<N/A>")
# ... and where it did.
ERROR_FILE = Differs("log-paths", "failure: error_file", ANY, in_folder)


def made_for_parent(text):
    """The error file that crun makes where the worker left none."""
    return Differs("parent-error-file", "files", ANY,
                   lambda files: {**files, "/parent.json": text})


REPORTS = [
    report("an exception, recorded", RAISE, env={"SIDE_RECORD": "1"},
           more=[ERROR_FILE]),
    report("an exception, recorded, no file of the parent's", RAISE,
           parent=False, env={"SIDE_RECORD": "1"}, more=[ERROR_FILE]),
    report("an exception that nobody records", RAISE, parent=False,
           more=[NO_TRACEBACK]),
    report("exit code 3", failed(1),
           more=[NO_TRACEBACK, made_for_parent(
               '{"message": {"errorCode": 3, "extraInfo": {"timestamp": '
               '"TIME"}, "message": "rank 1 on HOST: exit code 3"}}')]),
    report("SIGKILL", "meet()\nif rank == 1: os.kill(os.getpid(), 9)\n"
           "signal.pause()",
           more=[made_for_parent(
               '{"message": {"errorCode": -9, "extraInfo": {"timestamp": '
               '"TIME"}, "message": "rank 1 on HOST: signal 9 (SIGKILL)"}}')]),
    report("an error file written by hand", BY_HAND,
           more=[ERROR_FILE, made_for_parent(
               '{"message": {"errorCode": 9, "extraInfo": {"timestamp": '
               '"TIME"}, "message": "disk on fire"}}')]),
    report("an error file that is no JSON", parent=False,
           do=BY_HAND.replace("{", "oops").replace("}", ""),
           more=[Differs("broken-error-file", f"failure: {name}", ABSENT, value)
                 for name, value in (
                     ("rank", "1 (local_rank: 1)"), ("host", "HOST"),
                     ("exitcode", "9 (pid: N)"), ("traceback", "<N/A>"),
                     ("error_file", ANY))]),
]

# --- a training step --------------------------------------------------------

TRAIN = """
import torch, torch.distributed as dist
torch.manual_seed(1)
dist.init_process_group("gloo")
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model(torch.full((3, 4), rank + 1.0)).pow(2).sum().backward()
for p in model.parameters():
    dist.all_reduce(p.grad)
optimizer.step()
note("sum", f"{sum(p.sum().item() for p in model.parameters()):.4f}")
meet()
if rank == 1 and attempt < int(os.environ.get("SIDE_FAIL", "0")):
    os._exit(3)
dist.barrier()
dist.destroy_process_group()
"""

# Whether the store of an attempt still has what the one before it left.
LEAVE_A_KEY = """
import datetime, torch.distributed as dist
store = dist.TCPStore(os.environ["MASTER_ADDR"],
                      int(os.environ["MASTER_PORT"]), is_master=False,
                      timeout=datetime.timedelta(seconds=20))
note("stale", str(store.check(["left"])))
store.set("left", "1")
if attempt == 0:
    os._exit(3)
"""


def has_trained_again(aspects):
    """Every rank of both attempts has the same sum of parameters."""
    sums = [aspects.get(f"note sum.{who}") for who in
            ("0.0", "0.1", "1.0", "1.1")]
    return aspects["status"] == 0 and sums[0] is not None and \
        sums == [sums[0]] * 4


TRAINING = [
    Case("a training step", [NPROC2], do=TRAIN, console=False,
         differs=LOCAL),
    Case("a training step before and after a failure, under crun",
         [NPROC2, "--max_restarts=1"], do=TRAIN, env={"SIDE_FAIL": "1"},
         alone=has_trained_again),
    Case("a key in the store before a restart", ["--max_restarts=1"],
         do=LEAVE_A_KEY,
         differs=[*LOCAL, Differs("new-store", "note stale.1.0", "True",
                                  "False")]),
    Case("the same, given a port",
         ["--max_restarts=1", "--master_port=29623"], do=LEAVE_A_KEY,
         differs=[*STATIC, Differs("new-store", "note stale.1.0", "True",
                                   "False")]),
]

# Name, options, status of torchrun and of crun, and whether torchrun has made
# a folder before it noticed.
LEAVES = True
MISTAKES = [
    ("an unknown option", ["--nprocpernode=2"], 2, 2),
    ("a number that is none", ["--max_restarts=x"], 2, 2),
    ("a choice that is none", ["--start_method=foo"], 2, 2),
    ("an ambiguous option", ["--rdzv=x"], 2, 2),
    ("--nnodes 1:2:3", ["--nnodes=1:2:3"], 1, 2),
    ("--nnodes 0", ["--nnodes=0"], 1, 2),
    ("--nnodes 2:1", ["--nnodes=2:1"], 1, 2),
    ("--nproc_per_node 0", ["--nproc_per_node=0"], 1, 2, LEAVES),
    ("--nproc_per_node -1", ["--nproc_per_node", "-1"], 1, 2, LEAVES),
    ("--nproc_per_node foo", ["--nproc_per_node=foo"], 1, 2),
    ("--nproc_per_node 1.5", ["--nproc_per_node=1.5"], 1, 2),
    ("--max_restarts -1", ["--max_restarts=-1"], 1, 2),
    ("--monitor_interval 0", ["--monitor_interval=0"], 1, 2, LEAVES),
    ("--shutdown_timeout -1", ["--shutdown_timeout=-1"], 1, 2, LEAVES),
    ("--rdzv_conf without a value", ["--rdzv_conf=a=b,c"], 1, 2),
    ("--rdzv_conf that is no number",
     ["--rdzv_backend=c10d", "--rdzv_conf=join_timeout=x"], 1, 2, LEAVES),
    ("-r 4", ["-r", "4"], 1, 2),
    ("-r 0:4", ["-r", "0:4"], 1, 2),
    ("--local_ranks_filter x", ["--local_ranks_filter=x"], 1, 2),
    ("an unknown back end", ["--rdzv_backend=foo"], 1, 2, LEAVES),
    ("-m with --no_python", ["-m", "--no_python"], 1, 1, LEAVES),
]


def torchrun_refuses(name, why, options=(), *, env=None, status=1, n=1,
                     leaves=False):
    return Case(name, options, env=env, console=False,
                differs=[Differs(why, "status", status, 0),
                         Differs(why, "workers", [], sorted(
                             f"0.{rank}" for rank in range(n))),
                         *NOTHING * leaves])


def crun_refuses(name, why, options=(), *, env=None):
    return Case(name, options, env=env, console=False,
                differs=[Differs(why, "status", 0, 2),
                         Differs(why, "workers", ["0.0"], []), *NOTHING])


USAGE = [
    Case("mistake: " + name, options, console=False,
         differs=[Differs("usage-status", "status", theirs, ours)]
         * (theirs != ours) + NOTHING * len(leaves))
    for name, options, theirs, ours, *leaves in MISTAKES
] + [
    Case("mistake: no program", program=[], console=False),
    Case("mistake: an option without its value", ["--nproc_per_node"],
         program=[], console=False),
    Case("mistake: a program that is not there", ["--no_python"],
         program=["./missing"], console=False, differs=NOTHING),
    Case("mistake: a log folder that is a file", ["--log_dir", WORKER],
         console=False),
    Case("--help", ["--help"], program=[], console=False),
    Case("-h", ["-h"], program=[], console=False),
    torchrun_refuses("a PET_ flag that says true", "pet",
                     env={"PET_STANDALONE": "true"}),
    torchrun_refuses("an empty PET_ flag", "pet", env={"PET_STANDALONE": ""}),
    torchrun_refuses("an empty PET_ value", "pet",
                     env={"PET_NPROC_PER_NODE": ""}),
    crun_refuses("a choice in PET_ that is none", "pet",
                 env={"PET_START_METHOD": "foo"}),
    torchrun_refuses("an abbreviation of both spellings", "abbreviations",
                     ["--nproc=1"], status=2),
    torchrun_refuses("a slash in the run id", "run-id",
                     ["--rdzv_id=a/b", "--master_port=29625"], leaves=True),
    torchrun_refuses("a local rank above 9", "std-spec",
                     ["-r", "10:0", "--nproc_per_node=11"], n=11),
    crun_refuses("a rank that does not exist", "std-spec", ["-r", "1:1"]),
    crun_refuses("a rank that does not exist in a filter", "std-spec",
                 ["--local_ranks_filter=0,7"]),
    crun_refuses("a signal that does not exist", "signal-names",
                 ["--signals_to_handle=FOO"]),
    crun_refuses("--run_path", "run-path", ["--run_path"]),
]


# --- signals to the launcher -----------------------------------------------

def stop_by(*signals):
    def drive(run):
        run.wait_for("ready.0.0", "ready.0.1")
        for number in signals:
            run.send(number)
        run.tell("go")
    return drive


def interrupt_thrice(run):
    """The launcher has begun to stop the workers before the second one, and
    has begun again before the third."""
    run.wait_for("ready.0.0")
    for note in ("SIGINT.0.0", "SIGTERM.0.0"):
        run.send(signal.SIGINT)
        run.wait_for(note)
    run.send(signal.SIGINT)


READY = ("tell_signals(signal.SIGTERM, signal.SIGINT, signal.SIGHUP,"
         " signal.SIGQUIT, signal.SIGUSR1)\nnote('ready')\n")

SIGNALS = [
    Case(f"{number.name} to the launcher", [NPROC2],
         do=READY + "while True: signal.pause()", drive=stop_by(number),
         differs=LOCAL)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP,
                   signal.SIGQUIT)
] + [
    Case("SIGTERM is no failure to be restarted", [NPROC2, "--max_restarts=3"],
         do=READY + "while True: signal.pause()",
         drive=stop_by(signal.SIGTERM), differs=LOCAL),
    Case("SIGUSR1, named in --signals_to_handle",
         [NPROC2, "--signals_to_handle=SIGUSR1"],
         do=READY + "while True: signal.pause()",
         drive=stop_by(signal.SIGUSR1), differs=LOCAL),
    Case("SIGUSR1", [NPROC2],
         do=READY + "while True: signal.pause()",
         drive=stop_by(signal.SIGUSR1),
         differs=[*LOCAL,
                  Differs("usr", "status", -signal.SIGUSR1, 0),
                  Differs("usr", "note SIGUSR1.0.0", ABSENT, ""),
                  Differs("usr", "note SIGUSR1.0.1", ABSENT, ""),
                  Differs("usr", "left", list(TWO), [])]),
    Case("nohup and SIGHUP", [NPROC2], prefix=["nohup"],
         do="note('ready')\nwait_for('go')", drive=stop_by(signal.SIGHUP),
         differs=[*LOCAL, Differs("nohup", "status", 1, 0)]),
    Case("Ctrl-C three times", do="tell_signals(signal.SIGINT,"
         " signal.SIGTERM, end=False)\nnote('ready')\n"
         "while True: signal.pause()", drive=interrupt_thrice,
         differs=[*LOCAL,
                  Differs("second-interrupt", "note SIGTERM.0.0", "", ABSENT),
                  Differs("second-interrupt", "left", list(ONE), [])]),
    Case("--shutdown_timeout", ["--shutdown_timeout=1"],
         do="tell_signals(signal.SIGTERM, end=False)\nnote('ready')\n"
            "while True: signal.pause()",
         drive=lambda run: (run.wait_for("ready.0.0"),
                            run.send(signal.SIGTERM)),
         differs=LOCAL),
]

CASES = [*ENVIRONMENT, *ARGUMENTS, *LOGS, *STATUS, *REPORTS, *TRAINING,
         *SIGNALS, *USAGE]
