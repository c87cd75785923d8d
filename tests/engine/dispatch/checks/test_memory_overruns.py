"""Calls that would leave the memory of their tensors on the CPU are refused; it does not check them, and may crash."""

import pytest
import torch


def observe(sizes: tuple[int, int, int, int], per_row: bool, observer: int = 1) -> torch.Tensor:
    low, high, scale, zero = sizes
    x = torch.arange(12.0, device="xla").reshape(3, 4)
    on, off = (torch.full((1,), flag, device="xla") for flag in (observer, 0))
    state = [torch.zeros(size, device="xla") for size in (low, high, scale)]
    state.append(torch.zeros(zero, dtype=torch.int32, device="xla"))
    return torch.fused_moving_avg_obs_fake_quant(x, on, off, *state, 0.01, 0, 255, 0, per_row, False)


@pytest.mark.filterwarnings("ignore:.*_fused_moving_avg_obs_fq_helper has no XLA lowering")
@pytest.mark.parametrize(
    ("sizes", "per_row", "name", "count"),
    [
        ((0, 1, 1, 1), False, "running_min", 0),
        ((1, 0, 1, 1), False, "running_max", 0),
        ((1, 1, 0, 1), False, "scale", 0),
        ((1, 1, 1, 0), False, "zero_point", 0),
        ((1, 3, 3, 3), True, "running_min", 1),
        ((3, 2, 3, 3), True, "running_max", 2),
        ((4, 4, 1, 3), True, "scale", 1),
        ((3, 3, 3, 2), True, "zero_point", 2),
    ],
)
def test_statistics_that_are_too_short_are_refused(
    sizes: tuple[int, int, int, int], per_row: bool, name: str, count: int
) -> None:
    needed = "3 elements in {}, one for each channel" if per_row else "1 element in {}, for the whole tensor"
    with pytest.raises(ValueError, match=f"expects {needed.format(name)}, but it has {count}: make it"):
        observe(sizes, per_row)


@pytest.mark.filterwarnings("ignore:.*_fused_moving_avg_obs_fq_helper has no XLA lowering")
def test_statistics_that_are_long_enough_or_not_touched_are_taken() -> None:
    for sizes, per_row, observer in (((0, 2, 1, 1), True, 1), ((1, 1, 1, 1), False, 1), ((0, 0, 1, 1), False, 0)):
        assert observe(sizes, per_row, observer).shape == (3, 4)


@pytest.mark.parametrize(("offsets", "words"), [([0, 2, 1], "1 comes after 2"), ([0, -1], "-1 comes after 0")])
@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_bags_that_end_before_they_begin_are_refused(offsets: list[int], words: str, mode: str) -> None:
    weight, indices = torch.ones(4, 3, device="xla"), torch.tensor([1, 2, 1], device="xla")
    with pytest.raises(RuntimeError, match=words):
        torch.nn.functional.embedding_bag(indices, weight, torch.tensor(offsets, device="xla"), mode=mode)
    found = torch.nn.functional.embedding_bag(indices, weight, torch.tensor([0, 2, 2, 3], device="xla"), mode="sum")
    assert found[:, 0].tolist() == [2.0, 0.0, 1.0, 0.0]
