"""`flex_attention`: scores and masks by functions of the user's.

It has no gradient on the CPU: the same attention is written out there.
"""

from typing import Any

import pytest
import torch
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from torch_xla._engine.metrics.counters import value_of


def leaning(score: Any, batch: Any, head: Any, query: Any, key: Any) -> Any:
    return score + 0.1 * (query - key) * (head + 1)


def causal(batch: Any, head: Any, query: Any, key: Any) -> Any:
    return query >= key


def written_out(query: Any, key: Any, value: Any, **_: Any) -> torch.Tensor:
    heads, queries, keys = (
        torch.arange(size)[(...,) + (None,) * after] for size, after in ((2, 2), (128, 1), (128, 0))
    )
    scores = leaning(query @ key.mT / query.shape[-1] ** 0.5, None, heads, queries, keys)
    return scores.masked_fill(~causal(None, None, queries, keys), -torch.inf).softmax(-1) @ value


def attended(attend: Any, device: str) -> tuple[torch.Tensor, torch.Tensor]:
    """The result and the gradient of all three operands, which are one tensor."""
    values = torch.randn(1, 2, 128, 16, generator=torch.Generator().manual_seed(0)).to(device).requires_grad_()
    mask = create_block_mask(causal, None, None, 128, 128, device=device)
    found = attend(values, values, values, score_mod=leaning, block_mask=mask)
    (gradient,) = torch.autograd.grad(found.square().sum(), values)
    return found.detach().cpu(), gradient.cpu()


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_functions_change_scores_and_mask_keys() -> None:
    for found, expected in zip(attended(flex_attention, "xla"), attended(written_out, "cpu"), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_a_compiled_one_gives_the_same() -> None:
    compiled = torch.compile(flex_attention, backend="openxla")
    for found, expected in zip(attended(compiled, "xla"), attended(written_out, "cpu"), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def biased(device: str, rows: int, by_head: torch.Tensor, by_distance: torch.Tensor) -> list[torch.Tensor]:
    """The gradients of values and of two tensors that the function captures."""
    dtype = torch.float64 if device == "cpu" else torch.float32
    values = torch.randn(1, 4, rows, 8, generator=torch.Generator().manual_seed(rows), dtype=torch.float64)
    values, by_head, by_distance = (
        each.detach().to(dtype).to(device).requires_grad_() for each in (values, by_head, by_distance)
    )

    def score(plain: Any, batch: Any, head: Any, query: Any, key: Any) -> Any:
        return plain * torch.sigmoid(by_head[head]) + by_distance[query - key + rows]

    if device == "cpu":
        heads, queries, keys = torch.arange(4)[:, None, None], torch.arange(rows)[:, None], torch.arange(rows)
        found = score(values @ values.mT / 8**0.5, 0, heads, queries, keys).softmax(-1) @ values
    else:
        found = flex_attention(values, values, values, score_mod=score)
    gradients = torch.autograd.grad(found.square().sum(), [values, by_head, by_distance])
    return [each.cpu().double() for each in gradients]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_captured_sizes_may_change_from_call_to_call() -> None:
    """Dynamo makes them symbols in the second call, and captures a number, which has no gradient."""
    for rows in (6, 9, 7):
        given = rows, torch.linspace(-1, 1, 4), torch.linspace(-1, 2, 2 * rows)
        for found, expected in zip(biased("xla", *given), biased("cpu", *given), strict=True):
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    assert not value_of("DynamoGraphByOperator")
