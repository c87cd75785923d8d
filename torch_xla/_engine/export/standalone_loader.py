"""Call the exported model in this directory with JAX alone: `load(directory)` returns its functions by name.

This file is saved with every exported model. A function takes the model's tensors as one flat list of arrays and
returns a tuple of arrays: first the new values of buffers, then its results.

    python load.py                      # prints the signatures of the functions
    functions = load("directory")
    results = functions["forward"](x)   # in Python
"""

import dataclasses
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def shapes(signatures: Sequence[dict[str, Any]], constraints: Sequence[str]) -> list[jax.ShapeDtypeStruct]:
    """Return sizes and dtypes as JAX writes them; dynamic dimensions are symbols."""
    scope = jax.export.SymbolicScope(constraints)
    found = []
    for each in signatures:
        dynamic = each.get("symbolic")
        size = jax.export.symbolic_shape(dynamic, scope=scope) if dynamic else tuple(each["shape"])
        found.append(jax.ShapeDtypeStruct(size, jnp.dtype(each["dtype"])))
    return found


def exported(
    artifact: bytes,
    inputs: Sequence[object],
    outputs: Sequence[Any],
    platforms: Sequence[str],
    convention: int | None = None,
) -> jax.export.Exported:
    """Return a portable artifact of StableHLO as what `jax.export` calls."""

    def stand_in(*_: object) -> tuple[jax.Array, ...]:
        return tuple(jnp.zeros(each.shape, each.dtype) for each in outputs)

    # Everything but the module itself is as if JAX had exported a function of these inputs and outputs.
    with jax.enable_x64(True):
        found = jax.export.export(jax.jit(stand_in, keep_unused=True), platforms=platforms)(*inputs)
    convention = convention or found.calling_convention_version
    return dataclasses.replace(
        found, mlir_module_serialized=artifact, calling_convention_version=convention, _get_vjp=None
    )


def function_of(meta: dict[str, Any], artifact: bytes) -> jax.export.Exported:
    """Return a saved function: its description as `functions/*.meta` has it, and what `functions/*.bytecode` holds."""
    constraints = meta["constraints"]
    inputs = shapes(meta["input_signature"], constraints)
    # One scope for all: equal symbols of inputs and outputs mean the same dimension.
    both = shapes([*meta["input_signature"], *meta["result_signature"]], constraints)
    return exported(
        artifact, both[: len(inputs)], both[len(inputs) :], meta["platforms"], meta["calling_convention_version"]
    )


def read(path: Path, dtype: str) -> np.ndarray:
    """Return an array as it was saved; NumPy's files know no bfloat16 or float8, and hold its bytes."""
    array = np.load(path)
    return array.view(jnp.dtype(dtype)) if array.dtype.kind == "V" else array


def load(directory: str | Path) -> dict[str, Callable[..., object]]:
    """Return the functions of the model saved in `directory`, by name."""
    root = Path(directory)
    return {path.stem: _loaded(root, path) for path in sorted((root / "functions").glob("*.meta"))}


def _loaded(root: Path, path: Path) -> Callable[..., object]:
    meta = json.loads(path.read_text())
    call = function_of(meta, path.with_suffix(".bytecode").read_bytes()).call
    fixed: dict[int, np.ndarray] = {}
    for place, (location, signature) in enumerate(zip(meta["input_locations"], meta["input_signature"], strict=True)):
        kind = location["type_"]["name"]
        if kind == "PARAMETER":
            fixed[place] = read(root / "data" / f"{location['name']}.npy", signature["dtype"])
        elif kind == "CONSTANT":
            fixed[place] = read(root / "constants" / f"{location['position']}.npy", signature["dtype"])

    def function(*arrays: object) -> object:
        filled = []
        for place, location in enumerate(meta["input_locations"]):
            filled.append(fixed[place] if place in fixed else arrays[location["position"]])
        with jax.enable_x64(True):
            return call(*filled)

    return function


if __name__ == "__main__":
    for _path in sorted((Path(__file__).parent / "functions").glob("*.meta")):
        _meta = json.loads(_path.read_text())
        _takes = zip(_meta["input_locations"], _meta["input_signature"], strict=True)
        print(_path.stem, "takes", [s for place, s in _takes if place["type_"]["name"] == "INPUT_ARG"])
        print(_path.stem, "gives", _meta["result_signature"])
