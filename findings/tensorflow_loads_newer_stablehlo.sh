#!/usr/bin/env bash
# TensorFlow loads a SavedModel whose StableHLO is newer than its own, and fails when the function is called.
#
# JAX 0.10.2 exports `erf` as StableHLO 1.15.0, where a composite is the operation `vhlo.composite_v2`. TensorFlow 2.21.0
# reads versions up to 1.13.7. Saving and loading say nothing; the first call raises InvalidArgumentError. The same
# program fits into version 1.0.0, and runs when it is written so.
#
# Output seen (versions; then what each artifact does):
#   tensorflow 2.21.0, jax 0.10.2
#   as exported, StableHLO 1.15.0: loaded; the call raises InvalidArgumentError: unregistered operation 'vhlo.composite_v2'
#   written again, StableHLO 1.0.0: loaded; the call gives [0.0, 0.8427]
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check tensorflow-cpu==2.21.0 jax==0.10.2 jaxlib==0.10.2
TF_CPP_MIN_LOG_LEVEL=3 "$folder/venv/bin/python" - "$folder" 2>/dev/null <<'PYTHON'
import re
import sys

import jax
import numpy as np
import tensorflow as tf
from jax import export
from jaxlib.mlir.dialects import stablehlo
from tensorflow.compiler.tf2xla.python.xla import call_module

print(f"tensorflow {tf.__version__}, jax {jax.__version__}")
exported = export.export(jax.jit(jax.scipy.special.erf))(jax.ShapeDtypeStruct((2,), np.float32))
first = bytes(exported.mlir_module_serialized)
again = bytes(stablehlo.serialize_portable_artifact_str(stablehlo.deserialize_portable_artifact_str(first), "1.0.0"))


def outcome(artifact, folder):
    holder = tf.Module()
    holder.f = tf.function(
        lambda x: call_module(
            [x], version=exported.calling_convention_version, Tout=[tf.float32], Sout=[[2]], function_list=[],
            module=artifact, platforms=["CPU"],
        )[0],
        autograph=False,
        input_signature=[tf.TensorSpec([2], tf.float32)],
    )
    tf.saved_model.save(holder, folder)
    loaded = tf.saved_model.load(folder)
    try:
        return f"gives {[round(float(n), 4) for n in loaded.f(tf.constant([0.0, 1.0]))]}"
    except tf.errors.InvalidArgumentError as error:
        reason = re.search(r"unregistered operation '[\w.]+'", str(error))
        return f"raises InvalidArgumentError: {reason[0] if reason else error}"


seen = []
for how, artifact in (("as exported", first), ("written again", again)):
    version = re.search(rb"StableHLO_v([0-9.]+)", artifact[:64])[1].decode()
    seen.append(outcome(artifact, f"{sys.argv[1]}/{version}"))
    print(f"{how}, StableHLO {version}: loaded; the call {seen[-1]}")
expected = ["raises InvalidArgumentError: unregistered operation 'vhlo.composite_v2'", "gives [0.0, 0.8427]"]
sys.exit(seen != expected)
PYTHON
