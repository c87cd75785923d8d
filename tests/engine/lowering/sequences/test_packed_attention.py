"""Attention of packed sequences beside the formula for each sequence by itself, in float64, with gradients."""

import importlib
from collections.abc import Callable
from typing import Any

import pytest
import torch

from torch_xla._engine.metrics.counters import value_of

# Importing it imports Dynamo.
varlen: Any = importlib.import_module("torch.nn.attention.varlen")

HEADS, FEATURES = 4, 8
WINDOWS = [(-1, -1), (-1, 0), (3, 0), (2, 2), (0, 4)]
LENGTHS = [[5, 15, 17], [37], [1, 1, 35], [0, 20, 0, 17], [12, 12, 13]]


def drawn(*size: int, seed: int = 3) -> torch.Tensor:
    return torch.randn(*size, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def starts(lengths: list[int]) -> torch.Tensor:
    return torch.tensor([0, *torch.tensor(lengths).cumsum(0)], dtype=torch.int32)


def of_one(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, window: tuple[int, int]) -> torch.Tensor:
    """Attention of one sequence, whose last query belongs to its last key."""
    heads = query.shape[1] // key.shape[1]
    query, key, value = (each.transpose(0, 1) for each in (query, key, value))
    key, value = (each.repeat_interleave(heads, 0) for each in (key, value))
    scores = query @ key.mT / FEATURES**0.5
    rows, columns = (torch.arange(size) for size in scores.shape[-2:])
    own = rows[:, None] + len(columns) - len(rows)
    seen = torch.ones_like(own == columns)
    if window[0] >= 0:
        seen &= columns >= own - window[0]
    if window[1] >= 0:
        seen &= columns <= own + window[1]
    sees_any = seen.any(-1, keepdim=True)
    scores = scores.masked_fill(~seen, -torch.inf).where(sees_any, 0)
    return ((scores.softmax(-1) * sees_any) @ value).transpose(0, 1)


def formula(query: Any, key: Any, value: Any, lengths: list[int], of_keys: list[int], window: Any) -> torch.Tensor:
    parts = zip(query.split(lengths), key.split(of_keys), value.split(of_keys), strict=True)
    return torch.cat([of_one(*part, window) for part in parts])


def gradients(output: torch.Tensor, operands: list[torch.Tensor]) -> list[torch.Tensor]:
    weights = (torch.arange(output.numel()) % 7 - 3).reshape(output.shape).to(output) / 4
    found = torch.autograd.grad((output * weights).sum(), operands)
    return [each.detach().cpu().double() for each in (output, *found)]


def operands(total: int, keys: int, dtype: torch.dtype, device: str, heads_of_keys: int = 2) -> list[torch.Tensor]:
    sizes = (total, HEADS), (keys, heads_of_keys), (keys, heads_of_keys)
    return [drawn(*size, FEATURES, seed=seed).to(dtype).to(device).requires_grad_() for seed, size in enumerate(sizes)]


def recorded(*args: Any, **kwargs: Any) -> Any:
    return varlen.varlen_attn(*args, **kwargs)


def compiled(*args: Any, **kwargs: Any) -> Any:
    return torch.compile(varlen.varlen_attn, backend="openxla", fullgraph=True)(*args, **kwargs)


@pytest.mark.parametrize("attend", [recorded, compiled])
@pytest.mark.parametrize("window", WINDOWS, ids=str)
def test_each_sequence_attends_to_itself(window: tuple[int, int], attend: Callable[..., Any]) -> None:
    lengths = [5, 15, 17]
    expected = operands(37, 37, torch.float64, "cpu")
    found = operands(37, 37, torch.float32, "xla")
    at = starts(lengths).to("xla")
    output = attend(*found, at, at, 17, 17, window_size=window, enable_gqa=True)
    for ours, theirs in zip(
        gradients(output, found), gradients(formula(*expected, lengths, lengths, window), expected), strict=True
    ):
        torch.testing.assert_close(ours, theirs, rtol=2e-5, atol=2e-5)
    assert not value_of("DynamoGraphByOperator")


def test_keys_may_have_other_lengths_than_queries() -> None:
    lengths, of_keys, window = [4, 20, 9], [30, 150, 20], (-1, 0)
    expected, found = operands(33, 200, torch.float64, "cpu", 4), operands(33, 200, torch.float64, "xla", 4)
    output, logarithms = varlen.varlen_attn(
        *found, starts(lengths).to("xla"), starts(of_keys).to("xla"), 20, 150, window_size=window,
        return_aux=varlen.AuxRequest(lse=True),
    )  # fmt: skip
    assert logarithms.shape == (4, 33)
    for ours, theirs in zip(
        gradients(output, found), gradients(formula(*expected, lengths, of_keys, window), expected), strict=True
    ):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("attend", [recorded, compiled])
def test_all_divisions_of_a_total_are_one_program(attend: Callable[..., Any]) -> None:
    expected, found = operands(37, 37, torch.float64, "cpu"), operands(37, 37, torch.float32, "xla")
    before = 0
    for lengths in LENGTHS:
        lengths = lengths + [0] * (4 - len(lengths))  # an array of starts has one size in one program
        at = starts(lengths).to("xla")
        output = attend(*found, at, at, max(lengths), max(lengths), window_size=(-1, 0), enable_gqa=True)
        wanted = formula(*expected, lengths, lengths, (-1, 0))
        torch.testing.assert_close(output.detach().cpu().double(), wanted.detach(), rtol=2e-5, atol=2e-5)
        compilations = value_of("UncachedCompile")
        assert compilations == before or not before
        before = compilations


def test_rows_behind_the_last_sequence_are_zeros() -> None:
    query, key, value = (each.detach() for each in operands(40, 40, torch.float32, "xla", 4))
    at = starts([10, 20]).to("xla")
    found = varlen.varlen_attn(query, key, value, at, at, 20, 20).cpu()
    assert found[30:].abs().sum() == 0 and found[:30].abs().sum() > 0


def test_pages_give_what_dense_keys_give() -> None:
    used, page, pages = [7, 16, 3], 4, 12
    pool = [drawn(pages, page, 2, FEATURES, seed=seed).float() for seed in (1, 2)]
    table = torch.tensor([[3, 0, 9, 9], [1, 2, 5, 7], [11, 4, 4, 4]], dtype=torch.int32)
    query = drawn(9, HEADS, FEATURES).float()
    lengths = [3, 5, 1]
    dense = [torch.cat([each[table[i]].flatten(0, 1)[:n] for i, n in enumerate(used)]).double() for each in pool]
    expected = formula(query.double(), *dense, lengths, used, (-1, 0))
    found = varlen.varlen_attn(
        query.to("xla"), *(each.to("xla") for each in pool), starts(lengths).to("xla"), None, 5, 16,
        window_size=(-1, 0), enable_gqa=True, block_table=table.to("xla"),
        seqused_k=torch.tensor(used, dtype=torch.int32).to("xla"),
    )  # fmt: skip
    torch.testing.assert_close(found.cpu().double(), expected, rtol=1e-5, atol=1e-5)


def test_of_sequences_of_one_length_a_part_may_be_used() -> None:
    query, key, value = (each.detach() for each in operands(30, 30, torch.float64, "cpu", 4))
    at, used = starts([10, 20]), torch.tensor([10, 6], dtype=torch.int32)
    found = varlen.varlen_attn(
        *(each.to("xla") for each in (query, key, value, at, at)), 20, 20, seqused_k=used.to("xla")
    )
    expected = torch.cat(
        [of_one(query[:10], key[:10], value[:10], (-1, -1)), of_one(query[10:], key[10:16], value[10:16], (-1, -1))]
    )
    torch.testing.assert_close(found.cpu(), expected, rtol=1e-12, atol=1e-12)


def test_dense_batches_and_slopes() -> None:
    """The operator itself takes (batch, row, head, feature), and slopes by head."""
    query, key, value = (drawn(2, size, HEADS, FEATURES, seed=size) for size in (20, 30, 30))
    slopes = torch.tensor([0.5, 0.25, 0.125, 0.0625])
    found = torch.ops.aten._flash_attention_forward(
        *(each.to("xla") for each in (query, key, value)), None, None, 20, 30, 0.0, True, False,
        alibi_slopes=slopes.to("xla"),
    )  # fmt: skip
    rows, columns = torch.arange(20)[:, None] + 10, torch.arange(30)
    scores = torch.einsum("bqhd,bkhd->bhqk", query, key) / FEATURES**0.5
    scores = scores - slopes[:, None, None] * (rows - columns).abs()
    expected = torch.einsum("bhqk,bkhd->bqhd", scores.masked_fill(columns > rows, -torch.inf).softmax(-1), value)
    torch.testing.assert_close(found[0].cpu(), expected, rtol=1e-10, atol=1e-10)
    assert found[1].shape == (2, HEADS, 20)


def test_an_output_may_be_given() -> None:
    query, key, value = (each.detach() for each in operands(37, 37, torch.float32, "xla", 4))
    at = starts([5, 15, 17]).to("xla")
    out = torch.empty_like(query)
    varlen.varlen_attn_out(out, query, key, value, at, at, 17, 17)
    assert torch.equal(out, varlen.varlen_attn(query, key, value, at, at, 17, 17))


def test_what_is_not_supported_says_what_to_do() -> None:
    query = torch.ones(4, 1, 8, device="xla")
    at = starts([4]).to("xla")
    with pytest.raises(NotImplementedError, match="scaled_dot_product_attention, which has dropout"):
        torch.ops.aten._flash_attention_forward(query, query, query, at, at, 4, 4, 0.5, False, False)
    with pytest.raises(RuntimeError, match="3 heads of queries cannot share 2 heads of keys"):
        three, two = torch.ones(4, 3, 8, device="xla"), torch.ones(4, 2, 8, device="xla")
        torch.ops.aten._flash_attention_forward(three, two, two, at, at, 4, 4, 0.0, False, False)


@pytest.mark.parametrize("attend", [recorded, compiled])
@pytest.mark.parametrize(
    ("name", "dtype"), [("cu_seq_q", torch.int64), ("cu_seq_k", torch.float32), ("seqused_k", torch.int64)]
)
def test_places_that_are_not_int32_are_refused(name: str, dtype: torch.dtype, attend: Callable[..., Any]) -> None:
    torch._dynamo.reset()  # it compiles a function for few dtypes
    query, at = torch.ones(4, 1, 8, device="xla"), starts([4])
    given: dict[str, Any] = {"cu_seq_q": at, "cu_seq_k": at, "seqused_k": at[1:]}
    given = {key: each.to(dtype if key == name else torch.int32).to("xla") for key, each in given.items()}
    said = f"{name.replace('cu_', 'cum_')} must have dtype int32; got {str(dtype).removeprefix('torch.')}"
    with pytest.raises(RuntimeError, match=said):
        attend(query, query, query, max_q=4, max_k=4, **given)
