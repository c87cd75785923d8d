"""The gradient of a scan, cut into what each direction computes in a round."""

from typing import Any

import torch

from torch_xla._engine.compat.names.torch_dynamo import default_partition
from torch_xla._engine.compiled.loops.loop_bodies import pure_graph
from torch_xla._engine.compiled.loops.nested_loops import Whole
from torch_xla._engine.compiled.loops.scan_gradients import (
    Differentiated,
    Examples,
    Roles,
    _flow,
    around_while,
    paths_of,
    without_gradients,
)

ROLES = Roles(1, 1, 1)
TENSORS = [torch.ones(2), torch.arange(6.0).reshape(3, 2), torch.tensor([0.5, 2.0])]


def body(carry: torch.Tensor, x: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, ...]:
    hidden = (carry * weight + x).tanh()
    return hidden, hidden * 3


def by_hand(carry: torch.Tensor, xs: torch.Tensor, weight: torch.Tensor, order: range) -> tuple[torch.Tensor, ...]:
    outputs: dict[int, torch.Tensor] = {}
    for place in order:
        carry, outputs[place] = body(carry, xs[place], weight)
    return carry, torch.stack([outputs[place] for place in range(len(xs))])


def test_roles_follow_the_order_of_the_tensors() -> None:
    assert [Roles(2, 1, 2).role(place) for place in range(5)] == ["carried", "carried", "slice", "constant", "constant"]
    examples = Examples(ROLES, [each.to("xla") for each in TENSORS])
    assert examples.length == 3 and [tuple(each.shape) for each in examples.round()] == [(2,), (2,), (2,)]
    assert examples.stacked(examples.round()[0]).shape == (3, 2)


def test_both_directions_are_those_of_autograd() -> None:
    given = [each.to("xla") for each in TENSORS]
    for reverse, order in ((False, range(3)), (True, range(2, -1, -1))):
        leaves = [each.clone().requires_grad_() for each in TENSORS]
        last, outputs = by_hand(*leaves, order)  # type: ignore[arg-type, misc]
        examples = Examples(ROLES, given)
        needed, gives = examples.followed(body, (False, False, True))
        assert (needed, gives) == ([True, False, True], [True, True])  # what is carried depends on the weight
        both = Differentiated(body, examples, (True, True, True), gives, default_partition, reverse)
        found = both.forward(given)
        torch.testing.assert_close([each.cpu() for each in found[:2]], [last.detach(), outputs.detach()])
        grads = [torch.tensor([1.0, -1.0]), torch.arange(6.0).reshape(3, 2)]
        expected = torch.autograd.grad((last, outputs), leaves, grads)
        ours = both.backward([each.to("xla") for each in grads], found[2:], given)
        torch.testing.assert_close([each.cpu() for each in ours], list(expected))
    plain = without_gradients(body, ROLES, given, False)
    torch.testing.assert_close(plain(given)[0].cpu(), by_hand(*TENSORS, range(3))[0])  # type: ignore[arg-type, misc]


def test_a_while_loop_is_a_graph_of_what_is_carried_and_what_is_not() -> None:
    n, step = torch.tensor(0).to("xla"), torch.tensor(2).to("xla")
    condition = pure_graph(lambda n, step: ((n < 5),), [n, step])
    once = pure_graph(lambda n, step: ((n + step),), [n, step])
    (found,) = Whole(around_while(condition, once, 1), "test")([n, step])
    assert found.item() == 6


def test_gradients_flow_where_they_would_round_by_round() -> None:
    def shift(first: torch.Tensor, second: torch.Tensor, x: torch.Tensor, weight: torch.Tensor) -> tuple[Any, ...]:
        return second * 1, (first.detach() * weight), x.round(), first * 2

    found = {}
    for length in (0, 1, 2, 3, 4):
        tensors = [torch.ones(2), torch.ones(2), torch.ones(length, 2), torch.ones(2)]
        examples = Examples(Roles(2, 1, 1), [each.to("xla") for each in tensors])
        needed, gives = examples.followed(shift, [True] * 4)
        assert examples.paths == [0b0010, 0b1000, 0b0100, 0b0001]
        both = Differentiated(shift, examples, needed, gives, default_partition)
        found[length] = [both.reached(frozenset((place,))) for place in range(4)]
    none, first, second, x, weight = ((False,) * 4, *(tuple(n == place for n in range(4)) for place in range(4)))
    assert found[0] == [(True,) * 4] * 4  # of no rounds
    assert found[1] == [second, weight, x, first]
    assert found[2] == [weight, weight, x, (True, True, False, False)]
    assert found[3] == [weight, weight, x, (True, True, False, True)] and found[4] == found[3]
    assert none not in found[1]


def test_paths_go_round_in_turn() -> None:
    """Two that are exchanged in every round."""
    swap = [0b10, 0b01]
    for length in range(1, 6):
        assert _flow(swap, 2, length, frozenset((0,))) == (0b10 if length % 2 else 0b01)
    assert _flow([0b10, 0b100, 0b010, 0b1000], 3, 7, frozenset((0,))) == 0b010
    assert _flow([0b10, 0b100, 0b010, 0b1000], 3, 8, frozenset((0, 3))) == 0b1100


def test_paths_are_those_of_autograd() -> None:
    x, y, z = (torch.ones(2, requires_grad=True) for _ in range(3))
    pair = torch.stack([x, y]).unbind()
    assert paths_of([pair[0] + z.detach(), z * x, z.detach(), y.sign()], [x, y, z]) == [0b011, 0b101, 0, 0b010]
