#!/usr/bin/env bash
# One of several nodes under torchrun, recorded under one run. Usage, on every node:
#   NODE_RANK=N NODES=COUNT MAIN=HOST torchrun.sh RUN SCRIPT [ARGUMENT...]
# Node 0 also runs the collector, with its data in STATCOLLECT_DATA, unless STATAGENT_COLLECTOR names one.
set -euo pipefail

if [ $# -lt 2 ]; then
  sed -n '2,4s/^# //p' "${BASH_SOURCE[0]}" >&2
  exit 2
fi
run="$1"
shift
nodes="${NODES:-1}" rank="${NODE_RANK:-0}" main="${MAIN:-127.0.0.1}"
port="${COLLECTOR_PORT:-7433}"

collector=
stop() {
  status=$?
  trap - EXIT
  if [ -n "$collector" ]; then # SIGTERM: it writes what it has received
    kill -TERM "$collector" 2>/dev/null || true
    wait "$collector" || true
  fi
  exit "$status"
}
trap stop EXIT

if [ -z "${STATAGENT_COLLECTOR:-}" ]; then
  if [ "$rank" = 0 ]; then
    listen="127.0.0.1:$port" insecure=()
    [ "$nodes" = 1 ] || listen="0.0.0.0:$port" insecure=(--insecure)
    statcollectord --data-dir "${STATCOLLECT_DATA:-statcollect-data}" --listen "$listen" "${insecure[@]}" \
      --http "127.0.0.1:$((port + 1))" &
    collector=$!
  fi
  export STATAGENT_COLLECTOR="$main:$port"
fi
export STATAGENT_RUN="$run"
# An agent without a collector would let the training go on and drop records, so wait for it.
for _ in $(seq 60); do
  if statctl --collector "$STATAGENT_COLLECTOR" --timeout 2 --quiet status >/dev/null 2>&1; then break; fi
  if [ -n "$collector" ] && ! kill -0 "$collector" 2>/dev/null; then
    echo "torchrun.sh: start the collector: it ended; its message is above" >&2
    exit 1
  fi
  sleep 1
done
statctl --collector "$STATAGENT_COLLECTOR" --timeout 5 --quiet status >/dev/null

${PYTHON:-python3} -m torch.distributed.run --nnodes="$nodes" --node_rank="$rank" --nproc_per_node="${PER_NODE:-1}" \
  --master_addr="$main" --master_port="${MASTER_PORT:-29500}" "$@"
