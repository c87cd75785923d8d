"""From the tape to buffers: what runs when, what is compiled again, what memory is given back."""

import gc
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import jax
import pytest
import torch
from torch import Tensor, nn

import torch_xla
from tests.support.pending import prolonged
from torch_xla._engine.metrics import counters
from torch_xla._engine.tensor.storage import value_of


@pytest.fixture(autouse=True)
def an_empty_tape() -> Iterator[None]:
    gc.collect()
    torch_xla.sync()
    counters.clear()
    yield


def ran(name: str) -> int:
    """How many recorded operations called `name` were run."""
    return counters.value_of(f"xla::{name}") or 0


def compiles() -> int:
    return counters.value_of("UncachedCompile") or 0


def is_pending(tensor: Tensor) -> bool:
    return value_of(tensor).state == "pending"


def live_bytes() -> int:
    """The bytes of all buffers there are, once nothing runs any more."""
    torch_xla.sync(wait=True)
    gc.collect()
    return sum(array.nbytes for array in jax.live_arrays() if not array.is_deleted())


# Partial evaluation


def test_reading_a_value_computes_only_what_it_needs() -> None:
    x = torch.ones(3, device="xla")
    needed, other = x.exp(), prolonged(x.sin())
    assert needed.sum().item() == pytest.approx(3 * 2.718281828, rel=1e-6)
    assert is_pending(other) and not is_pending(needed)
    torch_xla.sync()
    assert (ran("exp"), ran("sin")) == (1, 1)


def test_what_is_read_is_not_computed_again() -> None:
    x = torch.ones(3, device="xla")
    y = x.exp()
    z = y.cos()
    assert z.sum().item() < 0
    w = y.sin()
    torch_xla.sync()
    y.tolist(), z.tolist(), w.tolist()
    assert (ran("exp"), ran("cos"), ran("sin")) == (1, 1, 1)


def test_reading_a_loss_does_not_cut_the_backward_pass() -> None:
    x = torch.ones(3, device="xla", requires_grad=True)
    loss = (x.exp() * 2).sum()
    assert loss.item() > 0
    loss.backward()
    torch_xla.sync()
    assert x.grad is not None
    torch.testing.assert_close(x.grad.cpu(), torch.ones(3).exp() * 2)
    assert ran("exp") == 1


def test_reading_twice_runs_once() -> None:
    x = torch.ones(3, device="xla").exp().sum()
    assert x.item() == x.item() == float(x)
    assert ran("exp") == 1


def test_what_nobody_holds_is_never_computed() -> None:
    x = torch.ones(3, device="xla")
    x.exp()
    y = x.sin()
    del y
    kept = x.cos()
    torch_xla.sync()
    assert (ran("exp"), ran("sin"), ran("cos")) == (0, 0, 1)
    assert not is_pending(kept)


def test_a_sync_computes_everything_that_is_held() -> None:
    tensors = [torch.ones(2, device="xla") + i for i in range(3)]
    view = tensors[0].view(2, 1)
    torch_xla.sync()
    assert not any(is_pending(t) for t in tensors)
    assert value_of(view) is value_of(tensors[0])


def test_a_value_read_in_the_middle_of_writes_is_that_of_the_moment() -> None:
    x = torch.zeros(2, device="xla")
    seen = []
    for _ in range(3):
        x.add_(1)
        seen.append(x.tolist()[0])
        x.view(-1)[:1].mul_(10)
        seen.append(x[0].item())
    assert seen == [1, 10, 11, 110, 111, 1110]
    assert x.tolist() == [1110, 3]


def test_branches_on_values_work() -> None:
    x = torch.tensor([5.0], device="xla")
    steps = 0
    while x > 0.5:
        x = x / 2
        steps += 1
    assert steps == 4


# Compiling


def train(model: nn.Module, optimizer: torch.optim.Optimizer, data: Tensor) -> Tensor:
    optimizer.zero_grad()
    loss: Tensor = model(data).pow(2).mean()
    loss.backward()
    optimizer.step()
    torch_xla.sync()
    return loss.detach()


