#!/usr/bin/env bash
# Repeats the test programs of build/ci: repeat.sh MINUTES. Each round runs all of them in a new order of tests,
# every second round beside busy processes. It ends when the time is over or, unless GO_ON=1, when one fails.
# The logs of failures stay in build/logs/repeat.
set -uo pipefail
cd "$(dirname "$0")/.."

readonly minutes=$1 patience=1800
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
  for ((i = 0; i < 2 * $(nproc); ++i)); do
    (while :; do :; done) &
    busy+=($!)
  done
}

# A program that hangs is aborted, and has failed too.
run() {
  local program=$1 name log
  name=$(basename "$program")-round-$rounds
  log=$logs/$name.log
  runs=$((runs + 1))
  if timeout --foreground --signal=ABRT "$patience" "$program" --gtest_shuffle --gtest_random_seed="$rounds" >"$log" 2>&1; then
    rm "$log"
  else
    echo "FAILED: $name${busy:+, under load} (status $?)"
    grep -h '^\[  FAILED  \] [A-Z].*)$' "$log"
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

end=$((SECONDS + minutes * 60))
while [ "$SECONDS" -lt "$end" ]; do
  rounds=$((rounds + 1))
  [ $((rounds % 2)) -eq 1 ] || start_load
  for program in "${programs[@]}"; do
    [ "$SECONDS" -lt "$end" ] || break
    run "$program"
    [ "$failures" -eq 0 ] || [ -n "${GO_ON:-}" ] || break 2
  done
  stop_load
done

echo "$runs runs of ${#programs[@]} test programs in $rounds rounds, $((SECONDS / 60)) min: $failures failed"
[ "$failures" -eq 0 ] || { echo "logs: $logs"; exit 1; }
