#!/usr/bin/env bash
# Check and time every kernel on the first GPU, then the language engine, in under nine minutes.
#
#   benchmarks/gpu_check.sh              needs this checkout, and torch with Triton
#   PYTHON=…/bin/python OUT=…            which interpreter, and where the JSON goes
#
# Exit code: 0 all checked and right, 1 a kernel is wrong or was not checked, 2 nothing to run on.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
python=${PYTHON:-}
if [ -z "$python" ]; then
    python=$root/.venv/bin/python
    [ -x "$python" ] || python=$(command -v python3) || { echo "missing: python3"; exit 2; }
fi

missing=$("$python" - <<'END'
import importlib.util
print(" ".join(m for m in ("torch", "triton", "pytest") if importlib.util.find_spec(m) is None))
END
)
if [ -n "$missing" ]; then
    echo "missing in $python: $missing; install them there, or set PYTHON to one that has them"
    exit 2
fi

cd "$root"
export PYTHONPATH="$root${PYTHONPATH:+:$PYTHONPATH}"
unset TRITON_INTERPRET
exec "$python" -m benchmarks.gpu_check --out "${OUT:-$root/benchmarks/results}" "$@"
