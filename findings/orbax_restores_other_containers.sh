#!/usr/bin/env bash
# Orbax restores a checkpoint without a target as other containers than were saved: a tuple becomes a list, but an empty
# tuple stays a tuple; a named tuple becomes a dict; integer keys become texts, as those of an optimizer's state; a NumPy
# scalar becomes a Python number.
# Seen with orbax-checkpoint 0.12.8, jax 0.10.2:
#   a tuple of two: list, an empty one: tuple
#   a named tuple: dict with ['count', 'mean']
#   integer keys: ['0', '10', '9']
#   np.float16(2): float
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet "orbax-checkpoint==0.12.8" "jax==0.10.2" "jaxlib==0.10.2" "numpy==2.3.5"
"$folder/venv/bin/python" - "$folder" <<'PYTHON'
import collections
import pathlib
import sys

import jax
import numpy as np
import orbax.checkpoint as ocp

State = collections.namedtuple("State", "count mean")
one = np.ones(1, np.float32)
saved = {
    "pair": (one, one),
    "nothing": (),
    "state": State(one, one),
    "moments": {0: one, 9: one, 10: one},
    "scale": np.float16(2),
}
path = pathlib.Path(sys.argv[1]) / "step"
checkpointer = ocp.PyTreeCheckpointer()
checkpointer.save(path, saved)
found = checkpointer.restore(path)

print("orbax-checkpoint", ocp.__version__, "jax", jax.__version__)
print(f"a tuple of two: {type(found['pair']).__name__}, an empty one: {type(found['nothing']).__name__}")
print(f"a named tuple: {type(found['state']).__name__} with {list(found['state'])}")
print("integer keys:", sorted(found["moments"]))
print("np.float16(2):", type(found["scale"]).__name__)
assert isinstance(found["pair"], list) and found["nothing"] == (), "tuples are restored alike now"
assert isinstance(found["state"], dict), "named tuples are kept now"
assert sorted(found["moments"]) == ["0", "10", "9"], "integer keys are kept now"
assert isinstance(found["scale"], float), "NumPy's scalars are kept now"
PYTHON
