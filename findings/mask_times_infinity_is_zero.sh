#!/usr/bin/env bash
# In a compiled JAX program infinity times a mask of 0 is 0, and NaN times it is 0 as well.
#
# IEEE 754 makes inf * 0 and nan * 0 NaN, and so does `x * mask.astype(x.dtype)` one operation at a time. XLA's algebraic
# simplifier turns a product with a converted boolean into a selection between x and 0. A loss that multiplies by a mask
# so hides overflows in the masked part, which a loss scaler or a check for NaN looks for; without `jit` they show.
#
# Output seen:
#   jax 0.10.2
#   one operation at a time: [nan, nan, 2.0]
#   compiled together:       [0.0, 0.0, 2.0]
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check jax==0.10.2 jaxlib==0.10.2 numpy==2.4.6
JAX_PLATFORMS=cpu "$folder/venv/bin/python" - <<'PYTHON'
import jax
import jax.numpy as jnp

print(f"jax {jax.__version__}")
x = jnp.array([float("inf"), float("nan"), 2.0], jnp.float32)
mask = jnp.array([False, False, True])


def masked(x, mask):
    return x * mask.astype(x.dtype)


alone = masked(x, mask)
compiled = jax.jit(masked)(x, mask)
print(f"one operation at a time: {alone.tolist()}")
print(f"compiled together:       {compiled.tolist()}")
assert bool(jnp.isnan(alone[:2]).all()) and compiled.tolist() == [0.0, 0.0, 2.0], "the behaviour has changed"
PYTHON
