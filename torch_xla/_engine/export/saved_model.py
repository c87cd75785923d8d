"""An exported model on disk: its functions as StableHLO, their signatures, and its weights."""

import dataclasses
import enum
import json
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jax.export import Exported

from ..compat.names.torch import pytree
from .stablehlo_modules import exported as exported_module
from .stablehlo_modules import text_of
from .stablehlo_versions import rewritten as rewritten_version
from .standalone_loader import function_of
from .standalone_loader import read as read_archive


class VariableType(enum.Enum):
    """Where an argument of a StableHLO function comes from."""

    INPUT_ARG = "input_arg"
    PARAMETER = "parameter"
    CONSTANT = "constant"


@dataclass
class VariableSignature:
    """An argument or result: its sizes (-1: dynamic), PyTorch's dtype by name, its dynamic dimensions, and its sizes as
    JAX writes symbolic ones."""

    shape: list[int]
    dtype: str
    dynamic_dims: list[int] = field(default_factory=list)
    symbolic: str = ""


@dataclass
class InputLocation:
    """Where one argument comes from: the caller (`position`), the weights (`name`) or the constants (`position`)."""

    type_: VariableType
    position: int = -1
    name: str = ""

    @classmethod
    def parameter(cls, name: str) -> "InputLocation":
        """Return the parameter or buffer `name`."""
        return cls(VariableType.PARAMETER, name=name)

    @classmethod
    def input_arg(cls, position: int) -> "InputLocation":
        """Return the leaf number `position` of the caller's arguments."""
        return cls(VariableType.INPUT_ARG, position=position)

    @classmethod
    def constant(cls, position: int) -> "InputLocation":
        """Return the constant number `position` of the bundle."""
        return cls(VariableType.CONSTANT, position=position)


@dataclass
class StableHLOFunctionMeta:
    """The signature of a function.

    Its first results are the new values of `written_buffers`, the others those of `output_signature`;
    `result_signature` describes both. `constraints` bound the symbols of dynamic dimensions.
    """

    name: str
    stablehlo_version: str
    input_signature: list[VariableSignature]
    output_signature: list[VariableSignature]
    input_locations: list[InputLocation]
    unused_inputs: list[tuple[InputLocation, VariableSignature]]
    input_pytree_spec: str | None = None
    output_pytree_spec: str | None = None
    written_buffers: list[str] = field(default_factory=list)
    constant_outputs: dict[str, Any] = field(default_factory=dict)  # by leaf of the result: what is no tensor
    result_signature: list[VariableSignature] = field(default_factory=list)
    constraints: list[str] = field(default_factory=list)
    platforms: list[str] = field(default_factory=list)
    calling_convention_version: int | None = None


@dataclass
class StableHLOFunc:
    """One function: what it takes, its portable artifact, its text, and what `jax.export` calls."""

    meta: StableHLOFunctionMeta
    bytecode: bytes
    text: str | None
    exported: Exported | None = None


@dataclass
class StableHLOModelBundle:
    """Functions with the arrays that they take after the caller's arguments."""

    state_dict: dict[str, Any]
    additional_constants: list[Any]
    stablehlo_funcs: list[StableHLOFunc]


_TYPES = {each.__name__: each for each in (VariableSignature, InputLocation, StableHLOFunctionMeta)}


class StableHLOJSONSerializer(json.JSONEncoder):
    """Writes the descriptions above as JSON."""

    def default(self, o: object) -> object:
        """Return a description as an object that says which one it is."""
        if is_dataclass(o):
            return {"_type": type(o).__name__, **{each.name: getattr(o, each.name) for each in fields(o)}}
        if isinstance(o, VariableType):
            return {"_type": "VariableType", "name": o.name}
        return super().default(o)


def stablehlo_obj_hook(dct: dict[str, Any]) -> object:
    """Decode objects of `StableHLOJSONSerializer`, in `json.loads(text, object_hook=stablehlo_obj_hook)`."""
    kind = dct.pop("_type", None)
    if kind == "VariableType":
        return VariableType[dct["name"]]
    return _TYPES[kind](**dct) if kind in _TYPES else dct


