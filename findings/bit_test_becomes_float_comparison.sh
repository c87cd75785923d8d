#!/usr/bin/env bash
# A test of integers in a JAX program says that the bits of 1e-40 are zero.
#
# XLA:CPU runs its programs with the processor's flags that read subnormal floats as zero. Operations on integers do not
# depend on these flags, so a program can look at the bits: `(bits & 0x7FFFFFFF) == 0` is true for zeros alone. LLVM
# turns this test of integers into the comparison `x == 0.0` of floats, which is the same only without the flags; XLA
# does not declare the flags to LLVM (the function attribute "denormal-fp-math"). So the answer is true for 1e-40 in the
# body of a reduction, false in an elementwise operation, and `bits * 6 == 0`, which LLVM does not recognise, is right
# in both.
#
# Output seen:
#   jax 0.10.2
#   bits of 1e-40: 71362
#   elementwise:  (bits & 0x7FFFFFFF) == 0 is False
#   in a reduction: (bits & 0x7FFFFFFF) == 0 is True
#   in a reduction: bits * 6 == 0 is False
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check jax==0.10.2 jaxlib==0.10.2 numpy==2.4.6
JAX_PLATFORMS=cpu "$folder/venv/bin/python" - <<'PYTHON'
import jax
import numpy as np
from jax import lax

print(f"jax {jax.__version__}")
x = np.float32([1e-40, 1e-40])


def masked(number):
    return (lax.bitcast_convert_type(number, np.int32) & 0x7FFFFFFF) == 0


def multiplied(number):
    return lax.bitcast_convert_type(number, np.int32) * 6 == 0


def in_a_reduction(test):
    """Whether `test` holds for the last element: 7 replaces what passes it."""

    def last(before, number):
        return lax.select(test(number), lax.full_like(number, 7), number)

    reduced = jax.jit(lambda x: lax.reduce(x, np.float32(0), last, (0,)))(x)
    return bool(reduced == 7)


elementwise = bool(jax.jit(masked)(x)[0])
found = [in_a_reduction(masked), in_a_reduction(multiplied)]
print(f"bits of 1e-40: {x.view(np.int32)[0]}")
print(f"elementwise:  (bits & 0x7FFFFFFF) == 0 is {elementwise}")
print(f"in a reduction: (bits & 0x7FFFFFFF) == 0 is {found[0]}")
print(f"in a reduction: bits * 6 == 0 is {found[1]}")
assert not elementwise and found == [True, False], "the behaviour has changed"
PYTHON