def small_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1)).to("xla")


def test_a_training_step_compiles_once() -> None:
    model = small_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    data = torch.ones(2, 4, device="xla")
    torch_xla.sync()
    counters.clear()
    losses = [train(model, optimizer, data) for _ in range(8)]
    assert compiles() == 1
    assert losses[-1].item() < losses[0].item()


def test_a_learning_rate_that_changes_every_step_costs_no_compile() -> None:
    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.9)
    data = torch.ones(2, 4, device="xla")
    torch_xla.sync()
    counters.clear()
    for step in range(20):
        for group in optimizer.param_groups:
            group["lr"] = 0.1 / (step + 1)
        train(model, optimizer, data)
    assert compiles() == 1


@pytest.mark.parametrize(
    "operation",
    [
        lambda x, number: x + number,
        lambda x, number: x * number + 1,
        lambda x, number: x.add(x, alpha=number),
        lambda x, number: torch.lerp(x, x + 1, number),
        lambda x, number: x.clamp(min=number),
        lambda x, number: torch.full_like(x, number),
        lambda x, number: x.clone().fill_(number),
        lambda x, number: x > number,
        lambda x, number: torch.where(x > 1, x, number),
        lambda x, number: x / number,
        lambda x, number: number - x,
    ],
    ids=["add", "mul", "alpha", "lerp", "clamp", "full", "fill", "compare", "where", "div", "rsub"],
)
def test_a_thousand_numbers_cost_one_more_compile(operation: Callable[[Tensor, float], Tensor]) -> None:
    x = torch.arange(4.0, device="xla")
    host = torch.arange(4.0)
    torch_xla.sync()
    counters.clear()
    for step in range(1000):
        number = 0.5 + step / 7
        y = operation(x, number)
        torch_xla.sync()
        if step % 333 == 0:
            torch.testing.assert_close(y.cpu(), operation(host, number))
    assert compiles() <= 2


def test_integers_and_host_scalars_change_without_compiling() -> None:
    x = torch.arange(4, device="xla")
    torch_xla.sync()
    counters.clear()
    for step in range(50):
        y = x * (step + 2) + torch.tensor(step)
        torch_xla.sync()
    assert y.tolist() == [49 + 51 * k for k in range(4)]
    assert compiles() <= 3


def test_two_numbers_that_start_to_change_one_after_the_other_cost_three_compiles() -> None:
    x = torch.arange(4.0, device="xla")
    torch_xla.sync()
    counters.clear()
    for step in range(30):
        y = x * max(step - 5, 1) + max(step - 15, 1) * 0.5
        torch_xla.sync()
    assert y[1].item() == 24 + 7
    assert compiles() <= 3


def test_nan_and_infinity_are_numbers_like_others() -> None:
    x = torch.zeros(2, device="xla")
    for number in (1.0, float("nan"), float("inf"), -0.0, 1e308):
        y = x + number
        expected = torch.zeros(2) + number
        torch_xla.sync()
        torch.testing.assert_close(y.cpu(), expected, equal_nan=True)


def test_the_same_program_is_found_again_whatever_its_history() -> None:
    def program() -> None:
        x = torch.ones(5, device="xla")
        y = x.exp()
        y[1:].mul_(2)
        torch_xla.sync()

    program()
    torch.ones(2, device="xla").sin().tolist()
    counters.clear()
    program()
    assert compiles() == 0


# Memory


def test_an_input_whose_tensor_died_is_donated() -> None:
    x = torch.ones(1000, device="xla")
    torch_xla.sync()
    buffer = value_of(x).buffer
    x.add_(1)
    torch_xla.sync(wait=True)
    assert buffer.is_deleted()
    assert x[0].item() == 2


def test_an_input_that_somebody_holds_is_not_donated() -> None:
    x = torch.ones(1000, device="xla")
    torch_xla.sync()
    clone, alias = x.clone(), x.detach()
    x.add_(1)
    torch_xla.sync(wait=True)
    assert clone[0].item() == 1
    assert alias[0].item() == x[0].item() == 2


