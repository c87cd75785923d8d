"""A `torch.nn.Module` as a pure function of its parameters, for JAX."""

import inspect
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from torch import Tensor, nn
from torch.fx import Node

from .. import dtypes
from ..atomic import uncollected
from ..compat.names.torch import pytree
from ..ir.call_plan import kinds_of
from . import jax_arrays
from .torch_functions import JaxFunction, MissingKey, TensorKind, narrow

_RESERVED = ("buffers", "rng")


class _Array:
    def __repr__(self) -> str:
        return "an array"


_ARRAY = _Array()


class ModuleFunction:
    """The function that `as_jax` returns: `function(parameters, *args, **kwargs)` computes the module."""

    def __init__(self, module: nn.Module, by_torch: bool) -> None:
        self._module, self._by_torch = module, by_torch
        self._training = {name: each.training for name, each in module.named_modules()}
        # All names of a tensor that the module has under several: the first stands for it.
        named = list(module.named_parameters(remove_duplicate=False)) + list(
            module.named_buffers(remove_duplicate=False)
        )
        first: dict[int, str] = {}
        self._first = {name: first.setdefault(id(tensor), name) for name, tensor in named}
        own = {name: tensor for name, tensor in named if self._first[name] == name}
        self._wanted = {name: _kind_of(name, tensor) for name, tensor in own.items()}
        trained = [name for name, tensor in own.items() if tensor.requires_grad]
        buffers = {name for name, _ in module.named_buffers()}
        self._written = [name for name in own if name in buffers and name not in trained]
        arrays = {name: _array(tensor) for name, tensor in own.items()}
        self.parameters = {name: arrays[name] for name in trained}
        self.buffers = {name: array for name, array in arrays.items() if name not in self.parameters}
        self._called: dict[Hashable, _Call] = {}

    def __repr__(self) -> str:
        kind, mode = type(self._module).__name__, "training" if self._training[""] else "evaluation"
        return f"<{kind} as a JAX function, in {mode}: {len(self.parameters)} parameters, {len(self.buffers)} buffers>"

    def __call__(
        self,
        parameters: Mapping[str, object],
        /,
        *args: object,
        buffers: Mapping[str, object] | None = None,
        rng: object = None,
        **kwargs: object,
    ) -> Any:
        """Return what the module returns; with `buffers`, a pair of that and the buffers after the call."""
        given = self.buffers if buffers is None else buffers
        state = {**self._checked("parameters", parameters, self.parameters)}
        state |= self._checked("buffers", given, self.buffers)
        leaves, tree = jax.tree.flatten((args, kwargs))
        leaves = [_as_array(leaf) if isinstance(leaf, np.ndarray | np.generic) else leaf for leaf in leaves]
        for leaf in leaves:
            if isinstance(leaf, Tensor):
                raise TypeError(
                    f"{self._name} is a JAX function and takes arrays; got a tensor on {leaf.device}. "
                    f"torch_xla.interop.to_jax(tensor) gives the array of one on xla, "
                    f"jax.numpy.asarray(tensor.numpy()) of one on the CPU."
                )
        operands = [*state.values(), *(leaf for leaf in leaves if isinstance(leaf, jax.Array))]
        call = self._call_for(state, leaves, tree)
        try:
            results = call.function(operands, rng)
        except MissingKey as error:
            raise TypeError(
                f"{self._name} draws random numbers ({error}): pass rng=jax.random.key(...), a new one for each step, "
                f"or convert the module in evaluation mode, as_jax(module.eval())."
            ) from None
        written = dict(zip(self._written, results[len(results) - len(self._written) :], strict=True))
        written = {name: written[name] for name in call.written}
        if buffers is None and written:
            raise ValueError(
                f"{self._name} changes its buffers ({_some(written)}), and a pure function returns what it changes. "
                f"Write `output, buffers = function(parameters, ..., buffers=buffers)`, with function.buffers to begin "
                f"with, or convert the module in evaluation mode, as_jax(module.eval())."
            )
        output = call.output(results)
        if buffers is None:
            return output
        return output, {name: written.get(name, array) for name, array in given.items()}

    @property
    def _name(self) -> str:
        return f"as_jax({type(self._module).__name__})"

    def _checked(self, what: str, given: object, wanted: Mapping[str, object]) -> dict[str, Any]:
        if not isinstance(given, Mapping):
            raise TypeError(f"{self._name} takes {what} as a dict of arrays by name; got a {type(given).__name__}")
        missing, unknown = wanted.keys() - given.keys(), given.keys() - wanted.keys()
        if missing or unknown:
            wrong = f"{_some(sorted(missing))} missing" if missing else f"{_some(sorted(unknown))} unknown"
            raise ValueError(f"{self._name} takes the {what} that as_jax returned, by name; {wrong}")
        for name in wanted:
            size = tuple(np.shape(given[name]))
            if size != self._wanted[name].size:
                raise ValueError(
                    f"{self._name}: {name} has the size {list(self._wanted[name].size)}; got an array of "
                    f"{list(size)}. For a batch of {what} use jax.vmap."
                )
        return {name: _as_array(given[name]) for name in wanted}

    def _call_for(self, state: Mapping[str, object], leaves: Sequence[object], tree: object) -> "_Call":
        static = tuple(_ARRAY if isinstance(leaf, jax.Array) else leaf for leaf in leaves)
        kinds = [self._kind_in_torch(self._wanted[name].dtype, array) for name, array in state.items()]
        kinds += [self._kind_in_torch(None, leaf) for leaf in leaves if isinstance(leaf, jax.Array)]
        key = (tuple(kinds), static, kinds_of(static), tree, bool(jax.config.values["jax_enable_x64"]))
        try:
            found = self._called.get(key)
        except TypeError as error:
            raise TypeError(f"{self._name} takes arrays and hashable values: {error}") from error
        if found is None:
            found = self._called[key] = _Call(self, list(state), kinds, static, tree)
        return found

    def _kind_in_torch(self, own: torch.dtype | None, array: Any) -> TensorKind:
        """Return the kind of tensor that PyTorch sees for `array`. Without 64 bits, JAX's integers are int64 there."""
        dtype = dtypes.to_torch(array.dtype)
        if own is not None and narrow(own) is dtype:
            dtype = own
        elif own is None and dtype is torch.int32 and narrow(torch.int64) is torch.int32:
            dtype = torch.int64
        return TensorKind(tuple(array.shape), dtype)

    def run(
        self, names: Sequence[str], tensors: Sequence[Tensor], args: Any, kwargs: Any
    ) -> tuple[object, list[Tensor]]:
        """Call the module with these tensors instead of its own; return its output, and its buffers afterwards."""
        state = dict(zip(names, tensors, strict=True))
        state.update({name: state[name].clone() for name in self._written})
        whole = {name: state[first] for name, first in self._first.items()}
        with self._in_its_mode(), torch.device("xla"):
            output = torch.func.functional_call(self._module, whole, args, kwargs, tie_weights=False)
        return output, [whole[name].clone() for name in self._written]

    @contextmanager
    def _in_its_mode(self) -> Iterator[None]:
        modes = [(each, each.training, self._training.get(name)) for name, each in self._module.named_modules()]
        try:
            for each, now, then in modes:
                each.training = now if then is None else then
            yield
        finally:
            for each, now, _ in modes:
                each.training = now

    def is_written(self, place: int, node: Node) -> bool:
        """Return whether a result is not the buffer number `place` as it was given."""
        name = self._written[place]
        while isinstance(node, Node) and node.target is torch.ops.aten.clone.default:
            node = node.args[0]  # type: ignore[assignment]
        inputs = [each for each in node.graph.nodes if each.op == "placeholder"]
        return node is not inputs[[*self.parameters, *self.buffers].index(name)]

    @property
    def written_names(self) -> list[str]:
        """The buffers that a call may change."""
        return self._written


