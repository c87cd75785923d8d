"""Values that an operator cannot take and the host knows: refused at once, with the error of the CPU."""

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from tests.engine.dispatch.checks.test_device_values import BAD, GOOD, INF, NAN
from torch_xla._engine.dispatch.checks.host_values import IS_BAD

Make = Callable[..., torch.Tensor]


def from_host(device: str) -> Make:
    """Makes tensors on a device whose numbers came from the host as they are."""
    return lambda *numbers, dtype=None: torch.tensor(numbers, dtype=dtype).to(device)


# Values that the device computes although the host knows their inputs, and the masks of these cases.
_UNKNOWN = {"masked_scatter", "one_hot", "assertion", "lu_unpack", "max_unpool2d"}

CASES: dict[str, Callable[[Make], Any]] = {
    **{name: call for name, (call, _) in BAD.items() if name not in _UNKNOWN},
    "a class of one row": lambda t: F.nll_loss(t(0.5, 0.5), t(2).reshape(())),
    "a quotient by the number zero": lambda t: t(4, 6) // 0,
    "the same in place": lambda t: t(4, 6).__ifloordiv__(0),
    "a remainder by the number zero": lambda t: t(4, 6) % 0,
    "the same in place, of a tensor": lambda t: t(4, 6).remainder_(t(2, 0)),
    "by a tensor on the host": lambda t: t(4, 6) % torch.tensor(0),
    "a number by a tensor": lambda t: 5 // t(4, 0),
    "fmod by the number zero": lambda t: torch.fmod(t(4, 6), 0),
    "a truncated quotient by zero": lambda t: torch.div(t(4, 6), 0, rounding_mode="trunc"),
    "a floored quotient by zeros": lambda t: t(4, 6).div_(t(0, 0), rounding_mode="floor"),
    "by bytes of zero": lambda t: t(4, 6) // t(0, 0, dtype=torch.uint8),
    "a number that is 0 as a byte": lambda t: t(4, 6, dtype=torch.uint8) // 256,
    "the same, truncated": lambda t: torch.div(t(4, 6, dtype=torch.int8), -512, rounding_mode="trunc"),
    "the same, written": lambda t: t(4, 6, dtype=torch.int16).floor_divide_(1 << 40),
    "the same, of the host": lambda t: t(4, 6, dtype=torch.int16) % torch.tensor(1 << 16),
    "the same, without dimensions": lambda t: t(4, 6, dtype=torch.int16) // t(1 << 16).reshape(()),
    "powers by another number than 1": lambda t: (1 ** t(2.0).to(torch.float8_e5m2), 2 ** t(2.0).to(torch.float8_e5m2)),
    "the same of an exponent": lambda t: (t(2.0).to(torch.float8_e4m3fn) ** 1, t(2.0).to(torch.float8_e4m3fn) ** 3),
    "bags of a matrix": lambda t: F.embedding_bag(t([0, 5]), t([1.0], [2.0])),
    "the greatest of a bag": lambda t: F.embedding_bag(t(0, -1), t([1.0], [2.0]), t(0), mode="max"),
    "rows that are normalized": lambda t: F.embedding(t(0, 5), t([1.0], [2.0]), max_norm=1.0),
    "pivots": lambda t: torch.lu_unpack(t([1.0, 1.0], [1.0, 1.0]), t(5, 1, dtype=torch.int32)),
    "a place that is unpooled to": lambda t: F.max_unpool2d(t([[[1.0]]]), t([[[9]]]), 2),
    "deviations of one mean": lambda t: torch.normal(0.0, t(-1.0, 1.0)),
    "values of a mask": lambda t: t(0.0, 1.0, 2.0, 3.0).__setitem__(t(True, True, True, False), t(1.0, 2.0)),
    "values of a mask over rows": lambda t: t([0.0, 1.0], [2.0, 3.0])[t(True, False)].add(
        t([0.0, 1.0], [2.0, 3.0]).index_put_((t(True, True),), t([1.0, 1.0], [1.0, 1.0], [1.0, 1.0]))
    ),
    "values of a part of a mask": lambda t: t(0.0, 1.0).__setitem__(t(True, True, False)[:2], t(1.0, 2.0, 3.0)),
    "elements for a mask": lambda t: t(0.0, 1.0, 2.0).masked_scatter(t(True, True, False), t(1.0)),
    "elements for a mask of each row": lambda t: t([0.0, 1.0], [2.0, 3.0]).masked_scatter_(t(True, False), t(1.0)),
    "a fraction of one": lambda t: torch.quantile(t(1.0, 2.0), t(1.5)[0]),
    "fractions, into a tensor": lambda t: torch.nanquantile(t(1.0, 2.0), t(0.5, NAN), out=t(0.0, 0.0)),
    "a number that bytes do not hold": lambda t: t(1, 2, dtype=torch.int8).masked_fill(t(True, False), t(1000)[0]),
    "a number of the CPU": lambda t: t(1.0, dtype=torch.float16).masked_fill_(t(True), torch.tensor(1e9)),
    "NaN for integers": lambda t: t(1, 2).masked_fill(t(True, False), torch.tensor(NAN)),
    "a complex number for floats": lambda t: t(1.0, 2.0).masked_fill(t(True, False), torch.tensor(1j)),
    "a computed complex number": lambda t: t(1.0, 2.0).masked_fill(t(True, False), t(1j)[0] * 2),
    "the same in place, for integers": lambda t: t(1, 2).masked_fill_(t(True, False), t(1 + 1j)[0] * 2),
    "a number too small": lambda t: t(1, 2, dtype=torch.uint8).masked_fill(t(True, False), torch.tensor(-500)),
    "a number for some places": lambda t: t(1, 2, dtype=torch.int8).index_fill(0, t(1), t(1000).reshape(())),
    "the same of halves": lambda t: t(1.0, dtype=torch.float16).index_fill_(0, t(0), torch.tensor(-1e9)),
    "gradients for a mask": lambda t: torch.ops.aten.masked_scatter_backward(t(1.0, 2.0), t(True, True), [1]),
    "a negative threshold": lambda t: F.smooth_l1_loss(t(1.0), t(2.0), beta=-1.0),
}  # fmt: skip


