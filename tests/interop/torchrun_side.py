"""Runs a command line under the real torchrun and under crun, and tells in
what they differed.

What can be seen of a run is taken apart into named aspects ("status",
"env MASTER_ADDR", "files", ...), each with a value in which what changes from
run to run (ports, process ids, random names) is replaced. A case names the
aspects that differ on purpose, with both values; everything else must be
equal.
"""
import collections
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
WORKER = os.path.join(HERE, "torchrun_worker.py")
LIMIT = 150  # seconds for one run; importing PyTorch alone takes some

# A difference: its name in docs/migration.md, the aspect, and both values. ANY
# stands for a value that only must not be the other's; crun's may be given as
# a function of torchrun's.
Differs = collections.namedtuple("Differs", "name aspect torchrun crun")
ANY = object()
ABSENT = "(nothing)"


class Case:
    """One command line, and what is expected to differ.

    do       what each worker does, in Python (torchrun_worker.py)
    drive    called with the Run while the launcher runs
    prefix   a program that starts the launcher
    prepare  called with the Run before that
    extra    options that only crun is given
    console  False: nothing of what is printed is compared
    reports  True: what is said of the first failure is
    alone    torchrun cannot do it: crun's aspects have to satisfy this
    """

    def __init__(self, name, options=(), *, program=(WORKER,), args=(),
                 do="", env=None, drive=None, prefix=(), prepare=None,
                 extra=(), differs=(), console=True, module=None,
                 reports=False, alone=None):
        self.name = name
        self.command = [*options, *program, *args]
        self.env = {"SIDE_DO": do, **(env or {})}
        self.drive = drive
        self.prefix = list(prefix)
        self.prepare = prepare
        self.extra = list(extra)
        self.differs = list(differs)
        self.console = console
        self.reports = reports
        self.alone = alone
        self.module = module or "torch.distributed.run"


