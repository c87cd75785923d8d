"""Import StableHLO: a module as text or bytecode becomes a function of arrays."""

import dataclasses
import hashlib
import io
from typing import Any

import jax
from jax.export import Exported
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo

from .. import dtypes
from ..atomic import uncollected
from ..compat.names import jax as private
from ..runtime import platform
from .module_constants import DTYPES, settle
from .module_functions import check, name_main
from .stablehlo_versions import culprit as culprit_of
from .stablehlo_versions import version_of
from .standalone_loader import exported as exported_artifact


def portable(module: str | bytes) -> bytes:
    """Return a module as a portable artifact, whatever form it came in.

    Raises `ValueError` for what is none, with the operation that StableHLO does not hold and its line.
    """
    if isinstance(module, bytes):
        try:
            stablehlo.deserialize_portable_artifact_str(module)
            return module
        except ValueError:
            pass  # bytecode without a version, as a compiler writes it
    with private.module_context():
        try:
            parsed = ir.Module.parse(module)
        except ir.MLIRError as error:
            raise ValueError(f"this is no module of StableHLO: {error}") from error
        _drop_trivial_shardings(parsed)
        name_main(parsed)
        check(parsed)
        settle(parsed)
        file = io.BytesIO()
        parsed.operation.write_bytecode(file)
    version = stablehlo.get_current_version()
    try:
        return private.portable_artifact(file.getvalue(), version)
    except ValueError as error:
        raise ValueError(f"StableHLO {version} cannot hold {culprit_of(str(error))}") from error


def _drop_trivial_shardings(module: Any) -> None:
    """Remove shardings over a mesh of one device: a portable artifact cannot contain them."""
    meshes = [op for op in module.body.operations if op.operation.name == "sdy.mesh"]
    if not meshes or any("axes = []" not in str(op) and "mesh<[]>" not in str(op) for op in meshes):
        return
    for mesh in meshes:
        mesh.operation.erase()
    for op in module.body.operations:
        for name in ("arg_attrs", "res_attrs"):
            if name in op.attributes:
                described: Any = map(ir.DictAttr, ir.ArrayAttr(op.attributes[name]))
                kept = [
                    ir.DictAttr.get({each.name: each.attr for each in one if not each.name.startswith("sdy.")})
                    for one in described
                ]
                op.attributes[name] = ir.ArrayAttr.get(kept)


def without_shardings(artifact: bytes) -> bytes:
    """Return a portable artifact without what JAX says of how calls of libraries may be divided: StableHLO knows no
    such.
    """
    if b"sdy" not in artifact:
        return artifact
    with private.module_context() as context:
        module = stablehlo.deserialize_portable_artifact(context, artifact)
        private.walk(module, _drop_sharding_rule)
        text = str(module.operation.get_asm(enable_debug_info=True))
    return bytes(stablehlo.serialize_portable_artifact_str(text, version_of(artifact)))


def _drop_sharding_rule(op: ir.Operation) -> ir.WalkResult:
    if "sdy.sharding_rule" in op.attributes:
        del op.attributes["sdy.sharding_rule"]
    return ir.WalkResult.ADVANCE


def text_of(module: bytes, with_lines: bool) -> str:
    """Return the text of a portable artifact, with or without the lines it comes from."""
    with private.module_context():
        parsed = ir.Module.parse(stablehlo.deserialize_portable_artifact_str(module))
        return str(parsed.operation.get_asm(enable_debug_info=with_lines))


@uncollected
def exported(module: str | bytes) -> Exported:
    """Return a module as what `jax.export` calls, with the function `main` of static shapes."""
    artifact = portable(module)
    with private.module_context():
        parsed = ir.Module.parse(stablehlo.deserialize_portable_artifact_str(artifact))
        check(parsed)
        named = {ir.StringAttr(op.attributes["sym_name"]).value: op for op in parsed.body.operations}
        kind = ir.FunctionType(ir.TypeAttr(named["main"].attributes["function_type"]).value)
        inputs, outputs = [_described(each) for each in kind.inputs], [_described(each) for each in kind.results]
    found = exported_artifact(artifact, inputs, outputs, [platform.export_platform()])
    return dataclasses.replace(found, fun_name=f"stablehlo_{hashlib.sha256(artifact).hexdigest()[:16]}")


def _described(kind: Any) -> jax.ShapeDtypeStruct:
    if not str(kind).startswith("tensor<"):
        raise ValueError(f"a module that is called takes and returns tensors alone; got {kind}")
    tensor = ir.RankedTensorType(kind)
    shape = tensor.shape
    if any(n < 0 for n in shape):
        raise ValueError(
            f"a module that is called without changes has static shapes; got {kind}. Programs with symbolic dimensions "
            f"are loaded from files of `StableHLOGraphModule.save`."
        )
    name = str(tensor.element_type)
    if name not in DTYPES:
        raise TypeError(f"a tensor of {name} has no dtype in PyTorch; known are {', '.join(DTYPES)}")
    return jax.ShapeDtypeStruct(tuple(shape), dtypes.to_jax(DTYPES[name]))
