"""Scans with the gradients that their tensors ask for, and gradients of those."""

import pytest
import torch

from torch_xla._engine.compat.names.torch_dynamo import default_partition
from torch_xla._engine.compiled.loops.scan_function import ScanLoop, _Draws
from torch_xla._engine.compiled.loops.scan_gradients import Roles

TENSORS = [torch.tensor([1.0, 0.5]), torch.arange(1.0, 5).reshape(2, 2), torch.tensor([0.5, 2.0])]


def body(carry: torch.Tensor, x: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, ...]:
    hidden = carry * weight + x
    return hidden, hidden * hidden


def by_hand(carry: torch.Tensor, xs: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, ...]:
    outputs = []
    for x in xs:
        carry, output = body(carry, x, weight)
        outputs.append(output)
    return carry, torch.stack(outputs)


def test_without_gradients_nothing_is_kept() -> None:
    loop = ScanLoop(body, Roles(1, 1, 1))
    found = loop.run([each.to("xla") for each in TENSORS], default_partition)
    torch.testing.assert_close([each.cpu() for each in found], list(by_hand(*TENSORS)))  # type: ignore[arg-type]
    assert not any(each.requires_grad for each in found) and loop._plain is not None and not loop._differentiated


@pytest.mark.slow
def test_gradients_and_gradients_of_gradients() -> None:
    loop = ScanLoop(body, Roles(1, 1, 1))

    def both(run, *leaves: torch.Tensor) -> list[torch.Tensor]:  # type: ignore[no-untyped-def]
        last, outputs = run(*leaves)
        grads = torch.autograd.grad(last.sum() + outputs.sum(), leaves, create_graph=True)
        again = torch.autograd.grad(sum(each.square().sum() for each in grads), leaves)  # type: ignore[arg-type]
        return [each.detach().cpu() for each in (last, outputs, *grads, *again)]

    ours = both(lambda *t: loop.run(t, default_partition), *(e.to("xla").requires_grad_() for e in TENSORS))
    theirs = both(by_hand, *(each.clone().requires_grad_() for each in TENSORS))
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)
    assert len(loop._differentiated) == 1


def test_draws_are_noted_and_given_again() -> None:
    drawn: list[torch.Tensor] = []
    with _Draws(drawn, is_given=False):
        first = torch.bernoulli(torch.full((20,), 0.5)), torch.empty(3).uniform_()
    assert len(drawn) == 2
    with _Draws([each.clone() for each in drawn], is_given=True):
        second = torch.bernoulli(torch.full((20,), 0.5)), torch.empty(3).uniform_()
    assert all(torch.equal(one, other) for one, other in zip(first, second, strict=True))
