#!/usr/bin/env bash
# NumPy takes float8_e5m2 for a float of its own, and then does not know its name.
#
# The other dtypes of ml_dtypes (bfloat16, float8_e4m3fn, ...) have the kind "V": NumPy treats them as bytes. The kind of
# float8_e5m2 is "f", and its name is "<f1". A check such as `dtype.kind in "fiu"` lets it pass as the only one of them,
# and what reads the name again fails: strided views, windows, `numpy.load` of a file that `numpy.save` has written.
#
# Seen with NumPy 2.4.6 and ml_dtypes 0.6.0.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q "numpy==2.4.6" "ml_dtypes==0.6.0"

cat > "$folder/name.py" <<'PYTHON'
import io

import ml_dtypes
import numpy as np


def loaded(array):
    file = io.BytesIO()
    np.save(file, array)
    file.seek(0)
    return np.load(file)


def tried(function, array):
    try:
        return f"a dtype {function(array).dtype}"
    except (TypeError, ValueError) as error:
        return f"{type(error).__name__}: {error}"


print(f"NumPy {np.__version__}, ml_dtypes {ml_dtypes.__version__}")
seen = {}
for name in ("float8_e5m2", "float8_e4m3fn", "bfloat16"):
    array = np.ones(4, getattr(ml_dtypes, name))
    strided = tried(lambda a: np.lib.stride_tricks.as_strided(a, (2,), (a.itemsize,)), array)
    seen[name] = array.dtype.kind, strided, tried(loaded, array)
    print(name, *seen[name], sep=" | ")
# float8_e5m2 | f | TypeError: data type '<f1' not understood | ValueError: descr is not a valid dtype descriptor: '<f1'
# float8_e4m3fn | V | a dtype float8_e4m3fn | a dtype |V1
# bfloat16 | V | a dtype bfloat16 | a dtype |V2
assert seen["float8_e5m2"][0] == "f" and "TypeError" in seen["float8_e5m2"][1] and "ValueError" in seen["float8_e5m2"][2]
assert seen["bfloat16"][0] == "V" and "Error" not in seen["bfloat16"][1] + seen["bfloat16"][2], "the behaviour has changed"
PYTHON
"$folder/venv/bin/python" "$folder/name.py"