class _Call:
    """A module for arguments of one kind."""

    def __init__(
        self,
        owner: ModuleFunction,
        names: Sequence[str],
        kinds: Sequence[TensorKind],
        static: Sequence[object],
        tree: object,
    ) -> None:
        self._static: list[object] = []
        self._spec: pytree.TreeSpec | None = None

        def of_tensors(*tensors: Tensor) -> list[Tensor]:
            rest = iter(tensors[len(names) :])
            # Of its own, so that the module may write to it.
            leaves = [next(rest).clone() if leaf is _ARRAY else leaf for leaf in static]
            args, kwargs = jax.tree.unflatten(tree, leaves)
            output, buffers = owner.run(names, tensors[: len(names)], args, kwargs)
            results, self._spec = pytree.tree_flatten(output)
            self._static = [_ARRAY if isinstance(each, Tensor) else each for each in results]
            return [*(each.clone() for each in results if isinstance(each, Tensor)), *buffers]

        self.function = JaxFunction(of_tensors, kinds, owner._by_torch)
        (results,) = next(node for node in self.function.module.graph.nodes if node.op == "output").args
        of_buffers = list(results)[len(results) - len(owner.written_names) :]
        self.written = [
            name
            for place, (name, node) in enumerate(zip(owner.written_names, of_buffers, strict=True))
            if owner.is_written(place, node)
        ]
        assert self._spec is not None
        _teach_jax(self._spec)

    def output(self, results: Sequence[object]) -> Any:
        """Return the results in the structure that the module returns."""
        rest = iter(results)
        assert self._spec is not None
        return pytree.tree_unflatten([next(rest) if each is _ARRAY else each for each in self._static], self._spec)


