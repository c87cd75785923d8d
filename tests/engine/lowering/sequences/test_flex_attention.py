"""Flex attention beside its formula in float64, with gradients: PyTorch has none of it on the CPU."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch.nn.attention.flex_attention import AuxRequest, BlockMask, create_block_mask, flex_attention

import torch_xla
from torch_xla._engine.metrics.counters import value_of

# PyTorch warns of an unfused implementation for every device; on `xla` it is one operation of the program either way.
pytestmark = [
    pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile"),
    pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is:DeprecationWarning"),  # in modules of PyTorch's own
]

BATCH, HEADS, HEADS_OF_KEYS, QUERIES, KEYS, FEATURES = 2, 4, 2, 150, 170, 8


@dataclass
class Case:
    """One call: functions of captured tensors, and how many heads share one head of keys."""

    score: Callable[..., Any] | None = None
    mask: Callable[..., Any] | None = None
    captured: tuple[torch.Tensor, ...] = ()
    heads: int = HEADS
    through_logarithms: bool = True  # whether the logarithms count in what is differentiated


def document(captured: tuple[torch.Tensor, ...]) -> Callable[..., Any]:
    (of,) = captured
    return lambda b, h, q, k: (of[q] == of[k]) & (q >= k)


def lone_rows(captured: tuple[torch.Tensor, ...]) -> Callable[..., Any]:
    return lambda b, h, q, k: (q >= k) & (q % 3 != 0)


def relative(captured: tuple[torch.Tensor, ...]) -> Callable[..., Any]:
    (bias,) = captured
    return lambda s, b, h, q, k: s + bias[h, q - k + KEYS]


def gated(captured: tuple[torch.Tensor, ...]) -> Callable[..., Any]:
    bias, factor = captured
    return lambda s, b, h, q, k: s * factor[b, h] + bias[q] * 0.5 + bias[k]


def drawn(*size: int) -> torch.Tensor:
    return torch.randn(*size, dtype=torch.float64, generator=torch.Generator().manual_seed(5))


CASES = {
    "plain": Case(),
    "causal": Case(mask=lambda _: lambda b, h, q, k: q >= k),
    "sliding": Case(mask=lambda _: lambda b, h, q, k: (q >= k) & (q - k < 40)),
    "prefix": Case(mask=lambda _: lambda b, h, q, k: (q >= k) | (k < 30)),
    "by-batch-and-head": Case(mask=lambda _: lambda b, h, q, k: q >= k + 10 * h - 20 * b),
    "rows-that-see-nothing": Case(mask=lone_rows),
    "document": Case(mask=document, captured=(torch.arange(KEYS) // 37,)),
    "soft-cap": Case(score=lambda _: lambda s, b, h, q, k: 2 * torch.tanh(s / 2)),
    "alibi": Case(
        score=lambda _: lambda s, b, h, q, k: s + (k - q) * torch.exp2(-(h + 1.0)),
        mask=lambda _: lambda b, h, q, k: q >= k,
    ),
    "learned-alibi": Case(
        score=lambda captured: lambda s, b, h, q, k: s + (k - q) * captured[0][h],
        mask=lambda _: lambda b, h, q, k: q >= k,
        captured=(torch.exp2(-torch.arange(HEADS).double() - 1),),
    ),
    "learned-bias": Case(score=relative, captured=(drawn(HEADS, QUERIES + KEYS),)),
    "two-learned": Case(score=gated, captured=(drawn(KEYS), drawn(BATCH, HEADS))),
    "one-head-of-keys-each": Case(heads=HEADS_OF_KEYS, mask=lambda _: lambda b, h, q, k: q >= k),
}


def operands(case: Case, dtype: torch.dtype, device: str) -> list[torch.Tensor]:
    """Query, key, value and what the case captures: the same numbers for every dtype and device."""
    given = [
        drawn(BATCH, case.heads, QUERIES, FEATURES),
        drawn(BATCH, HEADS_OF_KEYS, KEYS, FEATURES) * 0.7,
        drawn(BATCH, HEADS_OF_KEYS, KEYS, FEATURES + 3),
        *case.captured,
    ]
    moved = [each.detach().clone().to(dtype if each.is_floating_point() else each.dtype).to(device) for each in given]
    return [each.requires_grad_(each.is_floating_point()) for each in moved]


def formula(case: Case) -> list[torch.Tensor]:
    """Output, logarithms and gradients, written out in float64 on the CPU."""
    query, key, value, *captured = operands(case, torch.float64, "cpu")
    groups = case.heads // HEADS_OF_KEYS
    keys, values = (each.repeat_interleave(groups, 1) for each in (key, value))
    scores = query @ keys.mT / FEATURES**0.5
    places: Any = torch.meshgrid(*map(torch.arange, scores.shape), indexing="ij")
    if case.score is not None:
        scores = case.score(tuple(captured))(scores, *places)
    if case.mask is not None:
        scores = scores.masked_fill(~case.mask(tuple(captured))(*places), -torch.inf)
    sees = (scores > -torch.inf).any(-1)
    logarithms = torch.where(sees, scores.where(sees[..., None], 0).logsumexp(-1), -torch.inf)
    weights = scores.where(sees[..., None], 0).softmax(-1) * sees[..., None]
    return results(case, weights @ values, logarithms, [query, key, value, *captured])


def ours(case: Case, dtype: torch.dtype, attend: Callable[..., Any]) -> list[torch.Tensor]:
    query, key, value, *captured = operands(case, dtype, "xla")
    mask = None
    if case.mask is not None:
        mask = create_block_mask(
            case.mask(tuple(captured)), BATCH, case.heads, QUERIES, KEYS, device="xla", BLOCK_SIZE=64
        )
    score = None if case.score is None else case.score(tuple(captured))
    grouped = case.heads != HEADS_OF_KEYS
    also = AuxRequest(lse=True)
    output, found = attend(query, key, value, score, mask, enable_gqa=grouped, return_aux=also)
    return results(case, output, found.lse, [query, key, value, *captured])


def results(
    case: Case, output: torch.Tensor, logarithms: torch.Tensor, given: list[torch.Tensor]
) -> list[torch.Tensor]:
    """The output, the logarithms, and the gradients of one number made of both."""
    finite = logarithms.where(logarithms > -torch.inf, 0)
    counted = (output, finite) if case.through_logarithms else (output,)
    total = sum((each * weights_of(each)).sum() for each in counted)
    differentiable = [each for each in given if each.requires_grad]
    gradients = torch.autograd.grad(total, differentiable)  # type: ignore[arg-type]
    return [each.detach().cpu().double() for each in (output, logarithms, *gradients)]


def weights_of(values: torch.Tensor) -> torch.Tensor:
    """Numbers that every dtype holds exactly."""
    return (torch.arange(values.numel()) % 7 - 3).reshape(values.shape).to(values) / 4


def compiled(*args: Any, **kwargs: Any) -> Any:
    return torch.compile(flex_attention, fullgraph=True)(*args, **kwargs)


@pytest.fixture(autouse=True)
def forget() -> None:
    torch.compiler.reset()


@pytest.mark.parametrize(
    "attend", [pytest.param(flex_attention, marks=pytest.mark.slow), compiled], ids=["recorded", "compiled"]
)
@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients_are_those_of_the_formula(name: str, attend: Callable[..., Any]) -> None:
    for found, expected in zip(ours(CASES[name], torch.float32, attend), formula(CASES[name]), strict=True):
        torch.testing.assert_close(found, expected, rtol=2e-5, atol=2e-5)
    assert not value_of("DynamoGraphByOperator")


@pytest.mark.parametrize("name", ["causal", "two-learned"])
def test_float64_is_exact_to_its_own_precision(name: str) -> None:
    case = replace(CASES[name], through_logarithms=False)  # PyTorch gives them in float32
    found = ours(case, torch.float64, compiled)
    for index, (each, expected) in enumerate(zip(found, formula(case), strict=True)):
        bound = 1e-6 if index == 1 else 1e-12
        torch.testing.assert_close(each, expected, rtol=bound, atol=bound)


@pytest.mark.parametrize("name", ["alibi", "learned-alibi"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_narrow_floats_are_computed_in_float32(dtype: torch.dtype, name: str) -> None:
    for found, expected in zip(ours(CASES[name], dtype, compiled), formula(CASES[name]), strict=True):
        bound = 0.05 if dtype is torch.bfloat16 else 0.006
        torch.testing.assert_close(found, expected, rtol=bound, atol=bound)


@pytest.mark.parametrize("attend", [flex_attention, compiled], ids=["recorded", "compiled"])
def test_captured_tensors_need_no_gradient(attend: Callable[..., Any]) -> None:
    """Of three captured tensors, one has integers, and one is not differentiated."""
    group, offset, table = torch.arange(64) % 5, drawn(64), drawn(5, 5)

    def gradient(attended: Callable[..., torch.Tensor], dtype: torch.dtype, device: str) -> torch.Tensor:
        of, plus = group.to(device), offset.to(device, dtype)
        learned = table.to(device, dtype, copy=True).requires_grad_()
        query = drawn(1, 2, 64, FEATURES).to(device, dtype)
        output = attended(query, query, query, lambda s, b, h, q, k: s + learned[of[q], of[k]] + plus[k])
        (found,) = torch.autograd.grad((output * weights_of(output)).sum(), learned)
        return found.cpu().double()

    def written_out(query: Any, key: Any, value: Any, score: Any) -> torch.Tensor:
        rows, columns = torch.meshgrid(torch.arange(64), torch.arange(64), indexing="ij")
        scores: torch.Tensor = score(query @ key.mT / FEATURES**0.5, None, None, rows, columns)
        return scores.softmax(-1) @ value

    expected = gradient(written_out, torch.float64, "cpu")
    torch.testing.assert_close(gradient(attend, torch.float32, "xla"), expected, rtol=2e-5, atol=2e-5)


def test_blocks_without_a_function_decide_alone() -> None:
    """As with PyTorch's kernels: a block that the mask does not list is left out, and a full one is not masked."""
    query = drawn(1, 1, 256, FEATURES).float().to("xla")
    numbers = torch.tensor([[[1, 1]]], dtype=torch.int32)
    indices = torch.tensor([[[[1, 0], [0, 1]]]], dtype=torch.int32)
    mask = BlockMask.from_kv_blocks(numbers.to("xla"), indices.to("xla"), BLOCK_SIZE=128)
    found = flex_attention(query, query, query, block_mask=mask).cpu()  # type: ignore[union-attr]
    first, second = query.cpu().split(128, 2)
    expected = torch.cat([(a @ b.mT / FEATURES**0.5).softmax(-1) @ b for a, b in ((first, second), (second, first))], 2)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_one_batch_of_keys_may_serve_all_queries() -> None:
    query, key = drawn(3, 2, 64, FEATURES), drawn(1, 2, 64, FEATURES)
    one, other = (each.float().to("xla").requires_grad_() for each in (query, key))
    mask = create_block_mask(lambda b, h, q, k: q >= k, 3, None, 64, 64, device="xla")
    compiled(one, other, other, block_mask=mask).sum().backward()
    query.requires_grad_()
    key.requires_grad_()
    scores = (query @ key.mT / FEATURES**0.5).masked_fill(~torch.ones(64, 64).tril().bool(), -torch.inf)
    (scores.softmax(-1) @ key).sum().backward()
    for found, expected in ((one, query), (other, key)):
        torch.testing.assert_close(found.grad.cpu().double(), expected.grad, rtol=1e-5, atol=1e-5)  # type: ignore[union-attr]


