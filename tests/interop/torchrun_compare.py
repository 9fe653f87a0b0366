"""The same command lines under the real torchrun and under crun.

    torchrun_compare.py CRUN [WORD...]

Run by the Python whose torchrun it is. Prints TAP: one line per case, and
whether docs/migration.md and the cases know the same differences. WORDs
choose the cases whose name has one of them.
"""
import concurrent.futures
import os
import re
import shutil
import signal
import sys
import tempfile
import traceback

from torchrun_cases import CASES
from torchrun_side import HERE, run_both

MIGRATION = os.path.join(HERE, "..", "..", "docs", "migration.md")


def documented():
    """The names of the differences in the table of the documentation."""
    with open(MIGRATION) as file:
        return re.findall(r"^\| `([a-z0-9-]+)` \|", file.read(), re.MULTILINE)


def report(number, name, bad):
    print(f"{'not ok' if bad else 'ok'} {number} - {name}", flush=True)
    for sentence in bad:
        for line in sentence.splitlines():
            print(f"# {line}", file=sys.stderr, flush=True)


def main():
    crun, words = sys.argv[1], sys.argv[2:]
    # What this was started with is not what the launchers are tested with.
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT,
                   signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    # By the name under which crun finds it on PATH.
    python = os.path.join(os.path.dirname(sys.executable), "python3")
    cases = [case for case in CASES
             if not words or any(word in case.name for word in words)]
    print(f"1..{len(cases) + (not words)}", flush=True)
    folder = tempfile.mkdtemp(prefix="crun-side.")
    failed = 0
    try:
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            runs = [pool.submit(run_both, case, python, crun,
                                os.path.join(folder, str(number)))
                    for number, case in enumerate(cases)]
            for number, (case, run) in enumerate(zip(cases, runs), 1):
                try:
                    bad = run.result()
                except Exception:
                    bad = [traceback.format_exc()]
                failed += bool(bad)
                report(number, case.name, bad)
    finally:
        shutil.rmtree(folder)
    if not words:
        shown = {item.name for case in CASES for item in case.differs}
        bad = [f"{name}: no case shows it"
               for name in sorted(set(documented()) - shown)]
        bad += [f"{name}: not in docs/migration.md"
                for name in sorted(shown - set(documented()))]
        failed += bool(bad)
        report(len(cases) + 1, "docs/migration.md has these differences and "
               "no other", bad)
    sys.exit(1 if failed else 0)


main()
