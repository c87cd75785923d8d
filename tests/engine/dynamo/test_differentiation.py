"""The gradient of a scan, cut into what each direction computes in a round."""

import torch

from torch_xla._engine.dynamo.bodies import pure_graph
from torch_xla._engine.dynamo.differentiation import Differentiated, Examples, Roles, around_while, without_gradients
from torch_xla._engine.dynamo.nesting import Whole
from torch_xla._engine.private.dynamo import default_partition

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
