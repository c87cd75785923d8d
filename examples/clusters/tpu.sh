#!/bin/bash
# torchrun on the machines of TPU slices: run this on each of them, with one process for all chips of a machine (SPMD).
#
#     bash examples/clusters/tpu.sh train.py --epochs 3
#
# GKE and queued resources set TPU_WORKER_ID and TPU_WORKER_HOSTNAMES, and for several slices MEGASCALE_NUM_SLICES,
# MEGASCALE_SLICE_ID and MEGASCALE_COORDINATOR_ADDRESS, which libtpu reads, too.
set -euo pipefail
IFS=, read -ra hosts <<< "$TPU_WORKER_HOSTNAMES"
machines=${#hosts[@]}
slices=${MEGASCALE_NUM_SLICES:-1}
first=${hosts[0]}
if [ "$slices" -gt 1 ]; then
    first=${MEGASCALE_COORDINATOR_ADDRESS%%:*} # the first machine of the first slice
fi
export PJRT_DEVICE=TPU XLA_USE_SPMD=1
exec torchrun \
    --nnodes="$((slices * machines))" --node-rank="$((${MEGASCALE_SLICE_ID:-0} * machines + TPU_WORKER_ID))" \
    --nproc-per-node=1 --master-addr="$first" --master-port=29500 "$@"
