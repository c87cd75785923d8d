"""Gradients summed over slices of a batch by a loop on the device."""

import copy

import pytest
import torch

from torch_xla._engine.dynamo.accumulation import _check, accumulate

SLICES = torch.arange(12.0).reshape(3, 2, 2) / 10


@pytest.mark.slow
def test_gradients_and_losses_are_the_sums_over_the_slices() -> None:
    theirs = torch.nn.Linear(2, 1)
    ours = copy.deepcopy(theirs).to("xla")
    ours.bias.grad = torch.ones(1).to("xla")  # what is there already is added to

    def step_of(model: torch.nn.Module):  # type: ignore[no-untyped-def]
        def step(x: torch.Tensor, seen: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return model(x).square().mean(), seen + x.sum()

        return step

    total, seen = accumulate(step_of(ours), [SLICES.to("xla")], ours, [torch.zeros((), device="xla")], False)
    expected = sum(step_of(theirs)(each, torch.zeros(()))[0] for each in SLICES)
    expected.backward()  # type: ignore[union-attr]
    torch.testing.assert_close(total.cpu(), expected.detach())  # type: ignore[union-attr]
    torch.testing.assert_close(seen.cpu(), SLICES.sum())
    torch.testing.assert_close(ours.weight.grad.cpu(), theirs.weight.grad)  # type: ignore[union-attr]
    torch.testing.assert_close(ours.bias.grad.cpu(), theirs.bias.grad + 1)  # type: ignore[operator]


def test_hooks_of_parameters_see_the_gradient_of_each_slice() -> None:
    theirs = torch.nn.Linear(2, 1, bias=False)
    ours = copy.deepcopy(theirs).to("xla")
    seen: list[torch.Tensor] = []
    for model in (theirs, ours):
        model.weight.register_hook(lambda grad: grad.clamp(max=0.1))
        model.weight.register_post_accumulate_grad_hook(seen.append)
    accumulate(lambda x: ours(x).sum(), [SLICES.to("xla")], ours, [], False)
    assert len(seen) == 1 and seen[0] is ours.weight
    for each in SLICES:
        theirs(each).sum().backward()
    torch.testing.assert_close(ours.weight.grad.cpu(), theirs.weight.grad)  # type: ignore[union-attr]


def test_what_a_step_must_return() -> None:
    _check(torch.ones(()), [1], [2])
    for loss, words in ((torch.ones(2), r"got \[2\]"), (3.0, "got float")):
        with pytest.raises(ValueError, match=f"a loss without dimensions first; {words}"):
            _check(loss, [], [])
    with pytest.raises(ValueError, match="each of the 2 carried tensors; got 1 behind the loss"):
        _check(torch.ones(()), [1], [1, 2])
