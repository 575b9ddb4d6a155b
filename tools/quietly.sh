# For scripts that source it.

# Quiet, but for what fails.
quietly() {
  local log status=0
  log=$(mktemp)
  "$@" >"$log" 2>&1 || { status=$?; tail -n 60 "$log" >&2; }
  rm -f "$log"
  return $status
}
