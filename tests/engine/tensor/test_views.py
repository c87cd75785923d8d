"""Views: sizes, strides, offsets and elements as on the CPU, however many views are nested."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings

import torch_xla
from tests.support.twins import Program, cases, check_refused, check_same, numbers
from torch_xla._engine.compile.disk import disk_cache
from torch_xla._engine.compile.stages import stage_cuts
from torch_xla._engine.lowering.views.storage_access import READ
from torch_xla._engine.metrics import counters
from torch_xla._engine.step.schedule import clear_schedules
from torch_xla._engine.tensor import views
from torch_xla._engine.tensor.device import device_at
from torch_xla._engine.tensor.storage import value_of


def n(*size: int, d: str, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return numbers(*size, device=d, dtype=dtype)


@cases(
    {
        "transpose": lambda d: n(3, 4, d=d).t(),
        "slice": lambda d: n(3, 4, d=d)[1:, ::2],
        "negative index": lambda d: n(3, 4, d=d)[-1, -2],
        "ellipsis": lambda d: n(2, 3, 4, d=d)[..., 1],
        "new dimension": lambda d: n(3, d=d)[None, :, None],
        "view": lambda d: n(3, 4, d=d).view(2, 6),
        "view of a part": lambda d: n(4, 4, d=d)[:, 1:3].unflatten(0, (2, 2)),
        "permute, then select": lambda d: n(2, 3, 4, d=d).permute(2, 0, 1)[1],
        "expand": lambda d: n(3, 1, d=d).expand(2, 3, 4),
        "diagonal": lambda d: n(4, 5, d=d).diagonal(1),
        "unfold": lambda d: n(3, 6, d=d).unfold(1, 3, 2),
        "movedim, narrow": lambda d: n(2, 3, 4, d=d).movedim(0, 2).narrow(1, 1, 2),
        "squeeze": lambda d: n(1, 3, 1, d=d).squeeze(),
        "split, chunk, unbind": lambda d: (n(4, 3, d=d).split([1, 3]), n(5, d=d).chunk(2), n(2, 3, d=d).unbind(1)),
        "reshape that copies": lambda d: n(3, 4, d=d).t().reshape(12),
        "flatten": lambda d: n(2, 3, 4, d=d)[:, 1:].flatten(1),
        "view of a view of a view": lambda d: n(4, 6, d=d)[1:].t()[::2].unfold(1, 2, 1)[:, 1].unsqueeze(0),
        "as_strided": lambda d: n(12, d=d).as_strided((3, 3), (1, 2), 1),
        "as_strided of a view": lambda d: n(12, d=d)[4:6].as_strided((2, 2), (1, 5)),
        "as_strided that overlaps": lambda d: n(12, d=d).as_strided((3, 4), (2, 1)),
        "as_strided of nothing": lambda d: n(12, d=d).as_strided((0, 3), (1, 1), 40),
    }
)
def test_a_view_is_the_same_view_as_on_the_cpu(program: Program) -> None:
    check_same(program, versions=True)


def test_making_a_view_records_nothing() -> None:
    x = torch.ones(4, 6, device="xla")
    torch_xla.sync()
    code = len(torch_xla._engine.tensor.device.device_at(0).tape.code)
    x[1:].t().unfold(0, 2, 1).expand(3, -1, -1, -1).as_strided((2, 2), (1, 1)).real.detach()
    assert len(torch_xla._engine.tensor.device.device_at(0).tape.code) == code


@cases(
    {
        "past the end": lambda d: n(12, d=d).as_strided((3, 5), (4, 1), 1),
        "past the end of a part": lambda d: n(12, d=d)[2:8].as_strided((13,), (1,)),
        "past the end of a matrix": lambda d: n(3, 4, d=d).as_strided((3, 5), (4, 1), 1),
        "negative offset": lambda d: n(12, d=d).as_strided((3,), (1,), -1),
        "negative stride": lambda d: n(12, d=d).as_strided((3,), (-1,), 5),
        "sizes without strides": lambda d: n(12, d=d).as_strided((3,), (1, 1), 5),
        "in place, past the end": lambda d: n(12, d=d).as_strided_((13,), (1,)),
    }
)
def test_as_strided_cannot_leave_the_storage(program: Program) -> None:
    check_refused(program)


@cases(
    {
        "channels last": torch.channels_last,
        "channels last 3d": torch.channels_last_3d,
    }
)
def test_a_memory_format_survives_what_it_survives_on_the_cpu(program: Program) -> None:
    size = (2, 3, 4, 5) if program is torch.channels_last else (2, 3, 2, 4, 5)

    def use(d: str) -> Any:
        x = n(*size, d=d).contiguous(memory_format=program)
        return (
            [x, x + 1, x * x, x.relu(), x.clone(), x.contiguous(), x.to(torch.float64), x.sum(1), x[:, 1], x[1:]],
            [torch.empty_like(x).stride(), torch.zeros_like(x), torch.full_like(x, 2.0), x.cpu().stride()],
            [x.is_contiguous(), x.is_contiguous(memory_format=program), x + n(*size, d=d), x.t if x.dim() < 3 else 0],
            [x.clone(memory_format=torch.contiguous_format), x.to(d, memory_format=torch.contiguous_format)],
        )

    check_same(use)


def test_strides_of_a_transposed_operand_reach_the_result() -> None:
    def use(d: str) -> Any:
        x = n(3, 4, d=d).t()
        return x + 1, x * x, x.clone(), x.exp(), torch.zeros_like(x), x + n(4, 3, d=d), x.contiguous(), x.double()

    check_same(use)


def test_the_host_sees_the_strides_of_the_device_and_the_other_way_round() -> None:
    dense = torch.arange(24.0).reshape(2, 3, 4).permute(2, 0, 1)
    assert dense.to("xla").stride() == dense.stride()
    assert dense.to("xla").cpu().stride() == dense.stride()
    gaps = torch.arange(24.0).reshape(2, 12)[:, ::3]
    assert gaps.to("xla").stride() == gaps.clone().stride()


@cases(
    {
        "transpose_": lambda d: n(2, 3, 4, d=d).transpose_(0, 1).add_(1),
        "t_": lambda d: n(2, 3, d=d).t_(),
        "unsqueeze_": lambda d: n(2, 3, d=d).unsqueeze_(1),
        "squeeze_": lambda d: n(2, 1, 3, d=d).squeeze_(),
        "squeeze_ of one dimension": lambda d: n(2, 1, 1, d=d).squeeze_(1),
        "swapaxes_": lambda d: n(2, 3, d=d).swapaxes_(0, 1).mul_(2),
        "as_strided_": lambda d: n(12, d=d).as_strided_((2, 2), (1, 3), 2),
        "detach_": lambda d: (n(3, d=d).requires_grad_() * 2).detach_(),
    }
)
def test_a_tensor_can_become_a_view_in_place(program: Program) -> None:
    check_same(program, versions=True)


@cases(
    {
        "as integers": lambda d: n(4, d=d).view(torch.int32),
        "narrower": lambda d: n(2, 4, d=d).view(torch.int16),
        "wider": lambda d: n(2, 4, d=d).view(torch.float64),
        "bytes and back": lambda d: n(4, d=d).view(torch.uint8).view(torch.float32),
        "as complex": lambda d: n(2, 4, d=d).view(torch.complex64),
        "bool as bytes": lambda d: (n(4, d=d) > 1).view(torch.uint8),
        "of a part": lambda d: n(3, 4, d=d)[1:].view(torch.int64),
        "of a transpose": lambda d: n(3, 4, d=d).t().view(torch.int32),
        "bfloat16": lambda d: n(4, d=d).bfloat16().view(torch.int16),
        "float8": lambda d: n(4, d=d).to(torch.float8_e4m3fn).view(torch.uint8),
    }
)
def test_a_storage_can_be_looked_at_as_another_dtype(program: Program) -> None:
    check_same(program, versions=True)


@cases(
    {
        "odd size": lambda d: n(3, d=d).view(torch.float64),
        "narrower transpose": lambda d: n(4, 4, d=d).t().view(torch.int16),
        "gaps": lambda d: n(4, 4, d=d)[:, 1:3].view(torch.float64).view(torch.complex128),
        "other strides": lambda d: n(2, 3, d=d).t().view(6),
        "other number of elements": lambda d: n(6, d=d).view(4),
        "expand to another size": lambda d: n(3, d=d).expand(2, 4),
        "narrow too far": lambda d: n(3, d=d).narrow(0, 2, 2),
        "select too far": lambda d: n(3, d=d).select(0, 3),
        "unfold too far": lambda d: n(3, d=d).unfold(0, 4, 1),
        "permute twice": lambda d: n(3, 3, d=d).permute(0, 0),
        "complex of three": lambda d: torch.view_as_complex(n(3, 3, d=d)),
        "real of a conjugate": lambda d: torch.view_as_real(torch.complex(n(2, d=d), n(2, d=d)).conj()),
        "imag of a real tensor": lambda d: n(3, d=d).imag,
    }
)
def test_views_that_do_not_exist_are_refused_in_the_words_of_the_cpu(program: Program) -> None:
    check_refused(program)


def test_writes_through_another_dtype_reach_the_base() -> None:
    def use(d: str) -> Any:
        ones, byte, words, flags = n(4, d=d), n(4, d=d), n(8, d=d, dtype=torch.uint8), n(4, d=d, dtype=torch.uint8)
        ones.view(torch.int32).fill_(0x3F800000)
        byte.view(torch.uint8)[3] = 0x40
        words.view(torch.int32)[1:].fill_(258)
        flags.view(torch.bool)[2:] = False
        return ones, byte, words, flags

    check_same(use, versions=True)


def test_complex_tensors_share_memory_with_their_parts() -> None:
    def use(d: str) -> Any:
        x = torch.complex(n(2, 3, d=d), n(2, 3, d=d) + 1)
        pairs = torch.view_as_real(x)
        pairs[..., 1] = 5
        x.real[0].mul_(2)
        x.imag[1, 2] = -1
        return x, pairs, x.real, x.imag, torch.view_as_complex(pairs.clone())

    check_same(use, versions=True)


def test_conjugates_are_views_until_somebody_needs_their_elements() -> None:
    def use(d: str) -> Any:
        x = torch.complex(n(2, 3, d=d), n(2, 3, d=d) + 1)
        y = x.conj()
        return y, y.imag, y.resolve_conj(), y.clone(), x.mH, y + 1, y @ x.t(), y.real, y.imag.resolve_neg(), -y, y.abs()

    check_same(use, versions=True)


def test_writes_through_conjugates_and_negatives_reach_the_base() -> None:
    def use(d: str) -> Any:
        x = torch.complex(n(3, d=d), n(3, d=d))
        x.conj().mul_(1j)
        x.conj().imag.add_(1)
        y = x.clone()
        y.conj()[1:] = torch.tensor([2j, 3j], device=d)
        z = torch._neg_view(n(3, d=d))
        z.add_(1)
        w = torch.complex(n(3, d=d), n(3, d=d))
        torch._neg_view(w)[0] = 1 + 1j
        return x, y, z, z.resolve_neg(), w, torch._neg_view(w).conj()

    check_same(use)


@cases(
    {
        "shapes": lambda d: [
            n(d=d)[None],
            n(d=d).view(1, 1),
            n(d=d).expand(2),
            n(d=d).t(),
            n(d=d).squeeze(),
            n(d=d)[...],
        ],
        "reductions": lambda d: [n(d=d).sum(), n(d=d).max(), n(d=d).mean(0), n(d=d).prod(-1), n(d=d).argmax()],
        "numbers": lambda d: [n(d=d).item(), float(n(d=d)), int(n(d=d)), bool(n(d=d)), n(d=d).tolist(), n(d=d).numel()],
        "in place": lambda d: [n(d=d).fill_(2), n(d=d).add_(3)[None].mul_(2), n(2, d=d)[1].zero_()],
    }
)
def test_a_tensor_without_dimensions_is_a_tensor(program: Program) -> None:
    check_same(program)


@cases(
    {
        "shapes": lambda d: [
            n(0, 3, d=d).t(),
            n(0, 3, d=d).view(3, 0),
            n(0, 3, d=d)[:, 1:],
            n(0, d=d)[None].expand(2, 0),
        ],
        "strides": lambda d: [torch.empty(2, 0, 3, device=d).stride(), torch.empty(0, 3, device=d).stride()],
        "reductions": lambda d: [n(0, 3, d=d).sum(), n(0, 3, d=d).sum(0), n(0, 3, d=d).prod(), n(2, 0, d=d).mean(1)],
        "arithmetic": lambda d: [n(0, 3, d=d) + 1, n(0, 3, d=d) @ n(3, 2, d=d), n(2, 0, d=d) @ n(0, 2, d=d)],
        "joining": lambda d: [torch.cat([n(0, 3, d=d), n(2, 3, d=d)]), torch.stack([n(0, d=d), n(0, d=d)])],
        "writing": lambda d: [n(0, 3, d=d).add_(1), n(2, 3, d=d)[:, :0].fill_(3), n(3, d=d)[3:].zero_()],
        "asking": lambda d: [n(0, d=d).any(), n(0, d=d).all(), n(0, d=d).tolist(), n(0, 2, d=d).numel()],
    }
)
def test_an_empty_tensor_is_a_tensor(program: Program) -> None:
    check_same(program)


def _gradients(x: torch.Tensor, i: int) -> torch.Tensor:
    leaf = x.detach().clone().requires_grad_()
    (leaf[i] ** 2 + leaf[i - 5 : i - 3, 1:3].sum()).sum().backward()
    assert leaf.grad is not None
    return leaf.grad


def _overlapping(x: torch.Tensor, i: int) -> torch.Tensor:
    x[i : i + 2].mul_(x[i - 2 : i] + 1)
    return x


PLACES: dict[str, Callable[[torch.Tensor, int], Any]] = {
    "a row": lambda x, i: x[i] * 2,
    "a row from the end": lambda x, i: x[-i] * 2,
    "an element": lambda x, i: x[i, i % 4] + 1,
    "a range": lambda x, i: x[i : i + 3] + 1,
    "a range of columns with a step": lambda x, i: x[1:3, i % 2 : 5 : 2].exp(),
    "a view of a view": lambda x, i: x.t()[1:, i : i + 4][1] + x.view(-1)[4 * i : 4 * i + 4],
    "narrow": lambda x, i: torch.narrow(x, 0, i, 2) @ torch.narrow(x, 0, i, 4).t(),
    "windows that overlap": lambda x, i: x.view(-1)[i:].as_strided((3, 2), (1, 1), i) - 1,
    "a row written": lambda x, i: x.__setitem__(i, x[0] - 3),
    "a row added to": lambda x, i: x[i].add_(1.5),
    "a number written": lambda x, i: x[i : i + 2, 1].fill_(7),
    "rows with a step written": lambda x, i: x[i : i + 5 : 2].mul_(3),
    "a view of a view written": lambda x, i: x.t()[1:3][:, i].copy_(x[2, :2]),
    "parts of one storage": _overlapping,
    "gradients": _gradients,
}


@pytest.mark.parametrize("name", PLACES)
def test_a_place_that_changes_is_an_argument_of_the_program(name: str) -> None:
    ours, theirs = n(13, 4, d="cpu").to("xla"), n(13, 4, d="cpu")
    compiles = []
    for i in (5, 6, 7, 5, 8, 6):
        before = counters.value_of("UncachedCompile") or 0
        results = [PLACES[name](x, i) for x in (ours, theirs)]
        torch_xla.sync()
        compiles.append((counters.value_of("UncachedCompile") or 0) - before)
        if isinstance(results[0], torch.Tensor):
            torch.testing.assert_close(results[0].cpu(), results[1])
        torch.testing.assert_close(ours.cpu(), theirs)
    assert sum(compiles[2:]) == 0, compiles


def counted(name: str) -> int:
    return counters.value_of(name) or 0


def _steps(names: list[str], places: list[int], layers: int, device: str, replays: bool) -> list[torch.Tensor]:
    def step(x: torch.Tensor, i: int) -> list[torch.Tensor]:
        made = [PLACES[name](x, 5 + (i + layer) % 4) for layer in range(layers) for name in names]
        return [each for each in made if isinstance(each, torch.Tensor)]

    called = torch_xla.compile(step, replay=True) if replays else step
    x, found = n(13, 4, d="cpu", dtype=torch.float64).to(device), list[torch.Tensor]()
    for i in places:
        made = called(x, i)
        torch_xla.sync()
        found += [each.detach().cpu().clone() for each in made]
    return [*found, x.cpu()]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*is recorded this time")
@pytest.mark.parametrize(
    ("way", "told"),
    [("replayed", "ReplayedStep"), ("in stages", "StagedProgram"), ("from disk", "PersistentCacheHit")],
)
def test_places_move_alike_in_each_way_of_running(
    way: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if way == "in stages":
        monkeypatch.setenv("XLA_STAGE_OPERATIONS", "1")
        for least in ("LEAST_BYTES", "LEAST_BYTES_ON_HOST"):
            monkeypatch.setattr(stage_cuts, least, 1)
    if way == "from disk":
        monkeypatch.setenv("XLA_PERSISTENT_CACHE_PATH", str(tmp_path / "cache"))
        monkeypatch.setattr(disk_cache, "WORTH_KEEPING_SECONDS", 0.0)
    before = counted(told)

    @settings(max_examples=6, deadline=None, derandomize=True)
    @given(
        st.lists(st.sampled_from(sorted(PLACES)), min_size=1, max_size=3, unique=True),
        st.lists(st.integers(0, 3), min_size=2, max_size=3),
    )
    def alike(names: list[str], few: list[int]) -> None:
        clear_schedules()
        places, layers = few + [few[-1]] * 4 * (way == "replayed"), 8 if way == "in stages" else 1
        expected = _steps(names, places, layers, "cpu", False)
        for _ in range(2 if way == "from disk" else 1):
            for ours, theirs in zip(_steps(names, places, layers, "xla", way == "replayed"), expected, strict=True):
                torch.testing.assert_close(ours, theirs, equal_nan=True)
            clear_schedules()

    alike()
    assert counted(told) > before


def test_a_place_that_stays_is_a_constant_where_others_change() -> None:
    x, outer = n(9, 4, d="cpu").to("xla"), n(3, 6, d="cpu").to("xla")
    for i, scale in enumerate([1.5, 1.5, 2.5, 3.5, 4.5]):
        both = (x[i] * scale).sum() + outer[:, 2:4].sum()
        torch.testing.assert_close(both.cpu(), (x.cpu()[i] * scale).sum() + outer.cpu()[:, 2:4].sum())
    schedule = device_at(0).last_schedule
    assert schedule is not None and schedule.program is not None
    program, operations = schedule.program, schedule.cut.graph.operations
    constant = {o.first_number for o in operations if o.plan.op == READ and o.plan.operands[0].size == (3, 6)}
    assert len(constant) == 1 and constant.isdisjoint(program.arguments)
    assert len(program.arguments) == len(program.graph.number_types) - 1


def test_other_memory_of_a_plan_that_is_known_is_refused_as_well() -> None:
    for device in ("cpu", "xla"):
        one, other = n(6, d=device), n(7, d=device)
        one[:4].add_(other[1:5])
        with pytest.raises(RuntimeError, match="unsupported operation"):
            one[:4].add_(one[1:5])
        with pytest.raises(RuntimeError, match="unsupported operation"):
            one[2:6].add_(one[1:5])


def test_reading_a_view_twice_computes_it_once() -> None:
    x = torch.arange(12.0, device="xla").view(3, 4)
    torch_xla.sync()
    before = counters.value_of("xla::read_view") or 0
    y = x.t() + 1
    z = x.t() * 2
    torch_xla.sync()
    assert counters.value_of("xla::read_view") == before + 1
    assert torch.equal(y.cpu() * 2 - 2, z.cpu())


@pytest.mark.parametrize("size", [(3, 4), (0, 4), (1,), ()])
def test_alias_chains_show_one_memory(size: tuple[int, ...]) -> None:
    x = torch.zeros(size, device="xla")
    aliases = [x.view(-1), x.detach(), x.data, x[...], x.unsqueeze(0), x.view_as(x), x.expand_as(x)]
    x.add_(1)
    assert all(bool((alias == 1).all()) for alias in aliases)


@pytest.mark.parametrize("make", [views.new_read_plan, views.new_write_plan])
def test_views_that_differ_only_in_their_offset_share_a_plan(make: Callable[[Any, Any], Any]) -> None:
    x = torch.zeros(5, 3, device="xla")
    first, second = views.view_of(x[1]), views.view_of(x[2])
    assert first is views.view_of(x[1]) and first is not second and first.kind is second.kind
    plan = make(value_of(x).spec, first)
    assert plan is make(value_of(x).spec, second) and plan.numbers == (int,)
    assert plan is not make(value_of(x).spec, views.view_of(x[1:3]))
