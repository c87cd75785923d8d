#!/usr/bin/env bash
# A conversion from float64 to float16 by XLA on the CPU rounds once where the compiler knows the number, and where the
# processor has an instruction for it (AVX512-FP16); elsewhere it rounds to float32 first, as PyTorch does. So one
# jitted conversion gives two results for a number halfway between two of float16 and a little more.
# It needs no accelerator; XLA is told not to use newer instructions, so that every x86 processor shows the same. Seen
# with jax 0.10.2, torch 2.13.0 and numpy 2.3.5:
#   numpy 1.0009765625, torch 1.0
#   jax: as an argument 1.0, as a constant 1.0009765625
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet "jax[cpu]==0.10.2" "torch==2.13.0" "numpy==2.3.5"
XLA_FLAGS=--xla_cpu_max_isa=AVX2 "$folder/venv/bin/python" - <<'PYTHON'
import jax
import jax.numpy as jnp
import numpy as np
import torch

jax.config.update("jax_enable_x64", True)
number = 1 + 2**-11 + 2**-40
row = np.full(4, number)
half, into = np.float16, jax.lax.convert_element_type
by_numpy, by_torch = float(row.astype(half)[0]), torch.tensor(row).half()[0].item()
argument = float(jax.jit(lambda x: into(x, half))(row)[0])
constant = float(jax.jit(lambda: into(jnp.full(4, number, np.float64), half))()[0])
print(f"numpy {by_numpy}, torch {by_torch}")
print(f"jax: as an argument {argument}, as a constant {constant}")
assert (by_numpy, by_torch) == (1.0009765625, 1.0)
assert argument != constant, "both are rounded alike now"
PYTHON
