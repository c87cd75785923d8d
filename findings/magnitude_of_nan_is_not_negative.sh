#!/usr/bin/env bash
# In a compiled JAX program `abs(x) >= 0` is true for NaN.
#
# IEEE 754 and XLA's own description of comparisons make every ordered comparison with NaN false. XLA's algebraic
# simplifier knows that a magnitude is not negative and replaces the comparison by the constant true, without asking
# whether the operand can be NaN. Without `jit` each operation is a program of its own, and the answer is right. A guard
# such as `where(abs(x) >= 0, x, 0)`, meant to take NaN out, therefore does nothing once it is compiled.
#
# Output seen:
#   jax 0.10.2
#   one operation at a time: [False, True]
#   compiled together:       [True, True]
#   the guard gives:         [nan, 1.0]
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check jax==0.10.2 jaxlib==0.10.2 numpy==2.4.6
JAX_PLATFORMS=cpu "$folder/venv/bin/python" - <<'PYTHON'
import jax
import jax.numpy as jnp

print(f"jax {jax.__version__}")
x = jnp.array([float("nan"), 1.0], jnp.float32)


def is_not_negative(x):
    return jnp.abs(x) >= 0


alone = is_not_negative(x).tolist()
compiled = jax.jit(is_not_negative)(x).tolist()
guarded = jax.jit(lambda x: jnp.where(is_not_negative(x), x, 0.0))(x)
print(f"one operation at a time: {alone}")
print(f"compiled together:       {compiled}")
print(f"the guard gives:         {guarded.tolist()}")
assert alone == [False, True] and compiled == [True, True] and bool(jnp.isnan(guarded[0])), "the behaviour has changed"
PYTHON
