#!/usr/bin/env bash
# Repeats the test programs of build/ci and Python's tests: repeat.sh MINUTES. A round runs each program and each file once,
# the programs' tests in a new order. Rounds differ by how many busy processes run beside them: 0, 2, 5, 10, 20. It ends
# when the time is over or, unless GO_ON=1, when one fails. The logs of failures stay in build/logs/repeat.
set -uo pipefail
cd "$(dirname "$0")/.."

readonly minutes=$1 patience=1800
readonly loads=(0 2 5 10 20)
logs=$PWD/build/logs/repeat
busy=()
rounds=0 runs=0 failures=0

stop_load() {
  [ ${#busy[@]} -eq 0 ] || { kill "${busy[@]}"; wait "${busy[@]}"; } 2>/dev/null
  busy=()
}
trap stop_load EXIT
trap 'exit 130' INT TERM

start_load() {
  for ((i = 0; i < $1; ++i)); do
    (while :; do :; done) &
    busy+=($!)
  done
}

# A program that hangs is aborted, and has failed too.
run() {
  local tests=$1 name log command status
  name=$(basename "$tests")-round-$rounds
  log=$logs/$name.log
  runs=$((runs + 1))
  case $tests in
    *.py) command=("$PWD/build/python/venv/bin/python" -X faulthandler -m pytest -q "$tests") ;;
    *) command=("$tests" --gtest_shuffle --gtest_random_seed="$rounds") ;;
  esac
  if timeout --foreground --signal=ABRT "$patience" "${command[@]}" >"$log" 2>&1; then
    rm "$log"
  else
    status=$?
    echo "FAILED: $name beside ${#busy[@]} busy processes (status $status)"
    grep -hE '^\[  FAILED  \] [A-Z].*\)$|^(FAILED|ERROR) ' "$log"
    failures=$((failures + 1))
  fi
}

rm -rf "$logs"
mkdir -p "$logs"
programs=()
for file in build/ci/tests/test_*; do
  [ ! -f "$file" ] || [ ! -x "$file" ] || programs+=("$PWD/$file")
done
[ ${#programs[@]} -ne 0 ] || { echo "build/ci holds no test programs; build them with tools/build.sh ci"; exit 1; }
programs+=(python/tests/test_*.py)
export OMP_NUM_THREADS=1 PENSTOCK_FAKE_DRIVER=$PWD/build/ci/tests/fake_driver/libfake_cuda.so

end=$((SECONDS + minutes * 60))
while [ "$SECONDS" -lt "$end" ]; do
  rounds=$((rounds + 1))
  start_load "${loads[(rounds - 1) % ${#loads[@]}]}"
  for program in "${programs[@]}"; do
    [ "$SECONDS" -lt "$end" ] || break
    run "$program"
    [ "$failures" -eq 0 ] || [ -n "${GO_ON:-}" ] || break 2
  done
  stop_load
done

echo "$runs runs of ${#programs[@]} programs and files in $rounds rounds, $((SECONDS / 60)) min: $failures failed"
[ "$failures" -eq 0 ] || { echo "logs: $logs"; exit 1; }
