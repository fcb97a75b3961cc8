#!/usr/bin/env bash
# get-slurm.sh: see to it that the tests can start a Slurm of their own; install Debian's slurmctld, slurmd and munge when missing.
# Starts nothing, and leaves a Slurm that is already there alone.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/apt.sh"

if [[ $# -gt 0 ]]; then
    echo "usage: get-slurm.sh" >&2
    exit 2
fi
PATH="$PATH:/usr/sbin:/sbin"
complete() {
    local program
    for program in slurmctld slurmd munged sbatch squeue scancel scontrol; do
        command -v "$program" >/dev/null || return 1
    done
}
if complete; then
    exit 0
fi
apt_install "a Slurm is needed" "install it, or run: sudo apt-get install slurmctld slurmd slurm-client munge" \
    slurmctld slurmd slurm-client munge
if ! complete; then
    echo "Debian's slurmctld, slurmd and munge are installed, but one of their programs is missing" >&2
    exit 1
fi
