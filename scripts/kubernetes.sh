#!/usr/bin/env bash
# Writes deploy/kubernetes/statcollect.yaml and three-collectors.yaml: what the Helm chart renders with its default values, and with those of
# deploy/helm/three-collectors.yaml, for those who do not use Helm.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

case "${1:-}" in
  '') ;;
  -h | --help)
    echo "Usage: scripts/kubernetes.sh"
    echo
    echo "Renders deploy/helm/statcollect into deploy/kubernetes/statcollect.yaml and three-collectors.yaml. Needs helm, which scripts/setup.sh --for test installs."
    exit 0
    ;;
  *) echo "kubernetes.sh: unknown argument '$1'; see scripts/kubernetes.sh --help" >&2; exit 2 ;;
esac
PATH="$PATH:$PWD/.venv/bin"
if ! command -v helm >/dev/null; then
  echo "kubernetes.sh: render the chart: helm is not installed; run scripts/setup.sh --for test" >&2
  exit 1
fi
render() { # FILE TITLE [arguments of helm]
  local out="$1" title="$2"
  shift 2
  {
    echo "# $title, for kubectl apply -f. Written by scripts/kubernetes.sh from the chart in deploy/helm/statcollect: change that."
    cat <<'E2'
# The image is built from deploy/Containerfile; name the registry that has yours.
apiVersion: v1
kind: Namespace
metadata:
  name: statcollect
E2
    helm template statcollect deploy/helm/statcollect --namespace statcollect --kube-version 1.30.0 "$@"
  } >"$out.part"
  mv "$out.part" "$out"
  echo "$out"
}
render deploy/kubernetes/statcollect.yaml "The collector in Kubernetes"
render deploy/kubernetes/three-collectors.yaml "Three collectors that share a ClickHouse (deploy/clickhouse.md)" --values deploy/helm/three-collectors.yaml