@pytest.mark.parametrize("name", list(CASES))
def test_the_error_is_that_of_the_cpu(name: str) -> None:
    with pytest.raises(Exception) as theirs:  # noqa: PT011
        CASES[name](from_host("cpu"))
    with pytest.raises(type(theirs.value), match=f"^{re.escape(str(theirs.value))}$"):
        CASES[name](from_host("xla"))


FINE: dict[str, Callable[[Make], Any]] = {
    **GOOD,
    "fewer elements than the mask has": lambda t: t(0.0, 1.0, 2.0).masked_scatter(t(True, False, False), t(5.0)),
    "one value for a mask": lambda t: t(0.0, 1.0).__setitem__(t(True, True), t(5.0)),
    "a value for each of a mask": lambda t: t(0.0, 1.0, 2.0).__setitem__(t(False, True, True), t(5.0, 6.0)),
    "a complex number that is real": lambda t: t(0.0, 1.0).masked_fill(t(True, False), t(2 + 0j).reshape(())),
    "a complex number in place": lambda t: t(0, 1).masked_fill_(t(True, False), t(2 + 0j).reshape(())),
    "a complex number as a truth value": lambda t: t(False, False).masked_fill(t(True, False), t(1j).reshape(())),
    "a number that is not 0 in the dtype": lambda t: (t(9, dtype=torch.uint8) // 257, t(9) // 256, t(True) // 256),
    "a part of a mask": lambda t: t(0.0, 1.0).__setitem__(t(True, True, True)[:2], t(5.0, 6.0)),
    "infinity for halves": lambda t: t(1.0, dtype=torch.float16).masked_fill(t(True), torch.tensor(INF)),
    "bytes that wrap around": lambda t: t(1, 2, dtype=torch.uint8).masked_fill(t(True, False), torch.tensor(-5)),
    "a number as a truth value": lambda t: t(False).masked_fill(t(True), torch.tensor(1000)),
    "a number that is cut off": lambda t: t(1, 2).index_fill(0, t(1), torch.tensor(2.5)),
    "fewer gradients than a mask": lambda t: torch.ops.aten.masked_scatter_backward(t(1.0, 2.0), t(True, False), [3]),
    "no target": lambda t: F.nll_loss(t([0.5, 0.5]), t(7), ignore_index=7),
    "floats by the number zero": lambda t: (t(1.0) // 0, t(1.0) % 0, torch.fmod(t(1.0), 0), t(1) // 0.0),
    "a true quotient": lambda t: (torch.div(t(1, 2), 0), t(1, 2) / t(0, 1), torch.div(t(1), 0, rounding_mode=None)),
    "a view of divisors": lambda t: t(4, 6) // t(0, 2, 3)[1:],
    "a view of targets": lambda t: F.nll_loss(t([0.5, 0.5]), t(9, 1)[1:]),
    "a generator": lambda t: torch.bernoulli(t(1.0, 0.0), generator=torch.Generator(t(1.0).device).manual_seed(0)),
    "the least and the most": lambda t: F.binary_cross_entropy(t(0.0, 1.0), t(0.0, 1.0)),
    "a threshold of zero": lambda t: F.smooth_l1_loss(t(1.0), t(2.0), beta=0.0),
}  # fmt: skip


@pytest.mark.parametrize("name", list(FINE))
def test_what_the_cpu_takes_is_taken(name: str) -> None:
    wanted, found = FINE[name](from_host("cpu")), FINE[name](from_host("xla"))
    for one, other in zip(*(x if isinstance(x, tuple) else (x,) for x in (wanted, found)), strict=True):
        assert one is None or torch.equal(one.nan_to_num(), other.cpu().nan_to_num())


def test_what_the_device_computed_is_not_waited_for() -> None:
    divisor = torch.tensor([1, 0]).to("xla") * 1
    assert (torch.tensor([4, 6]).to("xla") // divisor)[0].item() == 4


def test_every_operator_looked_at_has_a_kernel_that_the_dispatcher_calls() -> None:
    names = {f"aten::{name}" for name in IS_BAD}
    ours = {name for name in names if torch._C._dispatch_has_kernel_for_dispatch_key(name, "PrivateUse1")}
    assert ours == names
