"""Steps whose sizes grow by one: equal to the CPU's, in programs that do not change with the length."""

import functools
from collections.abc import Callable, Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

import torch_xla
from torch_xla._engine.step import growing_sizes
from torch_xla._engine.tensor.spare_capacity import Padded
from torch_xla.debug import metrics


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    text("xla", 40)
    growing_sizes._forms.clear()
    del growing_sizes.why[:]
    yield
    growing_sizes._forms.clear()


def compiled() -> int:
    found = metrics.metric_data("CompileTime")
    return int(found[0]) if found else 0


@functools.cache
@torch.no_grad()
def text(device: str, n: int) -> torch.Tensor:
    """A text of `n` tokens, which are its places: one after the other was appended."""
    if n == 2 or device == "cpu":
        return torch.arange(n).to(device)
    found = torch.cat([text(device, n - 1), torch.tensor([n - 1]).to(device)])
    torch_xla.sync()
    return found


def rows(x: torch.Tensor, n: int) -> torch.Tensor:
    """A table of `n` rows that depends on `x`."""
    return (text(x.device.type, n)[:, None] * 0.3 + x).sin()


# Each takes a vector of four and a length, and returns something of a size that does not change.
STEPS: dict[str, Callable[[torch.Tensor, int], torch.Tensor]] = {
    "sum": lambda x, n: rows(x, n).sum(0),
    "mean": lambda x, n: rows(x, n).mean(0),
    "largest": lambda x, n: -(-rows(x, n)).max(0).values,
    "place": lambda x, n: rows(x, n).argmin(0),
    "softmax": lambda x, n: (rows(x, n) @ x).softmax(-1) @ rows(x, n),
    "causal attention": lambda x, n: _attention(rows(x, n), None)[-1],
    "sliding attention": lambda x, n: _attention(rows(x, n), 4)[-1],
    "heads": lambda x, n: rows(x, n).view(n, 2, 2).transpose(0, 1).sum(1).flatten(),
    "merged": lambda x, n: rows(x, n).reshape(-1).cumsum(0)[-4:],
    "interleaved": lambda x, n: rows(x, n).T.reshape(-1)[:3],
    "last": lambda x, n: rows(x, n)[-1],
    "without the first": lambda x, n: rows(x, n)[1:].sum(0),
    "without the last": lambda x, n: rows(x, n)[:-1].prod(0),
    "concatenated": lambda x, n: torch.cat([rows(x, n), x[None], rows(x, n) * 2]).cumsum(0)[-1],
    "padded": lambda x, n: F.pad(rows(x, n), (0, 0, 0, 40 - n), value=2.0).sum(0),
    "reversed": lambda x, n: rows(x, n).flip(0)[0],
    "sorted": lambda x, n: rows(x, n).sort(0).values[0],
    "chosen": lambda x, n: rows(x, n).topk(2, 0).values.flatten(),
    "indexed": lambda x, n: rows(x, n)[torch.arange(n - 1, n - 3, -1, device=x.device)].flatten(),
    "embedded": lambda x, n: F.embedding(torch.arange(n, device=x.device) % 4, rows(x, 4)).std(0),
    "written": lambda x, n: _written(rows(x, n)),
}


SMALL = {"place", "chosen", "indexed", "interleaved"}  # give no vector of four


def _attention(x: torch.Tensor, window: int | None) -> torch.Tensor:
    place = torch.arange(len(x), device=x.device)
    allowed = place[None] <= place[:, None]
    if window is not None:
        allowed = allowed & (place[None] > place[:, None] - window)
    return (x @ x.T).masked_fill(~allowed, -torch.inf).softmax(-1) @ x


def _written(x: torch.Tensor) -> torch.Tensor:
    x[-1] = 5
    x[0, 1:] += 1
    return x.sum(0)


@pytest.mark.parametrize("name", STEPS)
def test_a_step_whose_size_grows_is_one_program_and_equals_the_cpu(name: str) -> None:
    start = torch.tensor([0.1, -0.7, 1.3, 0.4])
    there, counts = start.to("xla"), []
    for n in [*range(3, 10), 17, 4]:
        before = compiled()
        found = STEPS[name](there, n).cpu()
        counts.append(compiled() - before)
        torch.testing.assert_close(found, STEPS[name](start, n), rtol=2e-5, atol=2e-5)
    assert not growing_sizes.why and sum(counts) <= 3 and not any(counts[3:]), (counts, growing_sizes.why)


@settings(max_examples=12, deadline=None)
@given(
    st.lists(
        st.sampled_from(sorted(set(STEPS) - {"place", "chosen", "indexed", "interleaved"})), min_size=2, max_size=4
    )
)
def test_steps_in_a_row_are_those_of_the_cpu(names: list[str]) -> None:
    start = torch.tensor([0.1, -0.7, 1.3, 0.4], dtype=torch.float64)
    for n in range(4, 9):
        ours, theirs = start.to("xla"), start
        for name in names:
            ours, theirs = (STEPS[name](each, n).flatten().tanh() for each in (ours, theirs))
            ours, theirs = (F.pad(each, (0, 4))[:4] for each in (ours, theirs))
        torch.testing.assert_close(ours.cpu(), theirs)


