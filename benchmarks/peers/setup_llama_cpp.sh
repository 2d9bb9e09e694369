#!/bin/sh
# Build llama.cpp (package llama-cpp-python, from source, for this CPU) into an environment of its own.
#
#   benchmarks/peers/setup_llama_cpp.sh [FOLDER] [JOBS]
#
# FOLDER: ~/.cache/lanewise/peers/llama_cpp by default; `python -m benchmarks llm` looks there.
# JOBS: compilers at a time, all cores by default. Takes about 13 minutes on two cores, 300 MB.
# Needs a C++ compiler; on a CPU with AMX clang, for what GCC 12 makes of ggml's AMX code loses the
# shapes of the tiles and ends in SIGILL. Does nothing where it is already built.
set -eu

version=0.3.36
folder=${1:-$HOME/.cache/lanewise/peers/llama_cpp}
jobs=${2:-$(nproc)}
python=${PYTHON:-python3}

if "$folder/bin/python" -c "import llama_cpp" 2>/dev/null; then
    echo "llama.cpp is there: $folder"
    exit 0
fi
if grep -qs amx_int8 /proc/cpuinfo; then
    command -v clang++ >/dev/null || {
        echo "this CPU has AMX, for which llama.cpp is built with clang: install clang and libomp-dev" >&2
        exit 1
    }
    export CC=clang CXX=clang++
fi
mkdir -p "$(dirname "$folder")"
"$python" -m venv "$folder"
"$folder/bin/pip" install --quiet "cmake>=3.21,<5" "ninja>=1.11,<2"
# GGML_NATIVE: the instructions of this very CPU. The picture models of llama.cpp are left out.
CMAKE_ARGS="-DGGML_NATIVE=ON -DLLAVA_BUILD=OFF -DMTMD_BUILD=OFF" \
    CMAKE_BUILD_PARALLEL_LEVEL="$jobs" \
    "$folder/bin/pip" install --no-binary llama-cpp-python "llama-cpp-python==$version"
"$folder/bin/python" -c "import llama_cpp; print('llama-cpp-python', llama_cpp.__version__)"
