#!/usr/bin/env bash
#SBATCH --job-name=statcollect-example
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=8
# A training on all nodes of a Slurm job, recorded under one run. Usage: sbatch [--nodes=N] slurm.sh RUN SCRIPT [ARGUMENT...]
# The collector runs on the first node, with its data in STATCOLLECT_DATA (default: statcollect-data-JOB), which should be a local disk.
# The folder of the job must be one that all nodes see: they share certificates there (STATCOLLECT_TLS, default: statcollect-tls/NODE).
set -euo pipefail

if [ $# -lt 2 ]; then
  sed -n '6,8s/^# //p' "${BASH_SOURCE[0]}" >&2
  exit 2
fi
main="$(scontrol show hostnames "$SLURM_JOB_NODELIST")"
main="${main%%$'\n'*}"
# sbatch runs a copy of this file, so the other script is looked for where the job was submitted, too.
script=torchrun.sh
for place in "$(dirname "${BASH_SOURCE[0]}")" "${SLURM_SUBMIT_DIR:-.}/examples/launch" "${SLURM_SUBMIT_DIR:-.}"; do
  if [ -x "$place/$script" ]; then
    launch="$place/$script"
    break
  fi
done
if [ -z "${launch:-}" ]; then
  echo "slurm.sh: start $script: it is not beside this file; submit the job from the folder that has it" >&2
  exit 1
fi
export NODES="$SLURM_JOB_NUM_NODES" MAIN="$main" STATCOLLECT_DATA="${STATCOLLECT_DATA:-statcollect-data-$SLURM_JOB_ID}"
# One task a node; torchrun starts the ranks.
# shellcheck disable=SC2016 # $SLURM_NODEID is that of the task
srun --ntasks-per-node=1 bash -c 'NODE_RANK=$SLURM_NODEID exec "$0" "$@"' "$launch" "$@"
