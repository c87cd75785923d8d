"""Tensors given as `out=`: an interrupt finds all of them written, or none; numbers are taken as on the CPU."""

import functools
import gc
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest
import torch

import torch_xla
from tests.support.ways_to_run import made_to_run
from torch_xla import _engine
from torch_xla._engine.compat.names.torch import OpOverload, schema_of, takes_numbers_as_tensors
from torch_xla._engine.dispatch.op_schema import form_of, operator_of, overload_for

HERE = _engine.__path__[0]


class Interrupting:
    """Raises `KeyboardInterrupt` where Python would: at a beginning or behind a call, both counted from 0.

    Not behind the function that takes a lock from Python 3.14 on, where Python does not look (`atomic.py`).
    """

    def __init__(self, at: int) -> None:
        self.left = at

    def __call__(self, frame: FrameType, kind: str, _: object) -> None:
        is_taken = kind == "return" and frame.f_code.co_qualname == "_Lock.__enter__"
        if kind != "c_call" and not is_taken and frame.f_code.co_filename.startswith(HERE):
            self.left -= 1
            if self.left == -1:
                raise KeyboardInterrupt


def interrupted(call: Callable[[], Any], at: int) -> bool:
    before = sys.getprofile()
    gc.disable()  # what a callback or finalizer raises ends there: no interrupt of the call
    sys.setprofile(Interrupting(at))
    try:
        call()
    except KeyboardInterrupt:
        return True
    finally:
        sys.setprofile(before)
        gc.enable()
    return False


def _max(sizes: tuple[int, int], device: str) -> tuple[list[torch.Tensor], Callable[[], Any]]:
    x = torch.tensor([[1.0, 3.0], [2.0, 0.0], [5.0, 6.0]]).to(device)
    whole = torch.full((sizes[0] + 2,), 7.0).to(device)
    places = torch.full((sizes[1],), 7).to(device)
    values = whole[1 : 1 + sizes[0]]
    return [whole, values, places], lambda: torch.max(x, 1, out=(values, places))


def _statistics(device: str) -> tuple[list[torch.Tensor], Callable[[], Any]]:
    mean, var, x = (
        torch.zeros(2).to(device),
        torch.ones(2).to(device),
        torch.tensor([[1.0, 2.0], [5.0, 8.0]]).to(device),
    )
    return [mean, var], lambda: torch.nn.functional.batch_norm(x, mean, var, training=True)


CASES: dict[str, Callable[[str], tuple[list[torch.Tensor], Callable[[], Any]]]] = {
    "tensors of this size": lambda device: _max((3, 3), device),
    "both resized": lambda device: _max((2, 0), device),
    "one resized beyond its memory": lambda device: _max((0, 3), device),
    "statistics": _statistics,
}


def _seen(tensors: list[torch.Tensor]) -> list[Any]:
    return [tensor.tolist() for tensor in tensors]


@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
@pytest.mark.parametrize("name", list(CASES))
def test_an_interrupt_finds_all_written_or_none(name: str) -> None:
    theirs, call = CASES[name]("cpu")
    before = _seen(theirs)
    call()
    after = [tensor.tolist() for tensor in theirs]
    tensors, call = CASES[name]("xla")
    call()
    assert _seen(tensors)[1:] == after[1:] if "resized" in name else _seen(tensors) == after
    after = _seen(tensors)  # of memory that grows, PyTorch's elements beyond are anything
    at = 0
    while True:
        tensors, call = CASES[name]("xla")
        torch_xla.sync()
        if not interrupted(call, at):
            break
        assert _seen(tensors) in (before, after), at
        at += 1
    assert at > 30
    assert _seen(tensors) == after


OUT_DTYPES = (torch.half, torch.bfloat16, torch.int64, torch.float64, torch.complex64, torch.bool)


def _siblings(op: OpOverload) -> list[OpOverload]:
    """Return the overloads like this one with an `out=`, that take a number for one of its tensors."""
    ours = {a.name: str(a.type) for a in schema_of(op).arguments}
    found = []
    for overload in op.overloadpacket.overloads():
        other = getattr(op.overloadpacket, overload)
        theirs = {a.name: str(a.type) for a in schema_of(other).arguments}
        changed = {(kind, theirs.get(name)) for name, kind in ours.items() if theirs.get(name) != kind}
        if list(theirs) == list(ours) and form_of(other) is form_of(op) and changed == {("Tensor", "number")}:
            found.append(other)
    return found


