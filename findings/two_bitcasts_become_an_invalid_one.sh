#!/usr/bin/env bash
# XLA merges two bitcasts in a row into one, also where the first widens bytes to a word and the second splits the word
# into other parts: u8[2,8] to s64[2] to f16[2,4]. No single bitcast does that, and XLA's own verifier refuses the
# merged one, so the program does not compile. The bitcasts compile one by one.
# It needs JAX alone, on the CPU. Seen with jax 0.10.2, and with jax 0.12.0.1:
#   jax 0.10.2
#   one by one: (2,) (2, 4)
#   in one program: JaxRuntimeError: Last dimension of input shape=8 is not equal to ratio of bit-widths=2
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet "jax==0.10.2" "jaxlib==0.10.2" "numpy==2.3.5"
JAX_PLATFORMS=cpu "$folder/venv/bin/python" - <<'PYTHON'
import re

import jax
import jax.numpy as jnp

jax.config.update("jax_enable_x64", True)
print("jax", jax.__version__)
octets = jnp.arange(16, dtype=jnp.uint8).reshape(2, 8)


def words(x):
    return jax.lax.bitcast_convert_type(x, jnp.int64)


def halves(x):
    return jax.lax.bitcast_convert_type(x, jnp.float16)


first = words(octets)
print("one by one:", first.shape, halves(first).shape)
assert halves(first).shape == (2, 4)
try:
    found = str(jax.jit(lambda x: halves(words(x)))(octets).shape)
except jax.errors.JaxRuntimeError as error:
    reason = re.search(r"Last dimension of input shape=\d+ is not equal to ratio of bit-widths=\d+", str(error))
    found = f"{type(error).__name__}: {reason[0] if reason else error}"
print("in one program:", found)
assert "is not equal to ratio of bit-widths" in found, "it compiles now"
PYTHON
