"""Gradients of the mean loss of a batch's slices, by a loop on the device."""

import copy
from typing import Any

import pytest
import torch

import torch_xla
from torch_xla._engine.compiled.loops.accumulation_loop import _check, accumulate
from torch_xla.experimental import eager_mode_context

SLICES = torch.arange(12.0).reshape(3, 2, 2) / 10


@pytest.mark.slow
def test_gradients_and_losses_are_the_means_over_the_slices() -> None:
    theirs = torch.nn.Linear(2, 1)
    ours = copy.deepcopy(theirs).to("xla")
    ours.bias.grad = torch.ones(1).to("xla")  # what is there already is added to

    def step_of(model: torch.nn.Module):  # type: ignore[no-untyped-def]
        def step(x: torch.Tensor, seen: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return model(x).square().mean(), seen + x.sum()

        return step

    total, seen = accumulate(step_of(ours), [SLICES.to("xla")], ours, [torch.zeros((), device="xla")], False)
    expected = sum(step_of(theirs)(each, torch.zeros(()))[0] / 3 for each in SLICES)
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
        (theirs(each).sum() / 3).backward()
    torch.testing.assert_close(ours.weight.grad.cpu(), theirs.weight.grad)  # type: ignore[union-attr]


def test_what_a_step_must_return() -> None:
    _check(torch.ones(()), [1], [2])
    for loss, words in ((torch.ones(2), r"got \[2\]"), (3.0, "got float")):
        with pytest.raises(ValueError, match=f"a loss without dimensions first; {words}"):
            _check(loss, [], [])
    with pytest.raises(ValueError, match="each of the 2 carried tensors; got 1 behind the loss"):
        _check(torch.ones(()), [1], [1, 2])


def test_a_step_that_writes_to_a_view_of_a_buffer_sees_that() -> None:
    def run(device: str) -> list[torch.Tensor]:
        model = torch.nn.Linear(2, 1, bias=False).to(device)
        model.register_buffer("seen", torch.zeros(2, 2, device=device))
        with torch.no_grad():
            model.weight.fill_(1)
        row = model.seen[1]  # type: ignore[index]

        def step(x: torch.Tensor) -> torch.Tensor:
            row.add_(x.sum(0))
            return (model(x) * model.seen.sum()).sum()  # type: ignore[operator]

        if device == "xla":
            total = accumulate(step, [SLICES.to("xla")], model, [], False)
        else:
            total = torch.zeros(())
            for each in SLICES:
                loss = step(each) / 3
                loss.backward()
                total += loss.detach()
        assert model.weight.grad is not None
        return [each.detach().cpu() for each in (total, model.weight.grad, model.seen)]  # type: ignore[list-item]

    torch.testing.assert_close(run("xla"), run("cpu"))


class Partly(torch.nn.Module):
    """Uses one of its parameters, and draws no gradient for another."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.unused, self.seen = (torch.nn.Parameter(torch.ones(2)) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x * self.used * self.seen.detach()).sum()


@pytest.mark.parametrize("is_pure", [False, True])
def test_a_parameter_without_a_path_to_the_loss_keeps_the_gradient_it_has(is_pure: bool) -> None:
    model = Partly().to("xla")
    counted: list[torch.Tensor] = []
    for each in model.parameters():
        each.register_post_accumulate_grad_hook(counted.append)
    model.seen.grad = torch.ones(2, device="xla")
    for _ in range(2):
        accumulate(model.forward, [SLICES.to("xla")], model, [], is_pure)
    assert model.unused.grad is None and model.seen.grad.tolist() == [1, 1]
    assert model.used.grad is not None
    torch.testing.assert_close(model.used.grad.cpu(), 2 / 3 * SLICES.sum((0, 1)))
    assert [id(each) for each in counted] == [id(model.used)] * 2


@pytest.mark.parametrize("is_pure", [False, True])
def test_without_gradients_there_is_the_mean_loss_alone(is_pure: bool) -> None:
    model = Partly().to("xla")
    with torch.no_grad():
        total, count = accumulate(
            lambda x, count: (model(x), count + 1), [SLICES.to("xla")], model, [torch.zeros((), device="xla")], is_pure
        )
    torch.testing.assert_close(total.cpu(), SLICES.sum() / 3)
    assert count.item() == 3 and not total.requires_grad and all(each.grad is None for each in model.parameters())
    step = model.forward
    with torch.no_grad():
        accumulate(step, [SLICES.to("xla")], model, [], is_pure)
    accumulate(step, [SLICES.to("xla")], model, [], is_pure)
    assert model.used.grad is not None


def _mean_of_slices(device: str, way: str) -> list[torch.Tensor]:
    """The loss and gradients of eight slices: on the CPU slice by slice, else by `accumulate` in one of the ways."""
    generator = torch.Generator().manual_seed(0)
    batch, target = (torch.randn(8, 4, 3, generator=generator) for _ in range(2))
    model = torch.nn.Linear(3, 3)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    model = model.to(device)

    def loss_of(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.mse_loss(model(x), y)

    if device == "cpu":
        loss = torch.stack([loss_of(x, y) for x, y in zip(batch, target, strict=True)]).mean()
        loss.backward()
    else:

        def whole(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            model.zero_grad()
            found: torch.Tensor = accumulate(loss_of, [x, y], model, [], False)
            return found

        wrapped = {
            "replay": lambda: torch_xla.compile(whole, replay=True),
            "openxla": lambda: torch.compile(whole, backend="openxla"),
        }
        run = wrapped.get(way, lambda: whole)()
        with eager_mode_context(way == "eager"):
            for _ in range(5):
                loss = run(batch.to(device), target.to(device))
    return [loss.detach().cpu(), *(p.grad.cpu() for p in model.parameters() if p.grad is not None)]


@pytest.mark.parametrize("way", ["recorded", "eager", "replay", "openxla"])
def test_eight_slices_give_the_mean_of_their_losses_in_each_way_of_running(way: str) -> None:
    found, expected = _mean_of_slices("xla", way), _mean_of_slices("cpu", way)
    assert len(found) == 3
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("is_pure", [False, True])
def test_numbers_are_carried_as_tensors(is_pure: bool) -> None:
    model = torch.nn.Linear(2, 1).to("xla")
    slices = [SLICES.to("xla")]

    def step(x: torch.Tensor, total: torch.Tensor, count: torch.Tensor, last: torch.Tensor) -> tuple[Any, ...]:
        return model(x).sum(), total + 0.5, count + 1, 7

    loss, total, count, last = accumulate(step, slices, model, [1.0, 2, 0], is_pure)
    torch.testing.assert_close(loss.cpu(), torch.stack([model(each).sum() for each in slices[0]]).mean().detach().cpu())
    assert (total.item(), count.item(), last.item()) == (2.5, 5, 7)
    assert (total.dtype, count.dtype, last.dtype) == (torch.float32, torch.int64, torch.int64)


@pytest.mark.parametrize("is_pure", [False, True])
@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda x, y, seen: x.add_(1), r"argument 0 \(slice 0\)"),
        (lambda x, y, seen: y[0].zero_(), r"argument 1 \(slice 1\)"),
        (lambda x, y, seen: seen.view(2)[:1].mul_(2), r"argument 2 \(carried tensor 0\)"),
    ],
    ids=["slice", "view of a slice", "view of what is carried"],
)
def test_a_step_that_changes_its_arguments_is_refused(change: Any, words: str, is_pure: bool) -> None:
    model = torch.nn.Linear(2, 1).to("xla")

    def step(x: torch.Tensor, y: torch.Tensor, seen: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        change(x, y, seen)
        return model(x + y).sum(), seen + 1

    with pytest.raises(RuntimeError, match=f"train_step changed its {words} in place"):
        accumulate(step, [SLICES.to("xla"), SLICES.to("xla")], model, [torch.zeros(2, device="xla")], is_pure)
    assert model.weight.grad is None
