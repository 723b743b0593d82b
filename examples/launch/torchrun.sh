#!/usr/bin/env bash
# One of several nodes under torchrun, recorded under one run. Usage, on every node:
#   NODE_RANK=N NODES=COUNT MAIN=HOST torchrun.sh RUN SCRIPT [ARGUMENT...]
# Node 0 also runs the collector, with its data in STATCOLLECT_DATA, unless STATAGENT_COLLECTOR names one. Several nodes reach it over
# mutual TLS, with certificates in STATCOLLECT_TLS, a folder that all nodes see (default: statcollect-tls/MAIN).
set -euo pipefail

if [ $# -lt 2 ]; then
  sed -n '2,5s/^# //p' "${BASH_SOURCE[0]}" >&2
  exit 2
fi
run="$1"
shift
nodes="${NODES:-1}" rank="${NODE_RANK:-0}" main="${MAIN:-127.0.0.1}"
port="${COLLECTOR_PORT:-7433}" tls="${STATCOLLECT_TLS:-$PWD/statcollect-tls/$main}"

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
  listen="127.0.0.1:$port" secure=()
  if [ "$nodes" != 1 ]; then
    listen="0.0.0.0:$port" secure=(--tls-cert "$tls/server.pem" --tls-key "$tls/server.key" --tls-client-ca "$tls/ca.pem")
    for client in STATAGENT STATCTL; do
      export "${client}_TLS_CA=$tls/ca.pem" "${client}_TLS_CERT=$tls/client.pem" "${client}_TLS_KEY=$tls/client.key"
    done
    if [ "$rank" = 0 ] && [ ! -e "$tls/client.pem" ]; then # the last one that is written
      mkdir -p "$(dirname "$tls")"
      statcollectord tls init "$tls" --host "$main" >/dev/null
    fi
    for _ in $(seq 60); do
      if [ -e "$tls/client.pem" ]; then break; fi
      sleep 1
    done
  fi
  if [ "$rank" = 0 ]; then
    statcollectord --data-dir "${STATCOLLECT_DATA:-statcollect-data}" --listen "$listen" "${secure[@]}" \
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
