"""Between host and device: nothing is lost, nothing is shared by accident, and reading computes only what it needs."""

import threading
import tracemalloc
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import torch_xla
from tests.support.twins import cases, check_same, numbers, plain
from torch_xla._engine import dtypes, metrics
from torch_xla._engine.compiled.replay import replay
from torch_xla._engine.transfer import host_copies

ALL_DTYPES = list(dtypes.TO_JAX)
WITH_ZERO = [dtype for dtype in ALL_DTYPES if dtype is not torch.float8_e8m0fnu]


def n(*size: int, d: str, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return numbers(*size, device=d, dtype=dtype)


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
@pytest.mark.parametrize("dtype", ALL_DTYPES, ids=str)
@pytest.mark.parametrize("size", [(2, 3), (0, 2), ()], ids=str)
def test_a_round_trip_keeps_every_bit(dtype: torch.dtype, size: tuple[int, ...]) -> None:
    host = torch.arange(torch.Size(size).numel() * 16, dtype=torch.int64).to(torch.uint8).view(torch.uint8)
    host = host[: torch.Size(size).numel() * dtype.itemsize].clone()
    host = (host.bool().view(torch.uint8) if dtype is torch.bool else host).view(dtype).reshape(size)
    there = host.to("xla")
    assert (there.dtype, there.shape, there.stride()) == (dtype, host.shape, host.stride())
    back = there.cpu()
    assert back.dtype is dtype
    assert bytes(back.untyped_storage()) == bytes(host.untyped_storage())


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
@pytest.mark.parametrize("dtype", WITH_ZERO, ids=str)
def test_every_dtype_can_be_made_and_read_on_the_device(dtype: torch.dtype) -> None:
    zeros = torch.zeros(2, dtype=dtype, device="xla")
    assert zeros.dtype is dtype
    assert torch.equal(plain(zeros.cpu()), plain(torch.zeros(2, dtype=dtype)))
    assert torch.equal(plain(torch.ones(3).to("xla").to(dtype).cpu()), plain(torch.ones(3).to(dtype)))


def test_64_bit_numbers_have_64_bits() -> None:
    def use(d: str) -> Any:
        big = torch.tensor([2**62, 2**53 + 1, -(2**63)], device=d)
        small = torch.tensor([1 / 3, 1e-300, 1e300], device=d, dtype=torch.float64)
        return (
            [big, big - 1, big // 3, big % 7, big > 2**61, big.to(torch.int32), big.tolist(), big.sum()],
            [small, small * 3, small.tolist(), (small + 1e-17).sum(), small.float()],
            [(torch.ones((), dtype=torch.float64, device=d) + 1e-15).item(), torch.arange(3, device=d).dtype],
        )

    check_same(use)


@cases(
    {
        "from float": lambda d: [
            torch.tensor([1.7, -1.7, 0.0, 100.5], device=d).to(t)
            for t in (torch.int8, torch.int32, torch.int64, torch.bool, torch.float16, torch.bfloat16, torch.complex64)
        ],
        "from int": lambda d: [
            torch.tensor([300, -1, 0], device=d).to(t)
            for t in (torch.int8, torch.uint8, torch.int16, torch.bool, torch.float16, torch.float64)
        ],
        "from bool": lambda d: [torch.tensor([True, False], device=d).to(t) for t in (torch.int8, torch.float32)],
        "from bfloat16": lambda d: [n(4, d=d).bfloat16().to(t) for t in (torch.float32, torch.float16, torch.int32)],
        "float8": lambda d: [
            torch.tensor([0.0, 1.3, -448.0, 1e-3], device=d).to(t).float()
            for t in (torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz)
        ],
        "names": lambda d: [n(3, d=d).int(), n(3, d=d).half(), n(3, d=d).double(), n(3, d=d).type(torch.int16)],
        "on the way": lambda d: [torch.arange(3.0).to(d, torch.float64), n(3, d=d).to("cpu", torch.int32).to(d)],
    }
)
def test_conversions_give_what_they_give_on_the_cpu(program: Any) -> None:
    check_same(program)


def test_to_the_same_device_and_dtype_is_the_same_tensor() -> None:
    x = torch.ones(2, device="xla")
    assert x.to("xla") is x and x.to("xla:0") is x and x.to(torch.float32) is x and x.xla() is x
    assert x.to("xla", copy=True) is not x
    assert x.is_xla and not x.cpu().is_xla


def test_what_was_uploaded_does_not_follow_the_host() -> None:
    host = torch.zeros(3)
    there = host.to("xla")
    host.fill_(1)
    array = np.zeros(3, dtype=np.float32)
    other = torch.from_numpy(array).to("xla", non_blocking=True)
    array[:] = 1
    assert there.tolist() == other.tolist() == [0, 0, 0]


def test_what_was_downloaded_does_not_follow_the_device_and_may_be_written() -> None:
    there = torch.zeros(3, device="xla")
    host = there.cpu()
    host[0] = 5
    there.add_(1)
    torch_xla.sync()
    assert host.tolist() == [5, 0, 0]
    assert there.tolist() == [1, 1, 1]


def test_every_view_can_be_downloaded() -> None:
    base = torch.arange(24.0).reshape(2, 3, 4)
    there = base.to("xla")
    for view in (
        lambda x: x.transpose(0, 2),
        lambda x: x[1, 1:, ::2],
        lambda x: x.expand(2, 2, 3, 4),
        lambda x: x.unfold(2, 2, 1),
        lambda x: x.view(torch.int32),
        lambda x: x[0, 0, 0],
        lambda x: x[:, :0],
        lambda x: x.to(torch.complex64).conj(),
        lambda x: torch.complex(x, x).conj().imag,
    ):
        assert torch.equal(plain(view(there).cpu()), plain(view(base)))


@pytest.mark.parametrize("dtype", [torch.int8, torch.int32, torch.float32, torch.float64])
def test_the_bits_of_complex_numbers_can_be_downloaded(dtype: torch.dtype) -> None:
    host = torch.tensor([-2, 0.5 + 3j])
    assert torch.equal(host.to("xla").view(dtype).cpu(), host.view(dtype))


def test_python_reads_numbers_as_on_the_cpu() -> None:
    def use(d: str) -> Any:
        x = n(2, 2, d=d)
        return (
            [x[1, 0].item(), float(x[0, 1]), int(x[1, 1]), bool(x[0, 0]), x.tolist(), len(x), 3 in x],
            [type(t.item()).__name__ for t in (x[0, 0], x[0, 0].long(), x[0, 0] > 0, x[0, 0] * 1j, x[0, 0].half())],
            [f"{x[1, 1]:.2f}", [1, 2, 3][x[0, 1].long()], [float(v) for v in x[1]], max(x.flatten()).item()],
        )

    check_same(use)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(3.0),
        torch.tensor(1.5),
        torch.arange(4).reshape(2, 2),
        torch.empty(0),
        torch.ones(2, dtype=torch.bfloat16),
        torch.arange(2000.0),
        torch.tensor([1 + 2j]),
        torch.nn.Parameter(torch.ones(2)),
    ],
    ids=lambda t: f"{t.dtype} {list(t.shape)}",
)
def test_a_tensor_prints_as_on_the_cpu_with_its_device(tensor: torch.Tensor) -> None:
    moved = torch.nn.Parameter(tensor.detach().to("xla")) if tensor.requires_grad else tensor.to("xla")
    assert repr(moved).replace(", device='xla:0'", "") == repr(tensor)
    assert "device='xla:0'" in repr(moved)