def _with_numbers() -> list[str]:
    """Return every overload with an `out=` and a number that another overload of its operator takes as a tensor."""
    packets = {schema.name: schema for schema in torch._C._jit_get_all_schemas() if schema.name.startswith("aten::")}
    found = set()
    for schema in packets.values():
        packet = getattr(torch.ops.aten, schema.name.removeprefix("aten::"))
        overloads = [getattr(packet, name) for name in packet.overloads()]
        writing = [op for op in overloads if any(a.is_out for a in schema_of(op).arguments)]
        found |= {sibling.name() for op in writing for sibling in _siblings(op)}
    return sorted(found)


def _calls(op: OpOverload) -> list[Callable[[str], Any]]:
    """Return calls of an overload: every dtype of `out=`, and for one of them sizes that do not fit."""
    given: list[Any] = []
    for argument in schema_of(op).arguments:
        kind = str(argument.type)
        if not argument.kwarg_only:
            tensor = torch.tensor([3.0, 1.0, 2.0]) if not given else torch.tensor([2.0, 1.0, 3.0])
            values = {"Tensor": tensor, "number": 2.5, "int": 3}
            given.append(values[kind] if kind in values else argument.default_value)

    def call(device: str, dtype: torch.dtype, size: int, operands: torch.dtype) -> Any:
        is_of_places = any(name in op.name() for name in ("index_fill", "masked_fill"))
        args = [a.to(device, operands) if isinstance(a, torch.Tensor) else a for a in given]
        args = [int(a) if isinstance(a, float) and operands is torch.int64 else a for a in args]
        if is_of_places:
            places = torch.tensor([0, 2]) if "index" in op.name() else torch.tensor([True, False, True])
            args[-2:] = [places.to(device), args[-1]]
            args[1:-2] = [0] if "index" in op.name() else []
        out = torch.zeros(size, dtype=dtype, device=device)
        op(*args, out=out)
        return out

    return [
        functools.partial(call, dtype=dtype, size=size, operands=operands)
        for operands in (torch.float32, torch.int64)
        for dtype in OUT_DTYPES
        for size in ((3, 5, 0) if dtype is torch.half else (3,))
    ]


def _outcome(call: Callable[[str], torch.Tensor], device: str) -> Any:
    try:
        return call(device)
    except Exception as refusal:  # whatever the CPU raises is expected
        return type(refusal)


