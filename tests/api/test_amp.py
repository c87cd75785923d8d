"""Mixed precision follows PyTorch's on the CPU, and skips bad steps without a wait."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import torch_xla
import torch_xla.debug.metrics as met
from torch_xla.amp import GradScaler, autocast, syncfree
from torch_xla.amp.syncfree._functional import adam_step, sgd_step

Make = Callable[[Any], torch.optim.Optimizer]
BAD_STEPS = (2, 5)


def trained(device: str, make: Make, scaler: torch.amp.GradScaler, clip: bool = False) -> list[Tensor]:
    """Return the parameters after steps, two of them with an overflow, then the scale."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2)).to(device)
    optimizer = make(model.parameters())
    inputs = torch.linspace(-1, 1, 8).reshape(2, 4).to(device)
    for step in range(8):
        optimizer.zero_grad()
        loss = model(inputs).pow(2).sum() * (float("inf") if step in BAD_STEPS else 1.0)
        scaler.scale(loss).backward()
        if clip:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        scaler.step(optimizer)
        scaler.update()
        torch_xla.sync()
    waits = met.metric_data("TransferFromDeviceTime")
    return [torch.tensor(float(waits[0] if waits else 0)), *(p.detach().cpu() for p in model.parameters())]


@pytest.mark.parametrize("clip", (False, True))
@pytest.mark.parametrize(
    ("name", "arguments"),
    (
        ("SGD", {"lr": 0.1}),
        ("SGD", {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01}),
        ("Adam", {"lr": 0.1, "amsgrad": True}),
        ("AdamW", {"lr": 0.1}),
    ),
)
def test_syncfree_optimizers_follow_the_cpu_and_never_wait(name: str, arguments: dict[str, Any], clip: bool) -> None:
    options = {"init_scale": 8.0, "growth_interval": 2}
    theirs = torch.amp.GradScaler("cpu", **options)  # type: ignore[arg-type]
    expected = trained("cpu", lambda p: getattr(torch.optim, name)(p, fused=True, **arguments), theirs, clip)
    ours = GradScaler(**options)  # type: ignore[arg-type]
    waits, *found = trained("xla", lambda p: getattr(syncfree, name)(p, **arguments), ours, clip)
    assert waits == 0
    torch.testing.assert_close(found, expected[1:])
    assert ours.get_scale() == theirs.get_scale()


def test_an_optimizer_that_cannot_skip_on_the_device_still_skips() -> None:
    def make(parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.RMSprop(parameters, lr=0.01)

    expected = trained("cpu", make, torch.amp.GradScaler("cpu", init_scale=8.0))
    waits, *found = trained("xla", make, GradScaler(init_scale=8.0))
    assert waits == 8
    torch.testing.assert_close(found, expected[1:])


def test_a_skipped_step_changes_no_state() -> None:
    weight = torch.ones(3, device="xla", requires_grad=True)
    optimizer = syncfree.Adam([weight], lr=0.1)
    weight.grad = torch.ones_like(weight)
    optimizer.step()
    before = [weight.tolist(), *(t.tolist() for t in optimizer.state[weight].values())]
    optimizer.step(found_inf=torch.ones(1, device="xla"))
    assert [weight.tolist(), *(t.tolist() for t in optimizer.state[weight].values())] == before
    optimizer.step(found_inf=torch.zeros(1, device="xla"))
    assert weight.tolist() != before[0]
    assert not hasattr(optimizer, "found_inf")


def test_a_syncfree_optimizer_is_fused() -> None:
    weight = torch.ones(1, device="xla", requires_grad=True)
    assert syncfree.SGD([weight], lr=0.1, fused=True).defaults["fused"]
    with pytest.raises(ValueError, match="always fused; leave out foreach=True"):
        syncfree.AdamW([weight], foreach=True)


def test_a_disabled_scaler_does_nothing() -> None:
    scaler = GradScaler(enabled=False)
    loss = torch.ones((), device="xla")
    assert scaler.scale(loss) is loss and scaler.get_scale() == 1


@pytest.mark.parametrize("dtype", (None, torch.bfloat16, torch.float16))
def test_autocast_takes_the_older_spelling(dtype: torch.dtype | None) -> None:
    weight = torch.ones(2, 2, device="xla")

    @autocast(torch_xla.device(), dtype=dtype)
    def product() -> Tensor:
        return weight @ weight

    with autocast("xla", dtype=dtype):
        assert (weight @ weight).dtype is (dtype or torch.bfloat16)
        assert weight.exp().dtype is torch.float32
    assert product().dtype is (dtype or torch.bfloat16)
    with autocast("xla", enabled=False):
        assert (weight @ weight).dtype is torch.float32
    with pytest.raises(ValueError, match=r"is for xla devices, not cpu; use torch.autocast\('cpu'\)"):
        autocast("cpu")


def test_the_default_is_bfloat16_in_every_thread() -> None:
    def product() -> torch.dtype:
        with torch.autocast("xla"):
            return (torch.ones(2, 2, device="xla") @ torch.ones(2, 2, device="xla")).dtype

    with ThreadPoolExecutor(1) as thread:
        assert product() is thread.submit(product).result() is torch.bfloat16
    torch.set_autocast_dtype("xla", torch.float16)
    try:
        assert product() is torch.float16
    finally:
        torch.set_autocast_dtype("xla", torch.bfloat16)


@pytest.mark.parametrize("skip", [False, True])
@pytest.mark.parametrize("use_adamw", [False, True])
def test_adam_as_a_function_is_the_optimizer(use_adamw: bool, skip: bool) -> None:
    start, grad = torch.randn(5), torch.randn(5)
    settings: dict[str, Any] = {"amsgrad": True, "weight_decay": 0.1, "eps": 1e-8, "maximize": False}
    weight, mean, square, largest = (t.to("xla") for t in (start.clone(), *torch.zeros(3, 5)))
    step = torch.zeros((), device="xla")
    found = torch.full((1,), float(skip), device="xla")
    for _ in range(2):
        adam_step(
            found, [step], [weight], [grad.to("xla")], [mean], [square], [largest], beta1=0.9, beta2=0.99, lr=0.1,
            use_adamw=use_adamw, **settings,
        )  # fmt: skip
    expected = start.clone().requires_grad_()
    optimizer = (torch.optim.AdamW if use_adamw else torch.optim.Adam)(
        [expected], lr=0.1, betas=(0.9, 0.99), **settings
    )
    expected.grad = grad
    for _ in range(0 if skip else 2):
        optimizer.step()
    torch.testing.assert_close(weight.cpu(), expected.detach())
    assert step.item() == (0 if skip else 2)


@pytest.mark.parametrize("skip", [False, True])
def test_sgd_as_a_function_is_the_optimizer(skip: bool) -> None:
    start, grad = torch.randn(5), torch.randn(5)
    settings: dict[str, Any] = {"momentum": 0.9, "weight_decay": 0.1, "dampening": 0.0, "nesterov": True}
    weight, buffer, step = start.to("xla"), torch.zeros(5, device="xla"), torch.zeros((), device="xla")
    found = torch.full((), float(skip), device="xla")
    for _ in range(2):
        sgd_step(found, [step], [weight], [grad.to("xla")], [buffer], lr=0.1, maximize=False, **settings)
    expected = start.clone().requires_grad_()
    optimizer = torch.optim.SGD([expected], lr=0.1, **settings)
    expected.grad = grad
    for _ in range(0 if skip else 2):
        optimizer.step()
    torch.testing.assert_close(weight.cpu(), expected.detach())
    assert step.item() == (0 if skip else 2)
