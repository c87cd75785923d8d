"""Scan as a function with gradients of any order: the gradient of a scan is a scan in the other direction."""

from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from ...compat.names.torch import HigherOrderOperator, pytree, schema_of
from ...compat.names.torch_dynamo import TorchDispatchMode
from ...tensor.device import device_for
from .nested_loops import Whole, is_traced, refuse_transforms
from .scan_gradients import Differentiated, Examples, Roles, draws_of, without_gradients


class ScanLoop:
    """A scan of a body, with gradients where its tensors require them."""

    def __init__(self, body: Callable[..., object], roles: Roles, reverse: bool = False) -> None:
        self._body, self._roles, self._reverse = body, roles, reverse
        self._plain: Whole | None = None
        self._differentiated: dict[Hashable, Differentiated | None] = {}

    def run(self, tensors: Sequence[torch.Tensor], partition: Callable[..., object]) -> Sequence[torch.Tensor]:
        """Return the last carried values and the stacked outputs, for first carried values, slices and constants."""
        refuse_transforms("scan", tensors)
        found = self.differentiated(tensors, partition)
        if found is None:
            return self._plainly(tensors)([each.detach() for each in tensors])
        # Kept for gradients of gradients, so what is written to them later must not matter.
        varying = self._roles.carried + self._roles.slices
        tensors = [*(each.clone() for each in tensors[:varying]), *tensors[varying:]]
        results: Sequence[torch.Tensor] = _Scan.apply(found, *tensors)
        return results

    def differentiated(
        self, tensors: Sequence[torch.Tensor], partition: Callable[..., object]
    ) -> Differentiated | None:
        """Return both directions, with the gradients that such tensors ask for; none where no result has a gradient."""
        needed = tuple(torch.is_grad_enabled() and each.requires_grad for each in tensors)
        if not any(needed):
            return None
        if (needed, partition) not in self._differentiated:
            examples = Examples(self._roles, tensors)
            followed, given = examples.followed(self._body, needed)
            self._differentiated[needed, partition] = (
                Differentiated(self._body, examples, followed, given, partition, self._reverse) if any(given) else None
            )
        return self._differentiated[needed, partition]

    def draws(self, tensors: Sequence[torch.Tensor], partition: Callable[..., object]) -> list[Any]:
        """Return the operators that draw random numbers in a round, for such tensors."""
        found = self.differentiated(tensors, partition)
        if found is not None:
            return found.draws
        body: Any = self._plainly(tensors).module.body
        return draws_of(body)

    def _plainly(self, tensors: Sequence[torch.Tensor]) -> Whole:
        if self._plain is None:
            self._plain = without_gradients(self._body, self._roles, tensors, self._reverse)
        return self._plain


class _Scan(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, loop: Differentiated, *tensors: torch.Tensor) -> object:
        ctx.state = device_for(tensors[0].device).generator.state if loop.draws and not is_traced() else None
        found = loop.forward([each.detach() for each in tensors])
        results = tuple(found[: loop.outputs])
        ctx.loop, ctx.inputs = loop, len(tensors)
        ctx.save_for_backward(*tensors, *found[loop.outputs :])
        ctx.mark_non_differentiable(*(each for place, each in enumerate(results) if place not in loop.differentiable))
        ctx.set_materialize_grads(False)
        ctx.kinds = [(each.shape, each.dtype, each.device) for each in results]
        return results

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        loop: Differentiated = ctx.loop
        kept = ctx.saved_tensors
        inputs, saved = kept[: ctx.inputs], kept[ctx.inputs :]
        reached = loop.reached(frozenset(place for place, grad in enumerate(grads) if grad is not None))
        taken = {*loop.differentiable, *(place for place, need in enumerate(loop.needed) if need)}
        grads = tuple(
            torch.zeros(size, dtype=dtype, device=device) if grad is None and place in taken else grad
            for place, (grad, (size, dtype, device)) in enumerate(zip(grads, ctx.kinds, strict=True))
        )
        if torch.is_grad_enabled():
            if loop.gradient is None:
                loop.gradient = _Gradient(loop)
            results = iter(loop.gradient.run(grads, inputs, ctx.state))
        else:
            results = iter(loop.backward(grads, saved, inputs))
        found = [next(results) if need else None for need in loop.needed]
        return (None, *(each if flows else None for each, flows in zip(found, reached, strict=True)))


