#!/usr/bin/env bash
# PyTorch's all_reduce over Gloo silently reduces other elements than those of a view with gaps.
#
# The first two columns of a 2 x 3 matrix lie in memory with a gap. Gloo is given the address of the first element and the
# number of elements, so it sums the first four elements of the memory: one element of the view is never
# summed, and one outside of it is. Nothing is raised. A transposed matrix, which fills its memory, is right.
#
# Output seen:
#   torch 2.13.0+cpu, two processes
#   view of columns, before: [[0.0, 1.0], [3.0, 4.0]]
#   after all_reduce (sum):  [[0.0, 2.0], [6.0, 4.0]]
#   the whole matrix after:  [[0.0, 2.0, 4.0], [6.0, 4.0, 5.0]]
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0 numpy==2.4.6
cat > "$folder/reduce.py" <<'PYTHON'
import sys

import torch
import torch.distributed as dist

rank, store = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
matrix = torch.arange(6.0).view(2, 3)
columns = matrix[:, :2]
before = columns.tolist()
dist.all_reduce(columns)
if rank == 0:
    print(f"torch {torch.__version__}, two processes")
    print(f"view of columns, before: {before}")
    print(f"after all_reduce (sum):  {columns.tolist()}")
    print(f"the whole matrix after:  {matrix.tolist()}")
    assert columns.tolist() == [[0.0, 2.0], [6.0, 4.0]], "the behaviour has changed"
    assert matrix[0, 2] == 4.0, "the behaviour has changed"
dist.barrier()
dist.destroy_process_group()
PYTHON
"$folder/venv/bin/python" "$folder/reduce.py" 1 "$folder/store" &
"$folder/venv/bin/python" "$folder/reduce.py" 0 "$folder/store"
wait
