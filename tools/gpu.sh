#!/usr/bin/env bash
# Runs the tests and benchmarks that need a GPU: gpu.sh test | test-frameworks | bench [PART...]. Without a GPU it
# says that it is waived, which is not a pass.
set -euo pipefail
cd "$(dirname "$0")/.."

driver_problem() {
  python3 - <<'END'
import ctypes
try:
    driver = ctypes.CDLL("libcuda.so.1")
except OSError as error:
    print(error)
else:
    code = driver.cuInit(0)
    # 34: a stub in place of the driver; 100: no GPU. Any other failure is for the tests to show.
    if code in (34, 100):
        print(f"cuInit returned {code}")
END
}

tools/setup.sh python
problem=$(driver_problem)
if [ -n "$problem" ]; then
  echo "waived: no NVIDIA driver ($problem)"
  exit 0
fi

case "${1:-}" in
  test)
    tools/setup.sh build test
    # As in the preset "ci": tests that are compiled without optimization are ready sooner.
    tools/build.sh release -DPENSTOCK_BUILD_TESTS=ON "-DPENSTOCK_TEST_OPTIONS=-O0;-g0"
    results=build/release/gpu-test
    rm -rf "$results"
    mkdir -p "$results"
    status=0
    echo "built after $SECONDS s"
    # Python's tests begin when the package is there, and both go on beside each other.
    (tools/python.sh beside && tools/python.sh gpu-test "$results" python/tests/test_*.py && echo "Python after $SECONDS s") &
    python=$!
    # run_program FOLDER PROGRAM [SHARD SHARDS]: all of its tests, or one in so many of them
    run_program() {
      local name=${2##*/}${3:+-$3} status
      if [ -n "${3:-}" ]; then export GTEST_TOTAL_SHARDS=$4 GTEST_SHARD_INDEX=$3; fi
      timeout 500 "$2" --gtest_output="xml:$1/$name.xml" >"$1/$name.log" 2>&1
      status=$?
      # Programs that tests start say what is running, too.
      echo "$name: $(awk '/Failure$/ { left = 3 } left-- > 0 || /FAILED|PASSED|tests ran|Actual|Which is/' \
        "$1/$name.log" | cut -c-300 | tail -n 20)"
      if [ $status -eq 124 ]; then echo "$name: stopped after 500 s: $(grep ' RUN ' "$1/$name.log" | tail -n 1)"; fi
      return $status
    }
    export -f run_program
    # The largest, which take longest, begin first, in parts.
    shards=$(($(nproc) < 32 ? 4 : 8))
    find build/release/tests -maxdepth 1 -name 'test_*' -type f -executable -printf '%s %p\n' | sort -rn | cut -d' ' -f2- |
      awk -v shards=$shards 'NR > 3 { print; next } { for (i = 0; i < shards; i++) print $0, i, shards }' |
      xargs -P $((shards * 2)) -L 1 bash -c 'run_program "$@"' - "$results" || status=1
    echo "C++ tests after $SECONDS s"
    wait $python || status=1
    python3 -B tests/gpu/doctor_museum.py --penstock build/release/penstock || status=1
    echo "the doctor's museum after $SECONDS s"
    # Suites name the device that a test runs on in front or at the end. With one GPU, or two without a link, tests of
    # several cannot run.
    excuse=()
    if [ "$(nvidia-smi --list-gpus | wc -l)" -lt 2 ]; then
      excuse=(--but-for 'fewer than two NVIDIA GPUs')
    elif ! grep -qE '^ *GPU0[[:space:]]+X[[:space:]]+OK' <<<"$(nvidia-smi topo -p2p r)"; then
      excuse=(--but-for "do not reach each other's memory")
    fi
    python3 -B tools/summarize_tests.py --must-run '^Cuda/|/[Cc]uda$|\[cuda\]$' "${excuse[@]}" "$results"/*.xml || status=1
    exit $status
    ;;
  test-frameworks)
    results=build/gpu-test-frameworks
    rm -rf "$results"
    mkdir -p "$results"
    status=0
    tools/python.sh beside
    tools/python.sh gpu-test "$results" python/tests/frameworks || status=1
    python3 -B tools/summarize_tests.py "$results"/*.xml || status=1
    exit $status
    ;;
  bench)
    # All parts take some ten minutes. `bench PART...` takes some again; the results then hold the others' last figures.
    parts=" ${*:2} "
    if [ $# -eq 1 ]; then parts=" engine loader recorder folklore groups starts run park replay pictures compare gains "; fi
    # wants PART FILE...: whether the part is measured; if so, its earlier outputs go.
    wants() {
      [[ $parts == *" $1 "* ]] && rm -f "${@:2}"
    }
    tools/setup.sh build
    tools/build.sh release -DPENSTOCK_BUILD_BENCHMARKS=ON
    status=0
    if wants engine build/gpu-bench.json; then
      # The engine uses a profile of this machine and hour.
      build/release/penstock link --device cuda:0 --profile build/gpu-profile.json \
        --json build/gpu-link.json || status=1
      build/release/benchmarks/bench_engine --device cuda:0 --profile build/gpu-profile.json \
        --json build/gpu-bench.json || status=1
    fi
    if wants loader build/gpu-loader.json; then
      build/release/benchmarks/bench_loader --device cuda:0 --profile build/gpu-profile.json \
        --json build/gpu-loader.json || status=1
    fi
    if wants recorder build/gpu-recorder.json; then
      python3 -B tests/gpu/doctor_museum.py --penstock build/release/penstock --overhead \
        --json build/gpu-recorder.json || true
    fi
    if python3 -c 'import torch, nanobind, scikit_build_core'; then
      tools/python.sh beside
      export PYTHONPATH="$PWD/build/python/beside${PYTHONPATH:+:$PYTHONPATH}"
      if wants folklore; then
        python3 benchmarks/folklore.py >build/gpu-folklore.md || true
        cat build/gpu-folklore.md
      fi
      count=$(python3 -c 'import torch; print(torch.cuda.device_count())')
      mapfile -t gpus < <(seq -f 'cuda:%g' 0 $((count - 1)))
      if [ ${#gpus[@]} -gt 1 ] && wants groups build/gpu-groups.json build/gpu-processes.json; then
        # Python's engines look for profiles of this machine and hour there.
        profiles=$PWD/build/cache
        mkdir -p "$profiles"
        for gpu in "${gpus[@]}"; do
          XDG_CACHE_HOME=$profiles build/release/penstock link --device "$gpu" --quick || status=1
        done
        XDG_CACHE_HOME=$profiles build/release/penstock link --devices "${gpus[@]}" \
          --json build/gpu-group-link.json || status=1
        XDG_CACHE_HOME=$profiles python3 benchmarks/groups.py --devices "${gpus[@]}" \
          --json build/gpu-groups.json || status=1
        XDG_CACHE_HOME=$profiles python3 benchmarks/processes.py --devices "${gpus[@]}" --mib 16384 --sample-kib 147 \
          --batch 256 --seconds 5 --json build/gpu-processes.json || status=1
      fi
      if wants starts build/gpu-starts.json; then
        python3 benchmarks/starts.py --device cuda --json build/gpu-starts.json >build/gpu-starts.md || status=1
        cat build/gpu-starts.md
      fi
      if wants run build/gpu-run.json; then
        python3 benchmarks/run.py --penstock build/release/penstock --repetitions 5 --json build/gpu-run.json || status=1
      fi
      if wants park build/gpu-park.json; then
        python3 benchmarks/park.py --loop-billions 1 7 --json build/gpu-park.json || status=1
      fi
      if wants replay build/gpu-replay.json; then
        python3 benchmarks/replay.py --device cuda --rows 400000 --json build/gpu-replay.json || status=1
      fi
      if wants pictures build/gpu-pictures.json build/gpu-training.json; then
        pictures=(python3 benchmarks/pictures.py --device cuda --rounds 1 --warm-up 2 --seconds 4)
        "${pictures[@]}" --json build/gpu-pictures.json || status=1
        "${pictures[@]}" --train resnet50 --json build/gpu-training.json || status=1
      fi
      if wants compare build/gpu-compare.json; then
        python3 benchmarks/compare.py --device cuda --seconds 0.5 --json build/gpu-compare.json || status=1
      fi
      if wants gains build/gpu-gains.json; then
        # Programs with a mistake and without: does the gain come as predicted?
        python3 -B tests/gpu/doctor_museum.py --penstock build/release/penstock --fixed \
          --json build/gpu-gains.json || status=1
      fi
    else
      echo "compare: not measured, this Python lacks what the package is built and compared with"
    fi
    # Into one file for this kind of machine, with its verdicts. COMMIT=... names the sources if they are no clone.
    python3 -B benchmarks/results.py gather build
    exit $status
    ;;
  *)
    echo "usage: gpu.sh test | test-frameworks | bench [PART...]" >&2
    exit 2
    ;;
esac
