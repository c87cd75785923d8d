#!/usr/bin/env bash
# In JAX on the CPU the square root of -1 - 0i is +i; C, numpy and PyTorch give -i.
#
# The square root has its branch cut along the negative real numbers, and the sign of a zero imaginary part says from
# which side a number comes: C's Annex G makes sqrt(conj(z)) the conjugate of sqrt(z) everywhere. XLA's expansion of a
# complex square root drops the sign, so numbers just below the cut land on the wrong branch. The logarithm of the
# same number keeps it, so that sqrt(z) and exp(log(z) / 2) disagree.
#
# Output seen:
#   jax 0.10.2, numpy 2.4.6
#   imaginary part is -0.0:  True
#   sqrt, numpy:             imaginary part -2.0
#   sqrt, JAX:               imaginary part 2.0
#   log, JAX:                imaginary part -3.1415927410125732
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check jax==0.10.2 jaxlib==0.10.2 numpy==2.4.6
JAX_PLATFORMS=cpu "$folder/venv/bin/python" - <<'PYTHON'
import jax
import jax.numpy as jnp
import numpy as np

print(f"jax {jax.__version__}, numpy {np.__version__}")
below = np.array([complex(-4.0, -0.0)], np.complex64)
on_device = jnp.array(below)
print(f"imaginary part is -0.0:  {bool(np.signbit(np.asarray(on_device).imag[0]))}")
by_numpy = float(np.sqrt(below).imag[0])
by_jax = float(jnp.sqrt(on_device).imag[0])
angle = float(jnp.log(on_device).imag[0])
print(f"sqrt, numpy:             imaginary part {by_numpy}")
print(f"sqrt, JAX:               imaginary part {by_jax}")
print(f"log, JAX:                imaginary part {angle}")
assert (by_numpy, by_jax) == (-2.0, 2.0) and angle < -3, "the behaviour has changed"
PYTHON