def test_results_that_are_copies_of_an_input_survive_its_donation() -> None:
    x = torch.ones(2, 3, 4, 4, device="xla")
    torch_xla.sync()
    last = x.clone(memory_format=torch.channels_last)
    same = x.to(torch.float64).to(torch.float32)
    torch_xla.sync()
    x.add_(1)
    torch_xla.sync()
    last.mul_(3)
    torch_xla.sync()
    assert (x.sum().item(), last.sum().item(), same.sum().item()) == (192, 288, 96)


def test_two_results_with_one_value_do_not_share_a_buffer_that_is_given_away() -> None:
    x = torch.ones(8, device="xla")
    y = x * 2
    twin, copied = y.clone(), torch.zeros(8, device="xla").copy_(y)
    torch_xla.sync()
    y.add_(1)
    torch_xla.sync()
    twin.add_(10)
    torch_xla.sync()
    assert (y[0].item(), twin[0].item(), copied[0].item()) == (3, 12, 2)


@pytest.mark.slow
def test_memory_is_flat_over_a_thousand_training_steps() -> None:
    model = small_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    data = torch.ones(2, 4, device="xla")
    for _ in range(5):
        train(model, optimizer, data)
    before = live_bytes()
    for _ in range(1000):
        train(model, optimizer, data)
    assert live_bytes() == before


def test_memory_is_flat_when_steps_read_values() -> None:
    x = torch.ones(100, device="xla")
    for _ in range(5):
        x = (x * 1.5).remainder(2)
        x.sum().item()
    before = live_bytes()
    for _ in range(200):
        x = (x * 1.5).remainder(2)
        x.sum().item()
    assert live_bytes() == before


def test_dropped_tensors_give_their_memory_back() -> None:
    before = live_bytes()
    x = torch.ones(10_000, device="xla")
    assert live_bytes() == before + 40_000
    del x
    assert live_bytes() == before


def test_recording_without_a_sync_does_not_hold_dead_values() -> None:
    before = live_bytes()
    for _ in range(20):
        torch.ones(10_000, device="xla").exp()
    assert live_bytes() == before


# Asynchrony and errors


def test_an_idle_sync_runs_nothing() -> None:
    torch_xla.sync()
    torch_xla.sync(wait=True)
    assert counters.names() == [] or compiles() == 0


def test_a_failed_program_leaves_its_tensors_usable(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.ones(3, device="xla")
    y = x.exp() + 1

    def failing(*_: object) -> None:
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: out of memory while trying to allocate")

    with monkeypatch.context() as patch:
        patch.setattr("torch_xla._engine.compile.program.Program.start", failing)
        with pytest.raises(torch_xla._engine.errors.OutOfMemory, match=r"test_sync.py:\d+ in test_a_failed_program"):
            torch_xla.sync()
    assert y.sum().item() == pytest.approx(3 * (2.718281828 + 1), rel=1e-6)
    assert x.tolist() == [1, 1, 1]


CHECK_OF_THE_CONFIGURATION = """
import jax
def settings():
    return dict(jax.config.values)
before = settings()
import torch, torch_xla
assert settings() == before, "the import changed JAX's configuration"
assert not jax._src.xla_bridge.backends_are_initialized(), "the import started a client"
x = torch.arange(3, device="xla")
m = torch.nn.Linear(3, 2).to("xla")
m(x.float()).sum().backward()
torch_xla.sync(wait=True)
torch.rand(2, device="xla", dtype=torch.float64).tolist()
assert settings() == before, "use changed JAX's configuration"
import jax.numpy as jnp
assert jnp.arange(3).dtype == jnp.int32 and jnp.zeros(2).dtype == jnp.float32
assert jax.jit(lambda a: a + 1)(1.0).dtype == jnp.float32
print("unchanged")
"""


@pytest.mark.slow
def test_the_configuration_of_jax_belongs_to_the_user() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", CHECK_OF_THE_CONFIGURATION],
        capture_output=True,
        text=True,
        cwd=Path(torch_xla.__file__).parents[1],
    )
    assert done.stdout.strip() == "unchanged", done.stderr