def in_version(bundle: StableHLOModelBundle, version: str | None) -> StableHLOModelBundle:
    """Return the bundle with its functions written in a version of StableHLO; without one, as it is."""
    if version is None:
        return bundle
    functions = []
    for each in bundle.stablehlo_funcs:
        meta = dataclasses.replace(each.meta, stablehlo_version=version)
        functions.append(dataclasses.replace(each, meta=meta, bytecode=rewritten_version(each.bytecode, version)))
    return dataclasses.replace(bundle, stablehlo_funcs=functions)


def save(bundle: StableHLOModelBundle, directory: str | os.PathLike[str], with_weights: bool, with_text: bool) -> None:
    """Write functions and arrays below `directory`, and create it if needed."""
    root = Path(directory)
    for name in ("functions", "constants", "data"):
        (root / name).mkdir(parents=True, exist_ok=True)
    shutil.copyfile(Path(__file__).with_name("standalone_loader.py"), root / "load.py")
    for function in bundle.stablehlo_funcs:
        stem = str(root / "functions" / function.meta.name)  # which may have a dot in it
        Path(f"{stem}.meta").write_text(json.dumps(function.meta, cls=StableHLOJSONSerializer, indent=1))
        Path(f"{stem}.bytecode").write_bytes(function.bytecode)
        if with_text and function.text is not None:
            Path(f"{stem}.mlir").write_text(function.text)
    for number, constant in enumerate(bundle.additional_constants):
        _save_array(root / "constants" / f"{number}.npy", constant)
    if with_weights:
        for name, weight in bundle.state_dict.items():
            _save_array(root / "data" / f"{name}.npy", weight)


def _save_array(path: Path, array: object) -> None:
    """Write an array; of a dtype that is not NumPy's own, its bytes: it could not read the name `<f1` of a float8."""
    plain = np.asarray(array)
    np.save(path, plain if plain.dtype.isbuiltin == 1 else plain.view(f"V{plain.itemsize}"))


def load(directory: str | os.PathLike[str]) -> StableHLOModelBundle:
    """Load a model that `save` wrote. Raises `FileNotFoundError` if there is no function."""
    root = Path(directory)
    functions = [_load_function(path) for path in sorted((root / "functions").glob("*.meta"))]
    if not functions:
        raise FileNotFoundError(f"{root} holds no exported model: there is no {root / 'functions'}/*.meta")
    dtype_of: dict[tuple[object, object], str] = {}
    for function in functions:
        for place, signature in zip(function.meta.input_locations, function.meta.input_signature, strict=True):
            dtype_of[place.type_, place.name or place.position] = signature.dtype
    weights = {}
    for path in sorted((root / "data").glob("*.npy")):
        name = path.name.removesuffix(".npy")
        weights[name] = read_archive(path, dtype_of.get((VariableType.PARAMETER, name), "bfloat16"))
    count = len(list((root / "constants").glob("*.npy")))
    constants = [
        read_archive(root / "constants" / f"{number}.npy", dtype_of.get((VariableType.CONSTANT, number), "bfloat16"))
        for number in range(count)
    ]
    return StableHLOModelBundle(weights, constants, functions)


def _load_function(path: Path) -> StableHLOFunc:
    meta = json.loads(path.read_text(), object_hook=stablehlo_obj_hook)
    bytecode = path.with_suffix(".bytecode").read_bytes()
    text = path.with_suffix(".mlir")
    plain = json.loads(path.read_text())
    # A file without a list of results was written by PyTorch/XLA itself, and is called unchanged.
    exported = function_of(plain, bytecode) if plain.get("result_signature") else exported_module(bytecode)
    return StableHLOFunc(meta, bytecode, text.read_text() if text.exists() else text_of(bytecode, False), exported)


def arguments_of(meta: StableHLOFunctionMeta, args: Sequence[object], kwargs: dict[str, Any]) -> list[object]:
    """Return the leaves of a call's arguments, in the structure with which the model was exported."""
    if meta.input_pytree_spec is None:
        return list(pytree.tree_leaves((tuple(args), kwargs)))
    wanted = pytree.treespec_loads(meta.input_pytree_spec)
    leaves, came = pytree.tree_flatten((tuple(args), kwargs))
    if came != wanted:
        raise ValueError(f"{meta.name}() was exported for arguments of the structure\n  {wanted}\nand got\n  {came}")
    return list(leaves)
