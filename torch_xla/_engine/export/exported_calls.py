"""Call exported functions with tensors: record each as one operation, compiled with what surrounds it."""

import hashlib
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import jax
import numpy as np
import torch
from jax.export import Exported

from ..compat.names.torch import pytree
from ..interop import jax_arrays, jax_functions
from ..runtime import buffers
from .saved_model import StableHLOFunc, StableHLOModelBundle, VariableType, arguments_of
from .stablehlo_modules import exported as exported_module


def function_of(module: str | bytes) -> Callable[..., tuple[torch.Tensor, ...]]:
    """Return a StableHLO module as a function of tensors, which gives a tuple of tensors on `xla`."""
    return caller(exported_module(module))


def caller(exported: Exported) -> Callable[..., tuple[torch.Tensor, ...]]:
    """Return `exported`, with flat results, as a function of tensors. Tensors on the host are uploaded."""
    digest = hashlib.sha256(exported.mlir_module_serialized).hexdigest()[:24]
    described = exported.in_avals

    def flat(*operands: object) -> tuple[Any, ...]:
        args, kwargs = jax.tree.unflatten(exported.in_tree, operands[: len(described)])
        return tuple(jax.tree.leaves(exported.call(*args, **kwargs)))

    def call(*tensors: object) -> tuple[torch.Tensor, ...]:
        if len(tensors) != len(described):
            raise TypeError(f"the program takes {len(described)} tensors; got {len(tensors)}")
        given = [_on_device(each) for each in tensors]
        for place, (tensor, aval) in enumerate(zip(given, described, strict=True)):
            _check(place, tensor, aval)
        # The operands say on which device the program runs: one without any gets one that it does not take.
        given = given or [torch.zeros((), device="xla")]
        found: tuple[torch.Tensor, ...] = jax_functions.call(flat, given, {}, f"stablehlo_{digest}")
        return found

    return call


def _on_device(tensor: object) -> torch.Tensor:
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"a StableHLO program takes tensors; got a {type(tensor).__name__}")
    return tensor if tensor.device.type == "xla" else tensor.to("xla")


def _check(place: int, tensor: torch.Tensor, aval: Any) -> None:
    sizes = tuple(aval.shape)
    fits = len(sizes) == tensor.dim() and all(
        not isinstance(n, int) or n == m for n, m in zip(sizes, tensor.shape, strict=True)
    )
    wanted = f"{aval.dtype}[{', '.join(map(str, sizes))}]"
    came = f"{str(tensor.dtype).removeprefix('torch.')}[{', '.join(map(str, tensor.shape))}]"
    if not fits or wanted.partition("[")[0] != came.partition("[")[0]:
        raise ValueError(f"argument {place} of the program is {wanted}; got {came}")


class Model:
    """A bundle whose functions can be called. Weights are uploaded at the first call that needs them."""

    def __init__(self, bundle: StableHLOModelBundle) -> None:
        self.bundle = bundle
        self._callers: dict[str, Callable[..., tuple[torch.Tensor, ...]]] = {}
        self._uploaded: dict[Hashable, tuple[object, torch.Tensor]] = {}

    def function(self, name: str | None) -> StableHLOFunc:
        """Return the function `name`, or the only one. Raises `KeyError`."""
        functions = {each.meta.name: each for each in self.bundle.stablehlo_funcs}
        if name is None and len(functions) == 1:
            return next(iter(functions.values()))
        if name not in functions:
            raise KeyError(f"the bundle has no function {name!r}; it has {sorted(functions)}")
        return functions[name]

    def call(self, name: str | None, args: Sequence[object], kwargs: dict[str, Any]) -> Any:
        """Return the result of the function for these arguments, nested as the model returned it."""
        function = self.function(name)
        meta = function.meta
        leaves = arguments_of(meta, args, kwargs)
        call = self._callers.get(meta.name)
        if call is None:
            exported = function.exported or exported_module(function.bytecode)
            call = self._callers[meta.name] = caller(exported)
        results = call(*(self._operand(place, leaves) for place in meta.input_locations))
        for written, result in zip(meta.written_buffers, results, strict=False):
            self._uploaded[written] = self.bundle.state_dict[written], result
        return self._nested(function, results[len(meta.written_buffers) :])

    def _operand(self, place: Any, leaves: Sequence[Any]) -> torch.Tensor:
        if place.type_ is VariableType.INPUT_ARG:
            leaf: torch.Tensor = leaves[place.position]
            return leaf
        if place.type_ is VariableType.CONSTANT:
            return self._upload(place.position, self.bundle.additional_constants[place.position])
        if place.name not in self.bundle.state_dict:
            raise KeyError(
                f"the bundle has no weight {place.name!r}: it was exported or saved without weights. Put them in "
                f"`_bundle.state_dict`, by name."
            )
        return self._upload(place.name, self.bundle.state_dict[place.name])

    def _upload(self, key: object, source: object) -> torch.Tensor:
        known = self._uploaded.get(key)
        if known is None or known[0] is not source:
            with jax.enable_x64(True):
                tensor = jax_arrays.from_jax(buffers.of_array(np.asarray(source)))
            known = self._uploaded[key] = source, tensor
        return known[1]

    def _nested(self, function: StableHLOFunc, results: Sequence[torch.Tensor]) -> object:
        meta = function.meta
        left = iter(results)
        count = len(results) + len(meta.constant_outputs)
        leaves = [
            meta.constant_outputs[str(leaf)] if str(leaf) in meta.constant_outputs else next(left)
            for leaf in range(count)
        ]
        if meta.output_pytree_spec is None:
            return leaves[0] if count == 1 else tuple(leaves)
        return pytree.tree_unflatten(leaves, pytree.treespec_loads(meta.output_pytree_spec))

    def settled(self) -> StableHLOModelBundle:
        """Return the bundle, with what calls wrote to buffers."""
        for name, (source, tensor) in list(self._uploaded.items()):
            if isinstance(name, str) and any(name in each.meta.written_buffers for each in self.bundle.stablehlo_funcs):
                self.bundle.state_dict[name] = fresh = np.asarray(jax_arrays.to_jax(tensor))
                self._uploaded[name] = fresh, tensor
                del source
        return self.bundle