def test_a_result_that_grows_is_cut_from_its_room_when_it_is_read() -> None:
    x, counts = torch.ones(4).to("xla"), []
    for n in range(3, 9):
        held = rows(x, n)
        before = compiled()
        total = held.sum().item()
        counts.append(compiled() - before)
        assert total == pytest.approx(rows(torch.ones(4), n).sum().item(), rel=1e-5)
    assert counts == [1, 1, 0, 0, 0, 0]
    assert isinstance(held.untyped_storage().value, Padded)  # type: ignore[attr-defined]
    assert held.shape == (8, 4) and held.stride() == (4, 1)
    torch.testing.assert_close(held.cpu(), rows(torch.ones(4), 8))
    held[0] = 3
    torch.testing.assert_close((held * 2).cpu()[:2, 0], torch.tensor([6.0, 2 * held[1, 0].item()]))


def test_a_capacity_is_the_next_power_of_two(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(growing_sizes, "_LEAST", 4)
    x, counts = torch.ones(4, dtype=torch.float64), []
    for n in range(3, 34):
        before = compiled()
        found = STEPS["causal attention"](x.to("xla"), n).cpu()
        counts.append(compiled() - before)
        torch.testing.assert_close(found, STEPS["causal attention"](x, n), rtol=2e-5, atol=2e-5)
    assert sum(counts) == 2 + 4  # for 8, 16, 32 and 64


def test_two_programs_that_take_turns_grow_by_two() -> None:
    x, counts = torch.ones(4, dtype=torch.float64).to("xla"), []
    for n in range(3, 17):
        before = compiled()
        name = "mean" if n % 2 else "softmax"
        torch.testing.assert_close(STEPS[name](x, n).cpu(), STEPS[name](x.cpu(), n))
        counts.append(compiled() - before)
    assert sum(counts) <= 6 and not any(counts[6:]), counts


def test_steps_that_read_no_sequence_that_was_appended_to_keep_their_programs() -> None:
    x, counts = torch.ones(4).to("xla"), []
    shared = metrics.counter_value("GrowingSizesShared")
    for n in (3, 4, 5, 6, 9, 7, 3):
        before = compiled()
        (torch.arange(n, device="xla")[:, None] * 0.3 + x).sum().item()
        counts.append(compiled() - before)
    assert counts == [1, 1, 1, 1, 1, 1, 0] and metrics.counter_value("GrowingSizesShared") == shared


def test_random_numbers_of_a_size_that_grows_are_those_of_its_own_program() -> None:
    for n in range(3, 8):
        torch.manual_seed(n)
        torch_xla.manual_seed(n)
        shared = (torch.rand(n, device="xla") + text("xla", n)).sum().item()
        growing_sizes._forms.clear()
        torch_xla.manual_seed(n)
        assert shared == pytest.approx((torch.rand(n, device="xla") + text("xla", n)).sum().item())


def test_training_on_sizes_that_grow_gives_the_cpus_gradients() -> None:
    weights = [torch.linspace(-1, 1, 4, device=device, requires_grad=True) for device in ("cpu", "xla")]
    for n in range(3, 9):
        for weight in weights:
            weight.grad = None
            STEPS["causal attention"](weight, n).square().sum().backward()
        torch_xla.sync()
        assert weights[0].grad is not None and weights[1].grad is not None
        torch.testing.assert_close(weights[1].grad.cpu(), weights[0].grad, rtol=1e-4, atol=1e-5)


# Rules that halve a size, or choose a form by it.
UNEVEN: dict[str, Callable[[torch.Tensor, int], torch.Tensor]] = {
    "median": lambda x, n: rows(x, n).median(0).values,
    "in the middle": lambda x, n: rows(x, n)[n // 2],
    "first half": lambda x, n: rows(x, n).chunk(2)[0].sum(0),
    "every second": lambda x, n: rows(x, n)[::2].sum(0),
    "distances": lambda x, n: torch.cdist(rows(x, n), rows(x, n)).diagonal(),
    "pooled": lambda x, n: F.max_pool1d(rows(x, n).T, 2, ceil_mode=True).sum(1),
}


@pytest.mark.parametrize("name", UNEVEN)
def test_a_step_that_depends_on_a_size_in_another_way_equals_the_cpu(name: str) -> None:
    x = torch.tensor([0.3, -1.2, 0.8, 2.0])
    on_xla = x.to("xla")
    for n in (*range(6, 16), *range(3, 12), *range(20, 25)):
        found = UNEVEN[name](on_xla, n).cpu()
        torch.testing.assert_close(found, UNEVEN[name](x, n), rtol=1e-5, atol=1e-5)