def _unlike_the_cpu(names: list[str]) -> list[str]:
    """Return the calls of these overloads that are refused on one device alone, or in another way, or give others."""
    pairs = [
        (f"{name} {call.keywords}", *(_outcome(call, device) for device in ("cpu", "xla")))  # type: ignore[attr-defined]
        for name in names
        for call in _calls(operator_of(name).overload)
    ]
    torch_xla.sync()  # all of them in one program
    unlike = []
    for what, expected, found in pairs:
        if isinstance(expected, torch.Tensor) and isinstance(found, torch.Tensor):
            rough = {"rtol": 2e-2, "atol": 1e-3} if expected.dtype.itemsize == 2 else {}
            try:
                torch.testing.assert_close(found.cpu(), expected, equal_nan=True, **rough)
            except AssertionError as difference:
                unlike.append(f"{what}: {difference}")
        elif not isinstance(expected, type) or not isinstance(found, type) or not issubclass(found, expected):
            unlike.append(f"{what}: {found}, not {expected}")
    return unlike


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("way", ["recorded", "eager"])
def test_a_number_beside_an_out_is_taken_as_on_the_cpu(way: str) -> None:
    names = _with_numbers()
    with made_to_run(way, _unlike_the_cpu) as unlike:
        assert not unlike(names[:: len(names) // 6])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_every_number_beside_an_out_is_taken_as_on_the_cpu() -> None:
    names = _with_numbers()
    assert len(names) > 50
    assert not _unlike_the_cpu(names)


def test_an_overload_that_takes_numbers_is_called_with_numbers() -> None:
    for name in _with_numbers():
        wrapping = operator_of(name).overload
        places = [str(a.type) for a in schema_of(wrapping).arguments]
        numbers = tuple(2.5 if kind == "number" else torch.ones(1) for kind in places)
        for sibling in (other for other in _overloads(wrapping) if wrapping in _siblings(other)):
            takes_both = takes_numbers_as_tensors(schema_of(sibling).name.partition("::")[2])
            assert overload_for(operator_of(sibling.name()), numbers) is (sibling if takes_both else wrapping)
            assert overload_for(operator_of(sibling.name()), (torch.ones(1),) * len(places)) is sibling


def _overloads(op: OpOverload) -> list[OpOverload]:
    return [getattr(op.overloadpacket, name) for name in op.overloadpacket.overloads()]


def test_an_out_is_refused_for_the_dtype_that_is_asked_for() -> None:
    """Two calls that differ in `out_dtype=` alone: the CPU takes the first."""
    for device in ("cpu", "xla"):
        one, factor = torch.ones(16, 16, device=device).to(torch.float8_e4m3fn), torch.ones((), device=device)
        out = torch.empty(16, 16, device=device)
        torch._scaled_mm(one, one.t(), factor, factor, out=out)
        assert out[0, 0] == 16
        # Which of the two, depends on the processor: on some, PyTorch has another kernel.
        with pytest.raises((ValueError, RuntimeError), match="out_dtype must match"):
            torch._scaled_mm(one, one.t(), factor, factor, out_dtype=torch.float8_e4m3fn, out=out)


@pytest.mark.parametrize("way", ["recorded", "eager"])
def test_some_operators_resize_without_a_warning(way: str) -> None:
    def resized(x: torch.Tensor) -> list[torch.Tensor]:
        outs = [torch.ones(5, dtype=x.dtype, device=x.device) for _ in range(4)]
        torch.addbmm(x, x[None], x[None], out=outs[0])
        torch.eye(3, out=outs[1])
        torch.narrow_copy(x, 0, 0, 1, out=outs[2])
        torch.bernoulli(x, out=outs[3])
        return outs

    x = torch.eye(3)
    with made_to_run(way, resized) as function:
        for ours, theirs in zip(function(x.to("xla")), resized(x), strict=True):
            assert torch.equal(ours.cpu(), theirs)


def test_a_warning_of_zeros_that_the_cpu_is_asked_with_is_not_shown() -> None:
    # Warnings are errors: for a mask of zeros the CPU resizes `out` to nothing.
    x, mask = torch.arange(4.0), torch.tensor([True, False, True, True])
    out = torch.zeros(3, device="xla")
    torch.masked_select(x.to("xla"), mask.to("xla"), out=out)
    assert out.tolist() == [0, 2, 3]


@pytest.mark.filterwarnings(
    "ignore:An output with one or more elements was resized", "ignore:aten::linalg_eig has no XLA"
)
@pytest.mark.parametrize("size", [(0,), (2,), (3, 3), (4, 4)], ids=str)
def test_matrices_have_the_order_of_the_cpu_in_an_out_that_is_resized(size: tuple[int, ...]) -> None:
    x = torch.tensor([[4.0, 1.0, 0.5], [1.0, 3.0, 0.0], [0.5, 0.0, 2.0]])

    def strides(device: str) -> list[tuple[int, ...]]:
        a = x.to(device)
        outs = [torch.ones(size, device=device) for _ in range(3)]
        torch.cholesky_inverse(a, out=outs[0])
        torch.geqrf(a, out=(outs[1], torch.ones(3, device=device)))
        torch.linalg.householder_product(a, a[0], out=outs[2])
        vectors = torch.ones(size, device=device, dtype=torch.complex64)
        torch.linalg.eig(a, out=(torch.ones(3, device=device, dtype=torch.complex64), vectors))
        return [out.stride() for out in (*outs, vectors)]

    assert strides("xla") == strides("cpu")


def test_a_sum_with_an_outer_product_takes_no_out_of_the_cpu_or_across_its_operand() -> None:
    a, b = torch.zeros(3, 2, device="xla"), torch.ones(2, device="xla")
    with pytest.raises(RuntimeError, match="Expected out tensor to have device xla:0, but got cpu"):
        torch.addr(a[:2], b, b, out=torch.zeros(2, 2))
    with pytest.raises(RuntimeError, match="refer to a single memory location"):
        torch.addr(a[:2], b, b, out=a[1:])
    assert torch.equal(torch.addr(a[:2], b, b, out=torch.zeros(2, 2, device="xla")).cpu(), torch.ones(2, 2))


def test_the_dtype_of_an_out_is_refused_before_a_kernel_is_missed() -> None:
    numbers = torch.ones(3, dtype=torch.float8_e4m3fn, device="xla")
    for dtype, kind in ((torch.int32, "can't be cast to the desired output type Int"), (torch.float32, "add_stub")):
        with pytest.raises(RuntimeError, match=kind):
            torch.add(numbers, 0, out=torch.zeros(3, dtype=dtype, device="xla"))