class Run:
    """One case under one launcher, in a folder of its own."""

    def __init__(self, case, is_crun, python, crun, folder):
        self.case = case
        self.is_crun = is_crun
        self.folder = folder
        self.process = None
        self.status = None
        if is_crun:
            self.command = [crun, *case.extra, *case.command]
        else:
            self.command = [python, "-m", case.module, *case.command]
        self.command = case.prefix + self.command
        for name in ("notes", "tmp", "cwd"):
            os.makedirs(os.path.join(folder, name))
        self.env = {
            "PATH": os.path.dirname(python) + ":" + os.environ["PATH"],
            "HOME": folder, "LANG": "C.UTF-8",
            "TMPDIR": os.path.join(folder, "tmp"),
            "TORCHINDUCTOR_CACHE_DIR": os.path.join(folder, "inductor"),
            "SIDE_DIR": os.path.join(folder, "notes"),
            "OMP_NUM_THREADS": "1",
            "PYTHONWARNINGS": "ignore", "PYTHONDONTWRITEBYTECODE": "1",
            "TORCH_CPP_LOG_LEVEL": "ERROR",
            "RES_OPTIONS": "timeout:1 attempts:1",
            # Else crun sets NCCL_RAS_ADDR on machines with a GPU.
            "NCCL_RAS_ENABLE": "0",
        }
        # A run-time library may need it to be found.
        if "LD_LIBRARY_PATH" in os.environ:
            self.env["LD_LIBRARY_PATH"] = os.environ["LD_LIBRARY_PATH"]
        for name, value in case.env.items():
            if value is None:
                self.env.pop(name, None)
            else:
                self.env[name] = value

    def path(self, *names):
        return os.path.join(self.folder, *names)

    # For whoever drives the run.

    def has(self, name):
        """Whether a note "NAME.ATTEMPT.RANK" or another file is there."""
        return os.path.exists(self.path("notes", name))

    def wait_for(self, *names):
        """Until all the notes are there or the launcher has ended."""
        end = time.monotonic() + LIMIT
        while time.monotonic() < end and self.process.poll() is None:
            if all(self.has(name) for name in names):
                return
            time.sleep(0.02)

    def send(self, number):
        """A signal to the launcher, unless it has ended."""
        self.process.send_signal(number)

    def tell(self, name):
        """What the workers' wait_for(NAME) waits for, in their first
        attempt."""
        for rank in range(8):
            open(self.path("notes", f"{name}.0.{rank}"), "w").close()

    def go(self):
        """Runs it to its end and returns its aspects."""
        if self.case.prepare:
            self.case.prepare(self)
        with open(self.path("stdout"), "wb") as out, \
                open(self.path("stderr"), "wb") as err:
            self.process = subprocess.Popen(
                self.command, cwd=self.path("cwd"), env=self.env,
                stdin=subprocess.DEVNULL, stdout=out, stderr=err,
                start_new_session=True)
            try:
                if self.case.drive:
                    self.case.drive(self)
                self.status = self.process.wait(LIMIT)
            except subprocess.TimeoutExpired:
                os.killpg(self.process.pid, signal.SIGKILL)
                self.process.wait()
                self.status = "still running"
        aspects = self.look()
        self.kill_left()
        return aspects

    # What is left of it.

    def notes(self):
        for name in sorted(os.listdir(self.path("notes"))):
            if re.fullmatch(r"\w+\.\d+\.\d+", name):
                with open(self.path("notes", name)) as file:
                    yield name, file.read()

    def left(self):
        """Processes of the run that are still there: [(name, pid)]."""
        result = []
        mine = os.fsencode("SIDE_DIR=" + self.env["SIDE_DIR"])
        for name, text in self.notes():
            kind = name.split(".")[0]
            if kind not in ("start", "child"):
                continue
            pid = json.loads(text)["pid"] if kind == "start" else int(text)
            try:
                with open(f"/proc/{pid}/environ", "rb") as file:
                    if mine in file.read().split(b"\0"):
                        result.append((name, pid))
            except OSError:
                pass
        return result

    def kill_left(self):
        for _, pid in self.left():
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:
                pass

    def scrub(self, text):
        """Replaces what changes from run to run."""
        text = text.replace(self.folder, "FOLDER")
        text = re.sub(r"[0-9a-f]{8}(-?[0-9a-f]{4}){3}-?[0-9a-f]{12}", "UUID",
                      text)
        text = re.sub(r"\btorchelastic_\w{8}\b", "torchelastic_RANDOM", text)
        return re.sub(r"/([^/\n]+)_\w{8}(?=/attempt_|$)", r"/\1_RANDOM", text)

    def tree(self, folder):
        """{path: content} of all that is in it; folders end in "/" and have
        their mode."""
        result = {}
        for parent, folders, files in os.walk(folder):
            for name in folders:
                path = os.path.join(parent, name)
                mode = oct(os.stat(path).st_mode & 0o7777)
                path = self.scrub("/" + os.path.relpath(path, folder))
                result[path + "/"] = mode
            for name in files:
                path = os.path.join(parent, name)
                with open(path, "rb") as file:
                    text = file.read().decode(errors="backslashreplace")
                if name.endswith(".json"):
                    text = self.scrub(error_text(text)).replace(
                        f" on {socket.gethostname()}: ", " on HOST: ")
                else:
                    text = lines_of(text)
                result[self.scrub("/" + os.path.relpath(path, folder))] = text
        return result

    def lines(self, name, said_by_workers):
        with open(self.path(name), "rb") as file:
            text = file.read().decode(errors="backslashreplace")
        return [line for line in lines_of(text)
                if not said_by_workers or "WORKER" in line]

    def look(self):
        """{aspect: value}"""
        aspects = {"status": self.status}
        if self.case.console:
            aspects["stdout"] = self.lines("stdout", False)
            aspects["stderr"] = self.lines("stderr", True)
        starts = {}
        for name, text in self.notes():
            if name.startswith("start."):
                starts[name[len("start."):]] = json.loads(text)
            elif not name.startswith("child."):
                aspects[f"note {name}"] = text
        aspects["workers"] = sorted(starts)
        ports = collections.defaultdict(set)
        collected = collections.defaultdict(dict)
        for who, start in starts.items():
            start.pop("pid")
            environment = start.pop("environment")
            environment.pop("SIDE_DO")
            for key, value in environment.items():
                if key == "MASTER_PORT":
                    ports[who.split(".")[0]].add(value)
                    if "MASTER_PORT" not in self.case.env and \
                            not is_port_given(self.case.command):
                        value = "PORT" if value.isdigit() else value
                if key == "CRUN_AGENT":
                    value = "NAME"
                collected[f"env {key}"][who] = value
            for key, value in start.items():
                collected[key][who] = value
        aspects["ports of an attempt"] = sorted(map(len, ports.values()))
        for key, values in collected.items():
            values = [self.scrub_all(values.get(who, ABSENT))
                      for who in sorted(starts)]
            same = all(value == values[0] for value in values)
            aspects[key] = values[0] if same else values
        aspects["left"] = [name for name, _ in self.left()]
        aspects["temporary"] = self.tree(self.path("tmp"))
        aspects["files"] = self.tree(self.path("cwd"))
        if self.case.reports:
            aspects.update(self.failure())
        return aspects

    def failure(self):
        with open(self.path("stderr"), errors="replace") as file:
            fields = first_failure(self.scrub(file.read()), self.is_crun)
        return fields or {"failure: rank": ABSENT}

    def scrub_all(self, value):
        if isinstance(value, str):
            if value == socket.getfqdn():
                return "HOST"
            return self.scrub(value)
        if isinstance(value, list):
            return [self.scrub_all(item) for item in value]
        return value


