"""Scan: trace one body once, run it over slices of tensors, with gradients of everything it uses."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ...compat.names.torch import pytree
from ...compat.names.torch_dynamo import default_partition as default_partition
from . import branches as branches
from .closure_captures import Tracing, with_captured
from .loop_bodies import pure_graph
from .nested_loops import by_itself
from .nested_loops import is_traced as is_traced
from .scan_function import ScanLoop
from .scan_gradients import Roles
from .storage_aliasing import Group, Span, like, on_one_memory, put
from .while_loops import check_carried, on_device


@dataclass(frozen=True)
class Nested:
    """A nested structure, and the positions of tensors in it."""

    tree: pytree.TreeSpec
    static: tuple[object, ...]
    places: tuple[int, ...]

    @classmethod
    def of(cls, value: object) -> "Nested":
        """Return the structure of `value`."""
        leaves, tree = pytree.tree_flatten(value)
        places = tuple(place for place, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor))
        return cls(tree, tuple(None if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves), places)

    def fill(self, tensors: Sequence[torch.Tensor]) -> Any:
        """Return the structure with these tensors."""
        leaves = list(self.static)
        for place, tensor in zip(self.places, tensors, strict=True):
            leaves[place] = tensor
        return pytree.tree_unflatten(leaves, self.tree)


def tensors_in(value: object) -> list[torch.Tensor]:
    """Return the tensors of a structure, in order."""
    return [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)]


@dataclass
class Recipe:
    """A traced scan: how its tensors are arranged, and what runs it."""

    function: Callable[..., Any]
    init: Nested
    xs: Nested
    ys: Nested
    captured: list[torch.Tensor]  # those first that are others after the body wrote to them or to their memory
    written: int
    roles: Roles
    groups: tuple[Group, ...]  # arguments that share memory
    memories: frozenset[int]  # captured memory, if the body writes to any of it
    shared: Sequence[Any] = ()  # the captured memory that its arguments showed
    graph: Any = None  # the body as a graph, where it computes gradients itself, which no loop traces
    loop: ScanLoop | None = None

    def body(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Run one round as a pure function: carried values, slices and constants to carried values and outputs."""
        if self.graph is not None:
            return tuple(self.graph(*tensors))
        roles, carried = self.roles, len(self.init.places)
        own = [tensor.clone() for tensor in tensors[: roles.carried + roles.slices]]
        captured = on_one_memory(own[carried : roles.carried], self.groups)
        captured += tensors[roles.carried + roles.slices :]
        run = with_captured(self.function, self.captured, captured)
        carry, ys = run(self.init.fill(own[:carried]), self.xs.fill(own[roles.carried :]))
        results = (*tensors_in(carry), *captured[: self.written], *tensors_in(ys))
        return tuple(result.clone() for result in results)


def trace(function: Callable[..., object], init: object, xs: object) -> Recipe:
    """Run the body once on tensors without memory, and record its captures. Raise the errors of the body."""
    nested_init, nested_xs = Nested.of(init), Nested.of(xs)
    carried, sliced = tensors_in(init), tensors_in(xs)
    seen: list[set[Span]] = []  # for each carried value, the memory that it may copy
    while True:
        stage = Tracing()
        carry = [stage.describe(each) for each in carried]
        given = [stage.describe(each) for each in carry]
        slices = [stage.describe_slice(each) for each in sliced]
        seen = seen or [{stage.memory_of(each)} for each in carried]
        for fake, memories in zip(given, seen, strict=True):
            stage.give(fake, tuple(memories))
        for fake, each in zip(slices, sliced, strict=True):
            stage.give(fake, [stage.memory_of(each)], is_sliced=True)
        result = stage.run(function, nested_init.fill(given), nested_xs.fill(slices))
        if not isinstance(result, tuple) or len(result) != 2:
            raise ValueError(
                f"the body of scan must return (carry, y); it returned a {type(result).__name__}: {result!r}"
            )
        check_carried("scan", pytree.tree_leaves(nested_init.fill(carry)), nested_init.tree, result[0])
        stage.check_arguments()
        after = stage.memories_of(tensors_in(result[0]))
        if all(memories.issuperset(more) for memories, more in zip(seen, after, strict=True)):
            break
        # In the next round an argument is what the body closes over: once more, with that in mind.
        seen = [memories.union(more) for memories, more in zip(seen, after, strict=True)]
    recipe = _recipe(function, stage, nested_init, nested_xs, Nested.of(result[1]))
    recipe.shared = _shared(recipe, init, xs)
    return recipe


def refuse_writes(recipe: Recipe) -> None:
    """Raise `RuntimeError` if the body writes to a tensor from outside."""
    if recipe.written:
        changed = ", ".join(map(like, recipe.captured[: recipe.written]))
        raise RuntimeError(
            f"scan(): its body writes to {changed}, which it closes over; a scan changes nothing outside. Carry the "
            "tensor: return its new value as a part of the carry"
        )


def _recipe(function: Callable[..., object], stage: Tracing, init: Nested, xs: Nested, ys: Nested) -> Recipe:
    """Return what tracing the body showed about a scan."""
    captured, places = stage.captured, stage.written
    others = set(range(len(captured))).difference(places)
    ordered = [captured[place] for place in (*places, *sorted(others))]
    for each in ordered[: len(places)]:
        if each.requires_grad:
            raise RuntimeError(
                "the body of scan writes to a tensor it closes over that requires grad, or to memory that such a "
                "tensor shows; carry it instead"
            )
    roles = Roles(len(init.places) + len(places), len(xs.places), len(ordered) - len(places))
    return Recipe(function, init, xs, ys, ordered, len(places), roles, stage.groups(places), stage.memories())


def _shared(recipe: Recipe, init: object, xs: object) -> list[Span | None]:
    """Return the captured memory that each of the arguments shows, if the body writes to captured memory."""
    if not recipe.memories:
        return []
    with by_itself():
        spans = [Span.of(each) for each in (*tensors_in(init), *tensors_in(xs))]
    return [span if span.storage in recipe.memories else None for span in spans]


def trace_by_itself(recipe: Recipe, init: object, xs: object) -> None:
    """Turn the body of a scan into a graph before the scan is traced, so that it may compute gradients."""
    written, read = recipe.captured[: recipe.written], recipe.captured[recipe.written :]
    tensors = [*tensors_in(init), *written, *(each[0] for each in tensors_in(xs)), *read]
    recipe.graph = pure_graph(recipe.body, [each.detach() for each in tensors])


def run(recipe: Recipe, init: object, xs: object, partition: Callable[..., object]) -> tuple[Any, Any]:
    """Return the last carry and the stacked outputs."""
    if not is_traced() and _shared(recipe, init, xs) != recipe.shared:
        # The body may see what it writes to as another argument than before.
        again = trace(recipe.function, init, xs)
        if recipe.graph is not None:
            trace_by_itself(again, init, xs)
        recipe = again
    written = recipe.captured[: recipe.written]
    tensors = [*tensors_in(init), *written, *tensors_in(xs), *recipe.captured[recipe.written :]]
    if recipe.loop is None:
        recipe.loop = ScanLoop(recipe.body, recipe.roles)
    results = recipe.loop.run([on_device(each) for each in tensors], partition)
    carried = len(recipe.init.places)
    for tensor, value in zip(written, results[carried : recipe.roles.carried], strict=True):
        with torch.no_grad():
            put(tensor, value)
    return recipe.init.fill(results[:carried]), recipe.ys.fill(results[recipe.roles.carried :])