def _teach_jax(spec: pytree.TreeSpec) -> None:
    """Register the structures that PyTorch knows and JAX does not, such as the outputs of Transformers' models."""
    if spec.is_leaf():
        return
    for child in spec.children():
        _teach_jax(child)
    # To JAX, an instance of a class that it does not know is a leaf.
    if jax.tree_util.all_leaves([pytree.tree_unflatten([0] * spec.num_leaves, spec)]):
        node = pytree.SUPPORTED_NODES[spec.type]
        jax.tree_util.register_pytree_node(spec.type, _flattened(node.flatten_fn), _unflattened(node.unflatten_fn))


def _flattened(flatten: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def flattened(value: object) -> object:
        children, context = flatten(value)
        return tuple(children), tuple(context) if isinstance(context, list) else context

    return flattened


def _unflattened(unflatten: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    return lambda context, children: unflatten(list(children), list(context) if type(context) is tuple else context)


def as_jax(module: nn.Module, derivatives: str) -> tuple[dict[str, Any], ModuleFunction]:
    """Return the parameters of `module` and the function that takes them."""
    if not isinstance(module, nn.Module):
        raise TypeError(
            f"as_jax() takes a torch.nn.Module; got a {type(module).__name__}. A function can be the forward() of one."
        )
    if derivatives not in ("torch", "jax"):
        raise ValueError(f'as_jax() takes derivatives="torch" or "jax"; got {derivatives!r}')
    taken = set(inspect.signature(module.forward).parameters).intersection(_RESERVED)
    if taken:
        raise ValueError(
            f"as_jax(): the forward() of {type(module).__name__} has an argument {min(taken)!r}, a name that the JAX "
            f"function needs for itself. Wrap the module in one whose argument has another name."
        )
    function = ModuleFunction(module, derivatives == "torch")
    return dict(function.parameters), function


def _kind_of(name: str, tensor: Tensor) -> TensorKind:
    if nn.parameter.is_lazy(tensor):
        raise ValueError(
            f"as_jax(): {name} has no size yet, as its module is lazy; call the module once before you convert it"
        )
    if (tensor.dtype.is_floating_point or tensor.dtype.is_complex) and narrow(tensor.dtype) is not tensor.dtype:
        raise ValueError(
            f"as_jax(): {name} is {str(tensor.dtype).removeprefix('torch.')}, which JAX holds only with "
            f'jax.config.update("jax_enable_x64", True). Set that first, or convert the module, as with module.float().'
        )
    return TensorKind(tuple(tensor.shape), tensor.dtype)


@uncollected
def _as_array(given: object) -> jax.Array:
    return jnp.asarray(given)


@uncollected
def _array(tensor: Tensor) -> jax.Array | jax.ShapeDtypeStruct:
    dtype = dtypes.to_jax(narrow(tensor.dtype))
    if tensor.device.type == "meta":
        return jax.ShapeDtypeStruct(tuple(tensor.shape), dtype)
    if tensor.device.type == "xla":
        return jnp.asarray(jax_arrays.to_jax(tensor), dtype)
    return jnp.array(dtypes.to_numpy(tensor.detach().cpu()), dtype)


def _some(names: Any) -> str:
    listed = list(names)
    return ", ".join(listed[:3]) + (f" and {len(listed) - 3} more" if len(listed) > 3 else "")