def test_numpy_must_ask_for_the_host_copy() -> None:
    with pytest.raises(TypeError, match="can't convert xla:0 device type tensor to numpy. Use Tensor.cpu()"):
        torch.ones(2, device="xla").numpy()
    assert np.asarray(torch.ones(2, device="xla").cpu()).tolist() == [1, 1]


def test_the_scalar_below_item_is_the_first_element_as_on_the_cpu() -> None:
    read = torch.ops.aten._local_scalar_dense
    assert read(torch.tensor([[2, 3]], device="xla")) == read(torch.tensor([[2, 3]])) == 2
    with pytest.raises(RuntimeError, match="_local_scalar_dense: Empty tensor not supported"):
        read(torch.empty(0, device="xla"))


@pytest.mark.parametrize("workers", [0, 1])
def test_a_loader_of_host_batches_may_pin_its_memory(workers: int) -> None:
    data = TensorDataset(torch.arange(12.0).view(6, 2), torch.arange(6))
    loader: DataLoader[Any] = DataLoader(data, batch_size=4, pin_memory=True, num_workers=workers)
    if workers:
        pytest.importorskip("multiprocessing")
        loader.multiprocessing_context = "spawn"  # JAX warns of forks
    batches = [(x.to("xla", non_blocking=True), y.to("xla")) for x, y in loader]
    assert torch.cat([x for x, _ in batches]).cpu().tolist() == torch.arange(12.0).view(6, 2).tolist()
    assert torch.cat([y for _, y in batches]).tolist() == list(range(6))


