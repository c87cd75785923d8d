"""Constants of modules that come in, as StableHLO holds them: torch-mlir writes weights beside the module, and others
as `arith.constant`."""

import re
from typing import Any

import numpy as np
import torch
from jax.extend.mlir import ir

from .. import dtypes
from ..compat.names import jax as private

# MLIR's names of PyTorch's dtypes.
DTYPES = {
    "i1": torch.bool, "i8": torch.int8, "i16": torch.int16, "i32": torch.int32, "i64": torch.int64,
    "ui8": torch.uint8, "ui16": torch.uint16, "ui32": torch.uint32, "ui64": torch.uint64,
    "f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32, "f64": torch.float64,
    "complex<f32>": torch.complex64, "complex<f64>": torch.complex128,
    "f8E4M3FN": torch.float8_e4m3fn, "f8E5M2": torch.float8_e5m2, "f8E4M3FNUZ": torch.float8_e4m3fnuz,
    "f8E5M2FNUZ": torch.float8_e5m2fnuz, "f8E8M0FNU": torch.float8_e8m0fnu,
}  # fmt: skip

_DIALECTS = ("builtin", "chlo", "func", "sdy", "stablehlo", "vhlo")


def settle(module: Any) -> None:
    """Turn every constant of a parsed module into one of StableHLO that contains its numbers.

    Raises `ValueError` with the operation and its line for operations of other dialects, and for weights without data.
    """
    found: list[Any] = []

    def note(op: ir.Operation) -> ir.WalkResult:
        if op.name in ("arith.constant", "stablehlo.constant"):
            found.append(op)
        return ir.WalkResult.ADVANCE

    private.walk(module, note)
    weights = _weights(module, found)
    for op in found:
        value = _value(op)
        name = _resource(value)
        if name is not None:
            op.attributes["value"] = value = _dense(op, name, weights.get(name))
        if op.name == "arith.constant":
            _as_stablehlo(op)
    strangers: list[str] = []

    def look(op: ir.Operation) -> ir.WalkResult:
        if op.name.partition(".")[0] not in _DIALECTS:
            strangers.append(f"{op.name!r}{line_of(op)}")
        return ir.WalkResult.ADVANCE

    private.walk(module, look)
    if strangers:
        raise ValueError(
            f"a module of StableHLO holds no {strangers[0]}. Have the compiler that wrote it lower everything to "
            "StableHLO, with static shapes"
        )


def line_of(op: Any) -> str:
    """Return the location of an operation, such as " (line 3)", or an empty text if it is unknown."""
    found = re.search(r'"-":(\d+):\d+', str(op.location))
    return f" (line {found[1]})" if found else f" ({op.location})" if "unknown" not in str(op.location) else ""


def _value(op: Any) -> Any:
    """Return the numbers of a constant; `None` for complex ones, which MLIR's Python cannot show."""
    try:
        return op.attributes["value"]
    except TypeError:
        return None


def _resource(value: Any) -> str | None:
    """Return the name of the weight that a value refers to, or `None`."""
    if value is None or not str(value.type).startswith("tensor") or isinstance(value, ir.DenseElementsAttr):
        return None
    found = re.match(r'dense_resource<(?:"((?:[^"\\]|\\.)*)"|([^>]*))>', str(value))
    return None if found is None else found[1] if found[1] is not None else found[2]


def _weights(module: Any, constants: list[Any]) -> dict[str, bytes]:
    """Return the weights in the text after a module: for each name its bytes, without the number of their alignment."""
    if not any(_resource(_value(op)) is not None for op in constants):
        return {}
    behind = str(module.operation.get_asm()).rpartition("{-#")[2]
    entries = re.findall(r'(?:"((?:[^"\\]|\\.)*)"|([\w.$-]+)): "0x([0-9A-Fa-f]*)"', behind)
    return {quoted or plain: bytes.fromhex(digits[8:]) for quoted, plain, digits in entries}


def _dense(op: Any, name: str, data: bytes | None) -> object:
    kind = ir.RankedTensorType(op.results[0].type)
    element = str(kind.element_type)
    if element not in DTYPES:
        raise ValueError(f"the weight {name!r}{line_of(op)} is of {element}; known are {', '.join(DTYPES)}")
    dtype = np.dtype(dtypes.to_jax(DTYPES[element]))
    expected = int(np.prod(kind.shape)) * dtype.itemsize
    if data is None or len(data) != expected:
        came = "no data" if data is None else f"{len(data)} bytes"
        raise ValueError(
            f"the weight {name!r}{line_of(op)}, {kind}, takes {expected} bytes and has {came} in this module: keep the "
            "`dialect_resources` behind its text, and let the compiler that writes it elide nothing"
        )
    array: Any = np.frombuffer(data, dtype)
    if element == "i1":
        # Releases of MLIR pack truth values differently; without a type they take NumPy's.
        return ir.DenseElementsAttr.get(array)
    return ir.DenseElementsAttr.get(array, type=kind.element_type, shape=list(kind.shape))


def _as_stablehlo(op: Any) -> None:
    """Replace an `arith.constant`; remove unused constants that are not tensors."""
    result = op.results[0]
    if str(result.type).startswith("tensor"):
        # By its text, because MLIR's Python cannot pass complex numbers on.
        text = str(op.operation.get_asm()).partition("arith.constant")[2]
        with op.location:
            constant = ir.Operation.parse(f"stablehlo.constant{text}")
        ir.InsertionPoint(op).insert(constant)
        result.replace_all_uses_with(constant.results[0])
    if not list(result.uses):
        op.erase()
