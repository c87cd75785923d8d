"""torch_xla.experimental.buckets: sizes that change, in one program for each bucket."""

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import torch_xla
from torch_xla.debug import metrics
from torch_xla.experimental.buckets import bucketed


def compilations() -> int:
    found: Any = metrics.metric_data("CompileTime")
    return found[0] if found else 0


def several(x: torch.Tensor, y: torch.Tensor) -> Any:
    scores = torch.softmax(x @ y.T, -1)
    return {"mean": x.mean(0), "rows": [scores, x.flip(0)], "last": x[-1], "flat": x.reshape(-1), "std": y.std(0)}


def test_results_are_those_of_the_sizes_given_and_a_bucket_is_one_program() -> None:
    torch.manual_seed(0)
    function = bucketed(several, {0: 0, 1: 0}, buckets=(4, 8))
    expected_compilations = {3: 1, 4: 0, 6: 1, 8: 0, 5: 0, 2: 0}
    for size, programs in expected_compilations.items():
        x, y = torch.randn(size, 3), torch.randn(size, 3)
        before = compilations()
        found = torch.utils._pytree.tree_map(lambda tensor: tensor.cpu(), function(x, y))
        assert compilations() - before == programs, size
        torch.testing.assert_close(found, several(x, y))


@pytest.mark.slow
def test_a_model_trains_as_on_the_cpu_and_its_step_is_not_compiled_for_each_length() -> None:
    torch.manual_seed(0)
    theirs = torch.nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    ours = copy.deepcopy(theirs).to("xla")
    loss_of = lambda model: lambda x: model(x).square().mean()  # noqa: E731
    step = bucketed(loss_of(ours), {0: 1})
    for length, most in ((5, 2), (3, 2), (7, 0), (8, 0), (4, 0)):
        x = torch.randn(2, length, 8)
        before = compilations()
        losses = []
        for model, loss in ((ours, step(x)), (theirs, loss_of(theirs)(x))):
            loss.backward()
            with torch.no_grad():
                for parameter in model.parameters():
                    assert parameter.grad is not None
                    parameter.sub_(parameter.grad, alpha=0.1)
                    parameter.grad = None
            losses.append(loss.detach())
        torch_xla.sync()
        assert compilations() - before <= most, length
        torch.testing.assert_close(losses[0].cpu(), losses[1], rtol=1e-4, atol=1e-5)
    for ours_, theirs_ in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(ours_.detach().cpu(), theirs_.detach(), rtol=1e-4, atol=1e-5)


def test_results_go_on_into_another_function_without_a_copy_and_gradients_reach_arguments() -> None:
    first, second = bucketed(lambda x: x.cumsum(0), {0: 0}), bucketed(lambda x: (x / x.mean(0)).square().sum(), {0: 0})
    x = torch.rand(5, 2, requires_grad=True)
    loss = second(first(x))
    loss.backward()
    ours = x.grad
    x.grad = None
    summed = x.cumsum(0)
    (summed / summed.mean(0)).square().sum().backward()
    torch.testing.assert_close(ours, x.grad)


def test_what_is_sorted_does_not_hold_the_padding() -> None:
    function = bucketed(lambda x: (*x.sort(0), *x.sort(0, descending=True)), {0: 0}, buckets=(8,))
    x = torch.randn(5, 2)
    for found, expected in zip(function(x), (*x.sort(0), *x.sort(0, descending=True)), strict=True):
        torch.testing.assert_close(found.cpu(), expected)