def test_pinning_leaves_programs_without_the_device_alone() -> None:
    x = torch.ones(2)
    assert torch.equal(x.pin_memory(), x)
    assert isinstance(x.is_pinned(), bool)


def test_a_dataset_may_live_on_the_device() -> None:
    data = TensorDataset(torch.arange(6.0, device="xla"))
    assert [batch[0].tolist() for batch in DataLoader(data, batch_size=3)] == [[0, 1, 2], [3, 4, 5]]


def test_transfers_are_measured() -> None:
    torch.zeros(10, device="xla").copy_(torch.ones(10)).cpu()
    for name in ("TransferToDeviceTime", "TransferFromDeviceTime", "OutboundData", "InboundData"):
        assert metrics.samples.data_of(name) is not None, name


@pytest.mark.parametrize("variable", ["XLA_USE_BF16", "XLA_DOWNCAST_BF16"])
def test_floats_live_as_bfloat16_where_the_user_says_so(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.tensor([1 + 2**-10, 3.0], device="xla")
    monkeypatch.setenv(variable, "1")
    y = torch.tensor([1 + 2**-10, 3.0], device="xla")
    assert y.dtype is torch.float32 and y.cpu().dtype is torch.float32
    assert y.tolist() == [1, 3]
    assert (x + y).tolist() == [2, 6]
    double = torch.tensor([1 + 2**-20], dtype=torch.float64, device="xla")
    assert double.dtype is torch.float64
    assert double.item() == (1 if variable == "XLA_USE_BF16" else 1 + 2**-20)
    monkeypatch.delenv(variable)
    assert (y + 2**-10).tolist() == [1 + 2**-10, 3 + 2**-10]


def test_reading_an_element_of_many_copies_no_others() -> None:
    x = torch.arange(1 << 20).to("xla")
    torch_xla.sync(wait=True)
    tracemalloc.start()
    try:
        assert x[12345].item() == 12345 and x.view(1024, 1024).t()[5, 3].item() == 3 * 1024 + 5
        assert tracemalloc.get_traced_memory()[1] < x.nbytes // 2  # what is compiled for it takes some, too
    finally:
        tracemalloc.stop()


def test_a_read_waits_for_a_replay_that_is_taking_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    state, x = torch.zeros(2, device="xla"), torch.ones(2, device="xla")
    step = torch_xla.compile(state.add_, replay=True)
    for _ in range(5):
        step(x)
    assert step.is_replayed
    read: list[Any] = []
    reader = threading.Thread(target=lambda: read.append(state.tolist()), daemon=True)
    fetch, run, launched = host_copies.buffers.fetch, replay.executor.run, threading.Event()

    def fetch_what_is_launched(buffer: Any) -> Any:
        assert launched.wait(60)
        return fetch(buffer)

    def run_beside_the_read(*arguments: Any) -> None:
        reader.start()
        reader.join(0.2)  # by then it has what it reads, or waits for this
        run(*arguments)
        launched.set()

    with monkeypatch.context() as patched:
        patched.setattr(host_copies.buffers, "fetch", fetch_what_is_launched)
        patched.setattr(replay.executor, "run", run_beside_the_read)
        step(x)
        reader.join(60)
    assert read == [[6, 6]] and state.tolist() == [6, 6]