@pytest.mark.parametrize("block", [32, 128, (64, 100)], ids=str)
def test_the_size_of_the_blocks_changes_nothing(block: Any) -> None:
    query = drawn(1, 2, 300, FEATURES).float()
    ours = query.to("xla")

    def mask(device: str) -> BlockMask:
        return create_block_mask(lambda b, h, q, k: (q - k).abs() < 50, 1, 2, 300, 300, device=device, BLOCK_SIZE=block)

    expected = flex_attention(query, query, query, block_mask=mask("cpu"))
    found = flex_attention(ours, ours, ours, block_mask=mask("xla"))
    torch.testing.assert_close(found.cpu(), expected, rtol=1e-5, atol=1e-5)  # type: ignore[union-attr]


def test_memory_grows_with_the_length_and_not_with_its_square() -> None:
    """With 8,192 rows and columns, one matrix of scores in float32 has 256 MiB."""
    attend = torch.compile(flex_attention)
    query = torch.randn(1, 1, 8192, 16).to("xla").requires_grad_()
    numbers = torch.ones(1, 1, 1, dtype=torch.int32).to("xla")
    mask = BlockMask.from_kv_blocks(
        numbers, numbers[..., None] - 1, BLOCK_SIZE=8192, mask_mod=lambda b, h, q, k: q >= k
    )

    def step() -> None:
        attend(query, query, query, block_mask=mask).sum().backward()

    planned = torch_xla.debug.plan(step)
    assert planned.peak < 8192**2 * 4 / 16
    assert not value_of("DynamoGraphByOperator")