def test_a_mark_on_an_argument_says_what_changes() -> None:
    function, x = bucketed(lambda x, y: (x @ y.T).mean(0), buckets=(4, 8)), torch.randn(3, 2)
    torch_xla._XLAC._xla_mark_dynamic(x, -2)
    assert 0 in x._dynamo_dynamic_indices  # type: ignore[attr-defined]
    y = torch.randn(6, 2).to("xla")
    torch.testing.assert_close(function(x, y).cpu(), (x @ y.cpu().T).mean(0))
    for size, programs in {4: 0, 7: 1, 8: 0, 2: 0}.items():  # later arguments need no mark
        x, before = torch.randn(size, 2), compilations()
        torch.testing.assert_close(function(x, y).cpu(), (x @ y.cpu().T).mean(0))
        assert compilations() - before == programs, size
    another = torch.randn(5, 2)
    torch._dynamo.mark_dynamic(another, 0)
    torch.testing.assert_close(bucketed(lambda x: x.sum(0))(another).cpu(), another.sum(0))
    message = r"_xla_mark_dynamic\(\): dimension 2 of a tensor of shape \[5, 2\]: it has 2 dimensions"
    with pytest.raises(IndexError, match=message):
        torch_xla._XLAC._xla_mark_dynamic(another, 2)


def test_what_cannot_be_bucketed_is_refused_with_what_to_do() -> None:
    function = bucketed(lambda x, y: x + y, {0: 0, 1: 0}, buckets=(4,))
    with pytest.raises(ValueError, match="a size of 6 is above the largest bucket, 4"):
        function(torch.ones(6), torch.ones(6))
    with pytest.raises(
        ValueError, match=r"equal in the first call are 3 and 2 now, the latter of a tensor of shape \[2\]"
    ):
        function(torch.ones(3), torch.ones(2))
    with pytest.raises(ValueError, match="argument 1 has sizes that change; expected a tensor"):
        function(torch.ones(3), 2)
    norm = torch.nn.BatchNorm1d(3).to("xla")
    with pytest.raises(NotImplementedError, match="writes to .*evaluation mode"):
        bucketed(norm, {0: 0})(torch.ones(5, 3))
    with pytest.raises(NotImplementedError, match="draws random numbers"):
        bucketed(torch.nn.Dropout(), {0: 0})(torch.ones(5))


# Functions at points without a unique slope, of sizes that are no multiple of a power of two, and of parts.
CORNERS = {
    "distances": lambda x: (x.norm(dim=1), x.norm(1, dim=1), torch.cdist(x, x), F.normalize(x, dim=1)),
    "largest": lambda x: (x.max(1).values, x.min(0).values, x.amax(0), x.relu(), x.clamp(0, 1), x.cummax(1).values),
    "losses": lambda x: (x.abs(), F.l1_loss(x, 0 * x), F.logsigmoid(x), F.smooth_l1_loss(x, 0 * x)),
    "spread": lambda x: (x.std(0), x.std(1), x.var(), x.prod(0), x.sigmoid().prod(0), x.cumprod(1)),
    "parts": lambda x: (x[1:], x[:-1], x[::2], x[1:4:2], x[-2:], x[0], x[-1], x[1:] - x[:-1], x.sort(0).values[:, 1:]),
    "edges": lambda x: (
        F.pad(x, (1, 2)),
        F.pad(x, (0, 0, 2, 1)),
        x.chunk(2, 1)[1],
        x.roll(1, 0),
        torch.cat([x, x[1:]]),
    ),
}


@pytest.mark.parametrize("name", CORNERS)
def test_gradients_are_pytorchs_own(name: str) -> None:
    function = CORNERS[name]
    run = bucketed(function, {0: 0})
    rows = torch.tensor([[0.0, 0, 0, 0], [1, -1, 0, 2], [2, 2, 1, -3], [0, 1, 1, 0], [6, 3, -1, 0.5], [1, 1, 1, 1]])
    for count in (6, 5):
        x, ours = (rows[:count].clone().requires_grad_() for _ in range(2))
        expected, found = function(x), run(ours)
        for each, other in zip(found, expected, strict=True):
            torch.testing.assert_close(each.cpu(), other, rtol=1e-4, atol=1e-5)
        weights = [torch.arange(1.0, each.numel() + 1).reshape(each.shape) for each in expected]
        sum((each * weight).sum() for each, weight in zip(expected, weights, strict=True)).backward()
        sum((each.cpu() * weight).sum() for each, weight in zip(found, weights, strict=True)).backward()
        scale = float(x.grad.abs().max())  # type: ignore[union-attr]
        torch.testing.assert_close(ours.grad, x.grad, rtol=1e-4, atol=1e-5 * max(1.0, min(scale, 100.0)))


