#!/usr/bin/env bash
# Every measured bar of the verifier on this machine's GPU: bash benchmarks/gpu.sh [folder for the results]
set -uo pipefail
cd "$(dirname "$0")/.."
out=${1:-benchmarks/results}
python=${PYTHON:-.venv/bin/python}
mkdir -p "$out"
$python benchmarks/solutions.py --repeats 3 --out "$out/solutions-h200.json"
$python tests/corpus.py --device cuda --folder evil --workload small --lanes 4 --out "$out/evil-h200.json"
$python tests/corpus.py --device cuda --folder honest --workload small --lanes 4 --repeats 20 --out "$out/honest-h200.json"
$python benchmarks/repeatability.py --repeats 20 --out "$out/repeatability-h200.json"
$python benchmarks/truth.py --out "$out/truth-h200.json"
$python benchmarks/cost.py --out "$out/cost-h200.json"
$python benchmarks/recovery.py --out "$out/recovery-h200.json"
