"""Run equal consecutive modules as one scan: what must be equal, and what each layer has of its own."""

import reprlib
import weakref
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any

import torch
from torch import nn
from torch.func import functional_call
from torch.nn.utils.parametrize import type_before_parametrizations

from ...caching.bounded import put_last
from ...compat.names import torch as private
from ...compat.names.torch import pytree
from ..dynamo.host_device_split import text_of
from .closure_captures import Tracing
from .loop_bodies import pure_graph
from .nested_loops import is_traced
from .scan_loop import Recipe, run, tensors_in, trace
from .storage_aliasing import Span, like

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")

_PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device)
# Attributes that every module has are compared separately.
_OF_EVERY_MODULE = frozenset(vars(nn.Module()))

_MOST = 256  # of a layer
known_layers: "weakref.WeakKeyDictionary[nn.Module, dict[Hashable, tuple[Recipe, list[str]]]]" = (
    weakref.WeakKeyDictionary()
)


@private.ends_graphs(
    "scan_layers traces its layers itself, between two graphs. Leave fullgraph=True out, or make the step one program "
    "by torch_xla.compile(step, full_graph=True)"
)
def scan_layers(layers: Iterable[nn.Module], value: object, partition: Callable[..., object], is_pure: bool) -> object:
    """Pass `value` through `layers` by a scan. Raise `ValueError` if the layers are not equal."""
    layers = list(layers)
    if not layers:
        return value
    own = [dict(_own(layer, layers)) for layer in layers]
    tensors = tensors_in((value, own[0]))
    key = (len(layers), partition, torch.is_grad_enabled(), *(_kind(each) for each in tensors), *modes_of(layers[0]))
    known = known_layers.setdefault(layers[0], {}) if is_pure and not is_traced() else {}
    if key not in known:
        require_equal(layers, value)
    stacked = {name: torch.stack([each[name] for each in own]) for name in own[0]}
    numbers = torch.arange(len(layers), device="xla")  # layers without tensors are counted too
    found = known.get(key)
    if found is None:
        names = _written(layers[0], own[0], value)
        found = put_last(known, key, (trace(_body(layers[0], names), value, (stacked, numbers)), names), _MOST)
    recipe, written = found
    if written or recipe.written:
        _refuse_shared(own, written, recipe, value)
    result, buffers = run(recipe, value, (stacked, numbers), partition)
    with torch.no_grad():
        for name, new in zip(written, buffers, strict=True):
            for number, each in enumerate(own):
                each[name].copy_(new[number])
    return result


def _body(layer: nn.Module, written: Sequence[str]) -> Callable[..., object]:
    found: Any = weakref.ref(layer)  # what is kept of a layer does not keep it

    def body(value: object, slices: tuple[dict[str, torch.Tensor], torch.Tensor]) -> object:
        own, _ = slices
        result = functional_call(found(), own, (value,))
        return result, [own[name] for name in written]

    return body


def _own(layer: nn.Module, layers: Sequence[nn.Module]) -> Iterable[tuple[str, torch.Tensor]]:
    """Yield the parameters and buffers of a layer that not all layers share."""
    for name, tensor in (*layer.named_parameters(), *layer.named_buffers()):
        if len(layers) == 1 or not all(_find(other, name) is tensor for other in layers):
            yield name, tensor


def _find(layer: nn.Module, name: str) -> object:
    path, _, last = name.rpartition(".")
    try:
        return getattr(layer.get_submodule(path), last, None)
    except AttributeError:
        return None


def _written(layer: nn.Module, own: dict[str, torch.Tensor], value: object) -> list[str]:
    """Return the buffers of a layer that it writes to."""
    stage = Tracing()
    described = {name: stage.describe(tensor) for name, tensor in own.items()}
    inputs = pytree.tree_map_only(torch.Tensor, stage.describe, value)
    stage.run(lambda: functional_call(layer, described, (inputs,)))
    return [name for name, tensor in described.items() if stage.is_written(tensor)]


def _refuse_shared(
    own: Sequence[dict[str, torch.Tensor]], written: Sequence[str], recipe: Recipe, value: object
) -> None:
    """Raise if another tensor shares memory that a layer writes to: each layer gets its own copies."""
    places = [
        (f"{name} of layer {number}", each, name in written)
        for number, one in enumerate(own)
        for name, each in one.items()
    ]
    places += [("the input", each, False) for each in tensors_in(value)]
    shared = [("what all layers share", each, place < recipe.written) for place, each in enumerate(recipe.captured)]
    by_storage: dict[int, list[tuple[str, torch.Tensor]]] = defaultdict(list)
    for where, tensor, _ in (*places, *shared):
        by_storage[private.address_of(tensor.untyped_storage())].append((where, tensor))
    for where, tensor, is_written in (*places, *shared):
        for other, seen in by_storage[private.address_of(tensor.untyped_storage())] if is_written else ():
            if other != where and Span.of(tensor).overlaps(Span.of(seen)):
                raise RuntimeError(
                    f"scan_layers() gives each layer copies of its tensors; {where}, {like(tensor)}, is written to and "
                    f"shares memory with {other}, {like(seen)}, which would not see that. Give each memory of its "
                    f"own, by `.clone()`, or call the layers one after the other"
                )


