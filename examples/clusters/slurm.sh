#!/bin/bash
#SBATCH --job-name=train
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=64
#SBATCH --time=24:00:00
#SBATCH --signal=TERM@120
#SBATCH --requeue
# torchrun under Slurm: one agent on each node, which starts a process for each device and again after a loss.
#
#     sbatch examples/clusters/slurm.sh train.py --epochs 3
#
# 120 s before its end Slurm sends SIGTERM, at which CheckpointManager.reached_preemption saves.
set -euo pipefail
nodes=$(scontrol show hostnames "$SLURM_JOB_NODELIST")
first=${nodes%%$'\n'*}
export XLA_PERSISTENT_CACHE_PATH=${XLA_PERSISTENT_CACHE_PATH:-$HOME/.cache/torch_xla}
srun --kill-on-bad-exit=1 torchrun \
    --nnodes="$SLURM_JOB_NUM_NODES" --nproc-per-node="${SLURM_GPUS_ON_NODE:-1}" --max-restarts=3 \
    --rdzv-id="$SLURM_JOB_ID" --rdzv-backend=c10d --rdzv-endpoint="$first:29500" "$@"