def lines_of(text):
    """Sorted, as the order between writers is not kept."""
    return sorted(re.findall(r"[^\n]*\n|[^\n]+", text))


def is_port_given(command):
    return any(re.match(r"--(master|rdzv)[-_](port|endpoint)=.*[1-9]", word)
               for word in command)


def error_text(text):
    """An error file without its times and in one way of writing JSON."""
    try:
        text = json.dumps(json.loads(text), sort_keys=True)
    except ValueError:
        pass
    return re.sub(r'("timestamp": )("?)\d+\2', r'\1\2TIME\2', text)


# What both call the fields of a failure, and what crun says further.
FIELDS = ("time", "host", "rank", "exitcode", "error_file", "traceback")
MORE_FIELDS = ("last call", "stderr", "hint")


def first_failure(text, is_crun):
    """The fields of the first failure in what a launcher has printed."""
    block = re.search(r"^crun: .* FAILED: .*\n((?:  .*\n)+)" if is_crun else
                      r"^Root Cause .*\n\[\d+\]:\n((?:  .*\n)+)",
                      text, re.MULTILINE)
    if not block:
        return {}
    starts = "|".join(FIELDS + MORE_FIELDS)
    fields = re.findall(rf"^  ({starts}) *: (.*(?:\n(?!  (?:{starts}) *:).*)*)",
                        block[1], re.MULTILINE)
    result = {}
    for name, value in fields:
        if name == "host":
            value = "HOST" if value in (socket.getfqdn(),
                                        socket.gethostname()) else value
        elif name == "exitcode":
            value = " ".join(value.split())
        if name in FIELDS and name != "time":
            result[f"failure: {name}"] = re.sub(
                r"(?i)\b(pid:? )\d+", r"\1N", value.rstrip())
    return result


def is_of_workers(aspect):
    return aspect.startswith(("env ", "note ")) or aspect in {
        "command", "program", "arguments", "unbuffered", "folder", "umask",
        "descriptors", "leads", "ports of an attempt"}


def differences(case, torchrun, crun):
    """Sentences: what differs and should not, what should and does not."""
    expected = {item.aspect: item for item in case.differs}
    aspects = {*torchrun, *crun, *expected}
    if [] in (torchrun["workers"], crun["workers"]):
        # That one of them has none is told by this aspect; more there is not
        # to compare.
        aspects -= {aspect for aspect in aspects if is_of_workers(aspect)}
    result = []
    for aspect in sorted(aspects):
        values = (torchrun.get(aspect, ABSENT), crun.get(aspect, ABSENT))
        item = expected.get(aspect)
        if item is None:
            if values[0] != values[1]:
                result.append(describe(aspect, values))
        elif values[0] == values[1]:
            result.append(f"{aspect}: both {values[0]!r}, but a difference "
                          f"is expected ({item.name})")
        else:
            wanted = (item.torchrun, item.crun(values[0])
                      if callable(item.crun) else item.crun)
            for who, value, want in zip(("torchrun", "crun"), values, wanted):
                if want is not ANY and value != want:
                    result.append(f"{aspect} ({item.name}): {who} has "
                                  f"{value!r}, expected is {want!r}")
    return result


def describe(aspect, values):
    if isinstance(values[0], dict) and isinstance(values[1], dict):
        values = [{key: value for key, value in these.items()
                   if others.get(key) != value}
                  for these, others in (values, values[::-1])]
    return f"{aspect}: torchrun has {values[0]!r}, crun has {values[1]!r}"


def run_both(case, python, crun, folder):
    """Both runs of a case; a list of sentences, empty if all is as it
    should be."""
    names = ["crun"] if case.alone else ["torchrun", "crun"]
    seen = []
    for name in names:
        run = Run(case, name == "crun", python, crun,
                  os.path.join(folder, name))
        seen.append(run.go())
    if not case.alone:
        bad = differences(case, *seen)
    else:
        bad = [] if case.alone(seen[0]) else [f"crun has {seen[0]!r}"]
    for name in names if bad else ():
        with open(os.path.join(folder, name, "stderr"),
                  errors="replace") as file:
            bad.append(f"{name}'s stderr:\n{file.read()[-3000:]}")
    shutil.rmtree(folder)
    return bad
