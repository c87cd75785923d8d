"""`torch.complex32`, which XLA does not have: in the memory of a device it is complex64, and looks as PyTorch's."""

import io
from collections.abc import Callable
from typing import Any

import pytest
import torch

from torch_xla.utils.dlpack import to_dlpack

pytestmark = pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")

# 0.1 is rounded, 6e-8 is below the normal numbers of float16, and so is what a product of small numbers gives.
NUMBERS = [1 + 2j, 0.1 - 4.5j, 6e-8 + 1e-7j, -3e-4 + 2e-4j]


def made(device: str, **options: Any) -> torch.Tensor:
    return torch.tensor(NUMBERS, dtype=torch.complex32, device=device, **options)


def written(x: torch.Tensor, how: Callable[[torch.Tensor], object]) -> torch.Tensor:
    how(x)
    return x


def filled(view: torch.Tensor) -> None:
    view[1:3] = 0.1


# The CPU rounds a number to float16 before it multiplies or compares; CUDA does not.
CALLS: dict[str, Callable[[torch.Tensor], Any]] = {
    "itself": lambda x: x,
    "item": lambda x: x[1].item(),
    "list": lambda x: x.tolist(),
    "text": lambda x: repr(x.cpu()),
    "sum with itself": lambda x: x + x,
    "product": lambda x: x * x,
    "product with a number": lambda x: x * 0.375j,
    "product with a number that is rounded": lambda x: x * (0.1 - 0.3j),
    "sum with a number that is rounded": lambda x: x + (0.1 - 4.5j),
    "comparison with a zero-dim tensor": lambda x: x == torch.tensor(0.1 - 4.5j, device=x.device),
    "comparison with a number that is rounded": lambda x: (x == 0.1 - 4.5j, x != 0.1 - 4.5j),
    "of a half and a number": lambda x: torch.ones_like(x.real) * 0.1j,
    "parts": lambda x: torch.complex(x.real, x.imag * 3),
    "pairs": lambda x: torch.view_as_complex(torch.view_as_real(x) * 2),
    "magnitude": lambda x: x.abs(),
    "negative": lambda x: -x,
    "conjugate": lambda x: x.conj() * 1,
    "conjugate seen": lambda x: torch.view_as_real(x.conj().resolve_conj()),
    "imaginary part of the conjugate": lambda x: x.conj().imag,
    "comparison": lambda x: x == x[0],
    "index": lambda x: x[torch.tensor([3, 0], device=x.device)],
    "mask": lambda x: x[torch.tensor([True, False, True, True], device=x.device)],
    "where": lambda x: torch.where(x == x[0], x, x * 2),
    "cat": lambda x: torch.cat([x, x[:2]]),
    "wider": lambda x: x.to(torch.complex64) * 0.1,
    "narrower": lambda x: (x.to(torch.complex128) * 0.1).to(torch.complex32),
    "promoted": lambda x: x + torch.full((4,), 0.1 + 0.1j, dtype=torch.complex64, device=x.device),
    "of whole numbers": lambda x: torch.arange(4, device=x.device).to(torch.complex32),
    "transposed": lambda x: x.view(2, 2).t().contiguous(),
    "bits": lambda x: x.view(torch.int32),
    "halves": lambda x: x.view(torch.float16),
    "bits of a part": lambda x: x[1:3].view(torch.int32),
    "of bits": lambda x: torch.arange(4, dtype=torch.int32, device=x.device).mul(131_073).view(torch.complex32),
    "of halves": lambda x: torch.arange(8, dtype=torch.float16, device=x.device).div(7).view(torch.complex32)[1:],
    "filled": lambda x: written(x.clone(), lambda y: y.fill_(0.1j)),
    "a part filled": lambda x: written(x.clone(), filled),
    "overwritten from wider": lambda x: written(x.clone(), lambda y: y.copy_(x.to(torch.complex128) / 3)),
    "overwritten from the host": lambda x: written(x.clone(), lambda y: y[1:].copy_(torch.tensor([0.1j] * 3))),
    "imaginary parts written": lambda x: written(x.clone(), lambda y: y.imag.mul_(0.3)),
    "bits written": lambda x: written(x.clone(), lambda y: y.view(torch.int32)[1:3].fill_(0x3C00_4000)),
    "in place": lambda x: written(x.clone(), lambda y: y.mul_(0.375 + 2j)),
    "into another": lambda x: torch.mul(x, 0.375, out=torch.empty(4, dtype=torch.complex32, device=x.device)),
    "zeros": lambda x: torch.zeros(3, dtype=torch.complex32, device=x.device),
    "full": lambda x: torch.full((3,), 0.1j, dtype=torch.complex32, device=x.device),
    "masked": lambda x: x.masked_fill(x == x[0], 0.1),
    "strides": lambda x: x.as_strided((2, 2), (1, 2), 0),
    "memory": lambda x: (x.element_size(), x.nbytes, x.untyped_storage().nbytes()),
    "bytes": lambda x: list(x.untyped_storage().cpu()),
    "close": lambda x: (torch.allclose(x, x.clone()), torch.allclose(x, x * 1.5)),
}


@pytest.mark.parametrize("name", CALLS)
def test_it_is_what_it_is_on_the_cpu(name: str) -> None:
    ours, theirs = CALLS[name](made("xla")), CALLS[name](made("cpu"))
    if isinstance(theirs, tuple) and isinstance(theirs[0], torch.Tensor):
        ours, theirs = torch.stack(ours), torch.stack(theirs)
    if not isinstance(theirs, torch.Tensor):
        assert ours == theirs
        return
    assert (ours.dtype, ours.shape, ours.stride()) == (theirs.dtype, theirs.shape, theirs.stride())
    ours = ours.cpu()
    if theirs.is_complex():  # assert_close cannot compare complex32
        ours, theirs = (each.resolve_conj().to(torch.complex64) for each in (ours, theirs))
    torch.testing.assert_close(ours, theirs, rtol=0, atol=0)


def test_it_has_gradients() -> None:
    def gradient(device: str) -> torch.Tensor:
        x = made(device, requires_grad=True)
        (x * x * 0.3).to(torch.complex64).abs().sum().backward()
        assert x.grad is not None
        return x.grad.to(torch.complex64).cpu()

    torch.testing.assert_close(gradient("xla"), gradient("cpu"), rtol=1e-3, atol=1e-3)


def test_files_keep_it() -> None:
    file = io.BytesIO()
    torch.save(made("xla"), file)
    file.seek(0)
    loaded = torch.load(file)
    assert loaded.device.type == "xla"
    assert loaded.tolist() == made("cpu").tolist()


def test_a_compiled_function_rounds_its_results() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return x * 0.3 + x

    compiled = torch.compile(function, backend="openxla")
    assert compiled(made("xla")).tolist() == function(made("cpu")).tolist()


def test_it_is_lent_to_nobody_because_its_memory_is_another() -> None:
    for shown in (made("xla"), torch.view_as_real(made("xla"))):
        with pytest.raises(TypeError, match=r"to_dlpack\(\): torch.complex32 is stored as torch.complex64"):
            to_dlpack(shown)
