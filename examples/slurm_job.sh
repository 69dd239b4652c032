#!/bin/bash
# Pretrain on several machines under Slurm, then evaluate: sbatch examples/slurm_job.sh
#
# `excb-pretrain RECIPE --slurm partition=gpu,nodes=4,gpus=8,time=24:00:00` writes and submits such a job by itself, and
# requeues it at its time limit. This script is for sites that want their own.
#SBATCH --job-name=excb
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=80
#SBATCH --time=24:00:00
#SBATCH --output=%x-%j.out
set -euo pipefail

RECIPE=${RECIPE:-rn50_400ep}
DATA=${DATA:?a folder of images or tar shards that all machines see}
OUT=${OUT:-runs/$RECIPE}
PROCESSES=${PROCESSES:-8} # on each machine: one for each GPU
OPTIONS=${OPTIONS:-}      # such as "optim.epochs=100 efficiency.workers=8"

head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
# The same job again resumes from the newest checkpoint, with any number of machines.
# shellcheck disable=SC2086 # options are words
srun torchrun --nnodes "$SLURM_NNODES" --nproc-per-node "$PROCESSES" \
    --rdzv-id "$SLURM_JOB_ID" --rdzv-backend c10d --rdzv-endpoint "$head:${PORT:-29500}" \
    -m excb.pretrain "$RECIPE" --data "$DATA" --out "$OUT" $OPTIONS

# Labelled images, with folders train and test or val: evaluated on the first machine.
if [[ -n ${LABELLED:-} ]]; then
    excb-eval knn --ckpt "$OUT" --data "$LABELLED" --out "$OUT/knn.json"
fi
