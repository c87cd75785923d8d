"""PyTorch's own tensors and values of the device. The CPU represents a GPU that both can address."""

from types import SimpleNamespace

import pytest
import torch

import torch_xla
from torch_xla._engine.tensor.device import device_for
from torch_xla._engine.transfer import cuda_zero_copy


def numbers(dtype: torch.dtype) -> torch.Tensor:
    return torch.tensor([[0, 1, 2], [3, 0, 5]]).to(dtype)


@pytest.mark.parametrize("dtype", sorted(cuda_zero_copy.EXCHANGED, key=str), ids=str)
def test_there_and_back_every_dtype_is_the_same(dtype: torch.dtype) -> None:
    x = numbers(dtype).to("xla")
    copy = cuda_zero_copy.copy_of(x)
    assert copy.device.type == "cpu" and torch.equal(copy, numbers(dtype))
    back = cuda_zero_copy.taken(copy)
    assert back.device == x.device and back.dtype is dtype and torch.equal(back.cpu(), numbers(dtype))


@pytest.mark.parametrize(
    "layout", ["transposed", "a part", "spread", "channels last", "conjugate", "negative", "number"]
)
def test_what_a_tensor_shows_comes_with_its_strides(layout: str) -> None:
    def shown(x: torch.Tensor) -> torch.Tensor:
        z = torch.complex(x, x + 1)
        return {
            "transposed": lambda: x.t(),
            "a part": lambda: x[1:, ::2],
            "spread": lambda: x[:, :1].expand(2, 4),
            "channels last": lambda: (
                x.view(1, 1, 2, 3).expand(1, 2, 2, 3).contiguous(memory_format=torch.channels_last)
            ),
            "conjugate": lambda: z.conj(),
            "negative": lambda: z.conj().imag,
            "number": lambda: x[0, 1],
        }[layout]()

    expected, ours = shown(numbers(torch.float32)), shown(numbers(torch.float32).to("xla"))
    copy = cuda_zero_copy.copy_of(ours)
    assert torch.equal(copy, expected.resolve_conj().resolve_neg())
    back = cuda_zero_copy.taken(copy)
    assert back.stride() == copy.stride() and torch.equal(back.cpu(), copy)
    if layout in ("transposed", "channels last"):
        assert copy.stride() == expected.stride()


def test_a_copy_is_its_own() -> None:
    x = numbers(torch.float32).to("xla")
    copy = cuda_zero_copy.copy_of(x)
    copy.add_(1)
    assert torch.equal(x.cpu(), numbers(torch.float32))
    x.mul_(3)
    torch_xla.sync()
    assert torch.equal(copy, numbers(torch.float32) + 1)


def test_writes_go_where_the_tensor_shows() -> None:
    x = numbers(torch.float32).to("xla")
    cuda_zero_copy.write_into(x[:, 1], torch.tensor([7.0, 8.0]))
    cuda_zero_copy.write_into(x.t()[2], torch.tensor([9.0, 10.0]))
    assert x.tolist() == [[0, 7, 9], [3, 8, 10]]
    cuda_zero_copy.write_into(x, torch.zeros(3, 2).t())
    assert x.tolist() == [[0, 0, 0], [0, 0, 0]] and x.stride() == (3, 1)


def test_the_gpu_is_that_of_the_device_where_pytorch_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def gpu(platform: str = "gpu", mesh: object = None) -> object:
        target = SimpleNamespace(platform=platform, mesh=mesh, device=SimpleNamespace(local_hardware_id=2))
        return cuda_zero_copy.gpu_of(SimpleNamespace(target=target))  # type: ignore[arg-type]

    assert cuda_zero_copy.gpu_of(device_for(None)) is None
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert gpu() is None
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert gpu() == torch.device("cuda", 2) and gpu("cpu") is None and gpu(mesh="some") is None
