# shellcheck shell=bash
# Sourced by the benchmarks: published figures come from a machine that does nothing else.

quiet_load_max=0.5

# require_quiet WHO SECONDS: waits up to SECONDS until the load average of the last minute is at most 0.5, then fails. What ran just
# before, such as the benchmark before this one, stays in that average for some minutes. STATCOLLECT_LOADAVG names another file (tests).
require_quiet() {
  local who="$1" until=$((SECONDS + $2)) load asked=0
  while :; do
    read -r load _ <"${STATCOLLECT_LOADAVG:-/proc/loadavg}"
    if awk -v load="$load" -v max="$quiet_load_max" 'BEGIN { exit !(load + 0 <= max) }'; then return 0; fi
    if [ $SECONDS -ge $until ]; then
      echo "$who: measure on a quiet machine: found a load average of $load over the last minute; expected at most $quiet_load_max;" \
        "stop what else runs, or pass --busy to measure anyway" >&2
      return 1
    fi
    if [ $asked = 0 ]; then
      echo "$who: waiting for the load average to fall from $load to $quiet_load_max" >&2
      asked=1
    fi
    sleep 5
  done
}