# Along the length of `x`, of 3 channels: what slides over it, and what compares or sorts all of it.
KERNEL = torch.linspace(-1, 1, 18).reshape(2, 3, 3)
ALONG = {
    "convolution": lambda x: F.conv1d(x, KERNEL.to(x.device)),
    "convolution, padded": lambda x: F.conv1d(x, KERNEL.to(x.device), padding=1).mean(-1),
    "convolution, dilated": lambda x: F.conv1d(x, KERNEL.to(x.device), padding=2, dilation=2).relu(),
    "convolution, by channel": lambda x: F.conv1d(x, KERNEL[0].reshape(3, 1, 3).to(x.device), groups=3, padding="same"),
    "distances, sums": lambda x: torch.cdist(x[0].T, 2 * x[0].T + 1, p=1.0),
    "distances, powers": lambda x: torch.cdist(x[0].T, 2 * x[0].T + 1, p=3.0),
    "distances, largest": lambda x: torch.cdist(x[0].T, 2 * x[0].T + 1, p=float("inf")),
    "quantile": lambda x: x.quantile(0.3, dim=-1),
    "quantile, nearest": lambda x: x.quantile(torch.tensor([0.3, 0.9], device=x.device), -1, interpolation="nearest"),
}


def exports(function: Any) -> bool:
    """Whether this PyTorch traces `function` on the CPU, of a length that changes."""

    class Called(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            return function(x)

    changing = {2: torch.export.Dim.AUTO}
    try:
        torch.export.export(Called(), (torch.randn(2, 3, 7),), dynamic_shapes=(changing,), strict=False)
    except RuntimeError as refusal:
        assert "symbolic sizes" in str(refusal)
        return False
    return True


@pytest.mark.parametrize("name", ALONG)
def test_what_slides_and_compares_along_a_size_that_changes(name: str) -> None:
    function = ALONG[name]
    run = bucketed(function, {0: 2})
    # PyTorch 2.11 composes a quantile by its number of elements, which it does not have for a size that changes.
    if "quantile" in name and torch.__version__ < (2, 13) and not exports(function):
        with pytest.raises(RuntimeError, match="symbolic sizes"):
            run(torch.randn(2, 3, 5, requires_grad=True))
        return
    for length in (5, 7, 10):
        x = torch.randn(2, 3, length)
        ours, theirs = (x.clone().requires_grad_() for _ in range(2))
        expected, found = function(theirs), run(ours)
        torch.testing.assert_close(found.cpu(), expected, rtol=1e-4, atol=1e-5)
        weights = torch.randn(expected.shape)
        (expected * weights).sum().backward()
        (found.cpu() * weights).sum().backward()
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-4, atol=1e-5)


def test_a_kernel_that_slides_along_a_size_that_changes_has_a_gradient() -> None:
    theirs = torch.nn.Conv1d(3, 2, 3, padding=1)
    ours = copy.deepcopy(theirs).to("xla")
    run = bucketed(lambda x: ours(x).square().mean(), {0: 2})
    for length in (5, 9):
        x = torch.randn(2, 3, length)
        run(x).backward()
        theirs(x).square().mean().backward()
    for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert one.grad is not None
        torch.testing.assert_close(one.grad.cpu(), other.grad, rtol=1e-4, atol=1e-5)


def test_what_has_to_know_the_size_is_refused_with_what_to_do() -> None:
    run = bucketed(lambda x: F.conv1d(x.T[None], x.new_ones(2, 4, 3), stride=2), {0: 0})
    with pytest.raises(NotImplementedError, match=r"a size that changes reaches .*outside of the function"):
        run(torch.ones(5, 4, requires_grad=True)).sum().backward()
