#!/bin/bash
# The real torchrun of one PyTorch, that of PYTHON, and crun side by side: see
# torchrun_compare.py. scripts/interop runs this for each PyTorch that it
# finds; older ones lack options that are compared.
#
#     CASES="a restart,SIGKILL"    only those whose name has one of these

ROOT=$(cd "${BASH_SOURCE[0]%/*}/../.." && pwd)
BUILD=${BUILD:-$ROOT/build/release}
[[ $BUILD == /* ]] || BUILD=$ROOT/$BUILD
PYTHON=${PYTHON:-/usr/bin/python3}

export PYTHONWARNINGS=ignore PYTHONDONTWRITEBYTECODE=1
if ! "$PYTHON" -m torch.distributed.run --help 2>&1 |
    grep -q -e --virtual-local-rank; then
    echo "1..0 # SKIP this torchrun is too old to be compared"
    exit 0
fi
IFS=, read -ra words <<<"${CASES:-}"
exec "$PYTHON" "$ROOT/tests/interop/torchrun_compare.py" "$BUILD/crun" \
    "${words[@]}"
