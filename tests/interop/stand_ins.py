"""Stands in for the GPU libraries that a CUDA build of PyTorch is linked to.

    stand_ins.py SITE_PACKAGES

PyTorch's wheels for x86-64 load several gigabytes of NVIDIA libraries when
they are imported, even if no GPU is ever touched. This writes, for each of
them that is not there, a small shared library of the same name with the same
(versioned) symbols, each of which traps when it is called. With OUT_DIR on
LD_LIBRARY_PATH the wheel imports, and everything that runs on the CPU works.
"""
import collections
import os
import re
import subprocess
import sys


def objdump(flag, path):
    return subprocess.run(["objdump", flag, path], check=True, text=True,
                          stdout=subprocess.PIPE).stdout


def main():
    site = sys.argv[1]
    lib = os.path.join(site, "torch", "lib")
    present = {name: folder for folder, _, names in os.walk(site)
               for name in names}
    out = next(present[name] for name in present
               if name.startswith("libcudart.so."))
    wanted = set()  # library names
    versions = {}  # version name -> library name
    symbols = collections.defaultdict(set)  # version name -> symbols
    plain = set()  # symbols without a version
    for name in sorted(os.listdir(lib)):
        if not re.search(r"\.so(\.|$)", name):
            continue
        path = os.path.join(lib, name)
        library = None
        for line in objdump("-p", path).splitlines():
            words = line.split()
            if words[:1] == ["NEEDED"]:
                wanted.add(words[1])
            elif words[:2] == ["required", "from"]:
                library = words[2].rstrip(":")
            elif library and len(words) == 4 and words[0].startswith("0x"):
                versions[words[3]] = library
        for line in objdump("-T", path).splitlines():
            words = line.split()
            if "*UND*" not in words:
                continue
            if words[-2].startswith("("):
                symbols[words[-2].strip("()")].add(words[-1])
            else:
                plain.add(words[-1])
    # All but the driver's own: without that one, PyTorch sees no GPU.
    gpu = re.compile(r"lib(cu(?!da\.)|nv|nccl)")
    for library in sorted(n for n in wanted - present.keys() if gpu.match(n)):
        stem = library[3:library.index(".so")].lower()
        names = {s for s in plain if s.lower().startswith(stem)}
        script = ""
        for version in sorted(v for v in versions if versions[v] == library):
            names |= symbols[version]
            script += "%s { global: %s; };\n" % (
                version, "; ".join(sorted(symbols[version])))
        source = "".join(f"void {name}(void) {{ __builtin_trap(); }}\n"
                         for name in sorted(names))
        target = os.path.join(out, library)
        with open(target + ".map", "w") as file:
            file.write(script or "{ global: *; };\n")
        subprocess.run(["cc", "-shared", "-fPIC", "-fno-builtin", "-o", target,
                        "-Wl,-soname," + library,
                        "-Wl,--version-script=" + target + ".map",
                        "-x", "c", "-"], input=source, text=True, check=True)


main()