class _Gradient:
    """The gradient of a scan as two scans, which have gradients in turn.

    The first goes through the rounds again and notes what each was given and which random numbers it drew. The second
    goes back, and computes in each round the gradient of the body.
    """

    def __init__(self, loop: Differentiated) -> None:
        roles = loop.roles
        self._loop = loop
        self._wanted = [place for place, need in enumerate(loop.needed) if need]
        self._carried = [place for place in self._wanted if place < roles.carried]
        self._constants = [place for place in self._wanted if place >= roles.carried + roles.slices]
        self._slices = [place for place in self._wanted if place not in (*self._carried, *self._constants)]
        self._outside = [place for place in loop.differentiable if place >= roles.carried]
        self._again = ScanLoop(self._round_again, roles, loop.reverse)
        self._back: ScanLoop | None = None

    def run(self, grads: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor], state: object) -> list[torch.Tensor]:
        """Return gradients by the inputs that need them, in order."""
        loop, roles = self._loop, self._loop.roles
        with self._numbers_of(inputs, state):
            rounds = self._again.run(inputs, loop.partition)[roles.carried :]
        carried, constants = inputs[: roles.carried], inputs[roles.carried + roles.slices :]
        start = [grads[place] for place in self._carried]
        start += [torch.zeros_like(inputs[place]) for place in self._constants]
        slices = [*rounds[: len(carried)], *inputs[len(carried) : roles.carried + roles.slices]]
        slices += [*(grads[place] for place in self._outside), *rounds[len(carried) :]]
        if self._back is None:
            self._back = ScanLoop(self._round_back, Roles(len(start), len(slices), len(constants)), not loop.reverse)
        found = self._back.run([*start, *slices, *constants], loop.partition)
        by_place = dict(zip((*self._carried, *self._constants, *self._slices), found, strict=True))
        return [by_place[place] for place in self._wanted]

    @contextmanager
    def _numbers_of(self, inputs: Sequence[torch.Tensor], state: Any) -> Iterator[None]:
        """Let the rounds draw the numbers that they drew, within a `with` block."""
        loop = self._loop
        if not loop.draws:
            yield
            return
        if state is None or self._again.draws(inputs, loop.partition) != loop.draws:
            where = "inside of another traced function" if state is None else "and does not use all of them"
            raise NotImplementedError(f"gradients of gradients of a scan whose body draws random numbers {where}")
        generator = device_for(inputs[0].device).generator
        now, generator.state = generator.state, state
        try:
            yield
        finally:
            generator.state = now

    def _round_again(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        carried = self._loop.roles.carried
        drawn: list[torch.Tensor] = []
        with _Draws(drawn, is_given=False):
            results = self._loop.body(*tensors)
        return (*results[:carried], *(each.clone() for each in (*tensors[:carried], *drawn)))

    def _round_back(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        roles, loop = self._loop.roles, self._loop
        given = iter(tensors)
        so_far = {place: next(given) for place in self._carried}
        sums = [next(given) for _ in self._constants]
        inputs = [next(given) for _ in range(roles.carried + roles.slices)]
        so_far.update({place: next(given) for place in self._outside})
        rest = list(given)
        drawn, constants = rest[: len(rest) - roles.constant], rest[len(rest) - roles.constant :]
        with torch.enable_grad():
            inputs += constants
            for place in self._wanted:
                if not inputs[place].requires_grad:
                    inputs[place] = inputs[place].detach().requires_grad_()
            with _Draws(drawn, is_given=True):
                results = loop.body(*inputs)
            found: Any = torch.autograd.grad(
                [results[place] for place in loop.differentiable],
                [inputs[place] for place in self._wanted],
                [so_far[place] for place in loop.differentiable],
                create_graph=True,
                allow_unused=True,
            )
        by_place = dict(zip(self._wanted, found, strict=True))
        grads = [_or_zeros(by_place[place], inputs[place]) for place in (*self._carried, *self._slices)]
        totals = [
            each if by_place[place] is None else each + by_place[place]
            for each, place in zip(sums, self._constants, strict=True)
        ]
        made = (*grads[: len(self._carried)], *totals, *grads[len(self._carried) :])
        return tuple(each.clone() for each in made)


def _or_zeros(grad: torch.Tensor | None, like: torch.Tensor) -> torch.Tensor:
    return torch.zeros_like(like) if grad is None else grad


class _Draws(TorchDispatchMode):
    """Notes what operators draw, or has them give what was noted, in that order."""

    supports_higher_order_operators = True

    def __init__(self, drawn: list[torch.Tensor], is_given: bool) -> None:
        super().__init__()
        self._drawn, self._is_given = drawn, is_given

    def __torch_dispatch__(
        self, func: Any, types: object, args: Any = (), kwargs: Any = None
    ) -> torch.Tensor | tuple[torch.Tensor, ...]:
        kwargs = kwargs or {}
        if isinstance(func, HigherOrderOperator) or torch.Tag.nondeterministic_seeded not in func.tags:
            return func(*args, **kwargs)
        if not self._is_given:
            result = func(*args, **kwargs)
            self._drawn += [each.clone() for each in pytree.tree_leaves(result)]
            return result
        if schema_of(func).is_mutable:
            return args[0].copy_(self._drawn.pop(0))
        given = [self._drawn.pop(0) for _ in schema_of(func).returns]
        return given[0] if len(given) == 1 else tuple(given)
