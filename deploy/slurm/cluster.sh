#!/bin/sh
#SBATCH --job-name=tfsup-cluster
#SBATCH --dependency=singleton
#SBATCH --requeue
#SBATCH --signal=B:USR1@60
#SBATCH --output=tfsup-cluster.log
#SBATCH --open-mode=append
#SBATCH --cpus-per-task=2
#SBATCH --mem=4G
#SBATCH --time=7-00:00:00
umask 077
export TFSUP_STATE="${TFSUP_STATE:-$HOME/tfsup}"
supervisorctl local up --advertise "$SLURMD_NODENAME" --scratch /tmp --foreground &
cluster=$!
trap 'scontrol requeue "$SLURM_JOB_ID"' USR1
trap : TERM
while kill -0 "$cluster" 2>/dev/null; do wait "$cluster"; code=$?; done
exit "$code"