def _kind(tensor: torch.Tensor) -> tuple[object, ...]:
    return tensor.shape, tensor.dtype, tensor.device, tensor.requires_grad


def modes_of(layer: nn.Module) -> tuple[object, ...]:
    """Return everything but its arguments that decides what a module computes."""
    return tuple(each.training for each in layer.modules()), *private.dtypes_by_default()


def require_equal(layers: Sequence[nn.Module], value: object) -> None:
    """Raise `ValueError` with the first layer that differs from the first one, and the difference."""
    doubtful = {}
    first = dict(layers[0].named_modules())
    for number, layer in enumerate(layers[1:], 1):
        modules = dict(layer.named_modules())
        if list(first) != list(modules):
            odd = sorted(set(first) ^ set(modules)) or ["their order"]
            raise _differs(
                number, "its modules", f"{odd[0]!r} is in one of them alone" if set(first) ^ set(modules) else odd[0]
            )
        for name in first:
            _compare(number, name, first[name], modules[name])
            attribute = _odd_attribute(first[name], modules[name])
            if attribute is not None:
                doubtful[number] = name, attribute
    if doubtful:
        # Layers are compared by what they compute, not by attributes such as their own number.
        expected = _text(layers[0], value)
        for number, (name, attribute) in doubtful.items():
            old, new = (vars(each.get_submodule(name)).get(attribute) for each in (layers[0], layers[number]))
            # Of two tensors with gradients one alone would get both.
            if _has_gradient(old) or _has_gradient(new) or _text(layers[number], value) != expected:
                what = f"{_shown(new)}, where layer 0 has {_shown(old)}"
                raise _differs(number, _path(name, attribute), what)


def _compare(number: int, name: str, old: nn.Module, new: nn.Module) -> None:
    # PyTorch makes a class for each parametrized module; its submodules show what it computes.
    if type_before_parametrizations(old) is not type_before_parametrizations(new):
        raise _differs(number, _path(name, ""), f"a {type(new).__name__}, where layer 0 has a {type(old).__name__}")
    if old.training is not new.training:
        raise _differs(number, _path(name, "training"), f"{new.training}, where layer 0 has {old.training}")
    for hooks in _HOOKS:
        if list(getattr(old, hooks).values()) != list(getattr(new, hooks).values()):
            raise _differs(number, _path(name, hooks), "not those of layer 0; hooks must be the same functions")
    for kind in ("_parameters", "_buffers"):
        ours, theirs = getattr(old, kind), getattr(new, kind)
        for each in {**ours, **theirs}:
            one, other = ours.get(each), theirs.get(each)
            if (one is None) != (other is None):
                raise _differs(number, _path(name, each), "in one of them alone")
            if one is not None and _described(one) != _described(other):
                raise _differs(number, _path(name, each), f"{_described(other)}, where layer 0 has {_described(one)}")


def _odd_attribute(old: nn.Module, new: nn.Module) -> str | None:
    """Return an attribute that may differ, so that the layers must be compared by what they compute."""
    for name in {**vars(old), **vars(new)}:
        if name not in _OF_EVERY_MODULE and not _are_same(vars(old).get(name), vars(new).get(name)):
            return name
    return None


def _are_same(one: Any, other: Any) -> bool:
    if one is other:
        return True
    if type(one) is not type(other):
        return False
    if isinstance(one, (tuple, list)):
        return len(one) == len(other) and all(map(_are_same, one, other))
    if isinstance(one, dict):
        return list(one) == list(other) and all(map(_are_same, one.values(), other.values()))
    return isinstance(one, _PLAIN) and repr(one) == repr(other)


def _text(layer: nn.Module, value: object) -> str:
    own = {**dict(layer.named_parameters()), **dict(layer.named_buffers())}
    leaves, tree = pytree.tree_flatten((own, value))
    places = [place for place, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]

    def of_tensors(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        filled = list(leaves)
        for place, tensor in zip(places, tensors, strict=True):
            filled[place] = tensor.clone()
        named, inputs = pytree.tree_unflatten(filled, tree)
        return tuple(each.clone() for each in tensors_in(functional_call(layer, named, (inputs,))))

    return text_of(pure_graph(of_tensors, [leaves[place] for place in places]))


def _path(name: str, attribute: str) -> str:
    return ".".join(part for part in (name, attribute) if part) or "the layer itself"


def _has_gradient(value: object) -> bool:
    return isinstance(value, torch.Tensor) and value.requires_grad


def _shown(value: object) -> str:
    return f"a tensor of its own, {_described(value)}" if isinstance(value, torch.Tensor) else reprlib.repr(value)


def _described(tensor: Any) -> str:
    dtype = str(tensor.dtype).removeprefix("torch.")
    grad = "" if tensor.requires_grad else ", no gradient"
    return f"{dtype}[{', '.join(map(str, tensor.shape))}] on {tensor.device.type}{grad}"


def _differs(number: int, where: str, what: str) -> ValueError:
    return ValueError(f"scan_layers() needs equal layers; layer {number} differs from layer 0 in {where}: {what}")
