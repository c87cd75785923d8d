"""A step of Adam or SGD on many parameters is one operation, with the numbers of PyTorch's separate operators."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn, optim
from torch.optim import adam as adam_module
from torch.optim import sgd as sgd_module

import torch_xla
from tests.support.ways_to_run import made_to_run
from torch_xla._engine.ir.call_plan import Plan
from torch_xla._engine.tensor.device import device_for

SIZES = [(3, 4), (), (5,), (0, 2), (2, 1, 3)]
OPTIMIZERS: dict[str, Callable[..., optim.Optimizer]] = {"Adam": optim.Adam, "AdamW": optim.AdamW, "SGD": optim.SGD}


@contextlib.contextmanager
def separate_operators() -> Iterator[None]:
    """Let PyTorch's own multi-tensor implementations run."""
    modules = {"_multi_tensor_adam": adam_module, "_multi_tensor_sgd": sgd_module}
    ours = {name: getattr(module, name) for name, module in modules.items()}
    try:
        for name, module in modules.items():
            setattr(module, name, ours[name].__wrapped__)
        yield
    finally:
        for name, module in modules.items():
            setattr(module, name, ours[name])


def trained(
    make: Callable[[Any], optim.Optimizer],
    device: str = "xla",
    dtype: torch.dtype = torch.float32,
    steps: int = 2,
    frozen: int = 0,
) -> list[Tensor]:
    """Return the parameters, gradients and states after some steps; the last `frozen` parameters miss the first one."""
    generator = torch.Generator().manual_seed(0)
    start = [torch.randn(size, generator=generator, dtype=torch.float64).to(dtype) for size in SIZES]
    parameters = [nn.Parameter(each.to(device)) for each in start]
    optimizer = make(parameters)
    for step in range(steps):
        for nth, parameter in enumerate(parameters):
            gradient = torch.randn(parameter.shape, generator=generator, dtype=torch.float64).to(dtype).to(device)
            parameter.grad = None if step == 0 and nth >= len(parameters) - frozen else gradient
        optimizer.step()
        torch_xla.sync()
    states = [value for state in optimizer.state.values() for value in state.values() if isinstance(value, Tensor)]
    return [each.detach().cpu() for each in (*parameters, *(p.grad for p in parameters), *states)]


def assert_same_bits(ours: list[Tensor], theirs: list[Tensor]) -> None:
    for one, other in zip(ours, theirs, strict=True):
        assert one.dtype is other.dtype and torch.equal(*(each.flatten().view(torch.uint8) for each in (one, other)))


def operations(optimizer: optim.Optimizer) -> list[str]:
    """Return the names of the operations that a step records."""
    torch_xla.sync()
    optimizer.step()
    return [str(each.op) for each in device_for(torch.device("xla")).tape.code if isinstance(each, Plan)]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_step_is_one_operation(name: str) -> None:
    parameters = [nn.Parameter(torch.ones(n + 1, device="xla")) for n in range(20)]
    optimizer = OPTIMIZERS[name](parameters, lr=0.1, weight_decay=0.1, maximize=True)
    for parameter in parameters:
        parameter.grad = torch.full_like(parameter, 2.0)
    optimizer.step()
    whole = "multi_tensor_sgd.default" if name == "SGD" else "multi_tensor_adam.equal_counts"
    assert operations(optimizer) == [f"xla.{whole}"]


def test_parameters_with_equal_counts_share_their_numbers() -> None:
    """A number for each would be an array in a device's memory for each."""
    parameters = [nn.Parameter(torch.ones(n + 1, device="xla")) for n in range(20)]
    optimizer = optim.AdamW(parameters)
    for _ in range(2):
        for parameter in parameters:
            parameter.grad = torch.ones_like(parameter)
        torch_xla.sync()
        optimizer.step()
    tape = device_for(torch.device("xla")).tape
    assert [len(each.numbers) for each in tape.code if isinstance(each, Plan)] == [7]


CASES: list[tuple[str, torch.dtype, int, dict[str, Any]]] = [
    ("AdamW", torch.float32, 2, {}),
    ("Adam", torch.float32, 0, {"lr": 1, "amsgrad": True, "maximize": True, "weight_decay": 0.1, "betas": (0.3, 0.0)}),
    ("AdamW", torch.bfloat16, 0, {"lr": 0.1, "eps": 0.1}),
    ("Adam", torch.float64, 2, {"betas": (0.0, 0.5), "weight_decay": 1, "amsgrad": True}),
    ("SGD", torch.float32, 2, {"lr": 1, "momentum": 0.9, "dampening": 0.5, "maximize": True}),
    ("SGD", torch.float16, 0, {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.1, "nesterov": True}),
    ("SGD", torch.float64, 0, {"lr": 0.1, "weight_decay": 1}),
]


@pytest.mark.parametrize(("name", "dtype", "frozen", "options"), CASES, ids=str)
def test_a_step_has_the_bits_of_the_separate_operators(
    name: str, dtype: torch.dtype, frozen: int, options: dict[str, Any]
) -> None:
    def make(parameters: Any) -> optim.Optimizer:
        return OPTIMIZERS[name](parameters, foreach=True, **options)

    found = trained(make, dtype=dtype, frozen=frozen)
    with separate_operators():
        assert_same_bits(found, trained(make, dtype=dtype, frozen=frozen))
    if dtype.itemsize > 2:
        torch.testing.assert_close(found, trained(make, "cpu", dtype, frozen=frozen), rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize("way", ["recorded", "eager", "replay"])
def test_each_way_to_run_gives_the_cpus_numbers(way: str) -> None:
    def result(device: str, mode: str) -> list[Tensor]:
        parameters = [nn.Parameter(torch.full((n + 1,), float(n), device=device)) for n in range(3)]
        optimizer = optim.AdamW(parameters, lr=0.1)

        def step(factor: Tensor) -> None:
            optimizer.zero_grad()
            sum((parameter * factor).square().sum() for parameter in parameters).backward()  # type: ignore[union-attr]
            optimizer.step()

        with made_to_run(mode, step) as run:
            for nth in range(8):
                optimizer.param_groups[0]["lr"] = 0.1 / (nth + 1)
                if nth == 6 and way != "replay":  # the counts were equal, and are not any more
                    next(iter(optimizer.state.values()))["step"].fill_(2.0)
                run(torch.tensor(1.0 + nth, device=device))
                torch_xla.sync()
        return [each.detach().cpu() for each in parameters]

    torch.testing.assert_close(result("xla", way), result("cpu", "recorded"), rtol=1e-5, atol=1e-6)


def test_memory_that_is_written_twice_is_left_to_pytorch() -> None:
    def result(device: str) -> list[Any]:
        memory = torch.arange(6.0).to(device)
        parts = [nn.Parameter(memory[:4]), nn.Parameter(memory[2:])]
        for part in parts:
            part.grad = torch.ones(4).to(device)
        optim.SGD(parts, lr=0.5, foreach=True).step()
        return memory.tolist()

    assert result("xla") == result("cpu")


def test_a_gradient_that_is_another_parameter_is_left_to_pytorch() -> None:
    def result(device: str) -> list[Any]:
        first, second = (nn.Parameter(torch.full((2,), value).to(device)) for value in (1.0, 2.0))
        first.grad, second.grad = torch.ones(2).to(device), first.detach()
        optim.SGD([first, second], lr=0.5, foreach=True).step()
        return [first.tolist(), second.tolist()]

    assert result("xla") == result("cpu")


@pytest.mark.parametrize("dtype", [torch.complex64, torch.float32], ids=str)
def test_what_is_rare_is_left_to_pytorch(dtype: torch.dtype) -> None:
    parameter = nn.Parameter(torch.ones(3, dtype=dtype, device="xla"))
    parameter.grad = torch.ones_like(parameter)
    rate: Any = 0.1 if dtype.is_complex else torch.tensor(0.1, device="xla")
    optimizer = optim.AdamW([parameter], lr=rate, capturable=not dtype.is_complex, foreach=True)
    assert not any("multi_tensor" in name for name in operations(optimizer))
    reference = nn.Parameter(torch.ones(3, dtype=dtype))
    reference.grad = torch.ones_like(reference)
    optim.AdamW([reference], lr=0.1).step()
    torch.testing.assert_close(parameter.detach().cpu(), reference.detach())


def test_parameters_of_several_dtypes_are_those_of_the_cpu() -> None:
    def result(device: str) -> list[Tensor]:
        parameters = [nn.Parameter(torch.ones(3).to(dtype).to(device)) for dtype in (torch.float32, torch.float64)]
        for parameter in parameters:
            parameter.grad = torch.full_like(parameter, 0.5)
        optim.AdamW(parameters, lr=0.1).step()
        return [each.detach().cpu() for each in parameters]

    torch.testing.assert_close(result("xla"), result("cpu"))


def test_what_backward_needs_and_a_step_overwrites_is_refused() -> None:
    parameter = nn.Parameter(torch.ones(3, device="xla"))
    loss = (parameter * parameter).sum()
    parameter.grad = torch.ones_like(parameter)
    for optimizer in (optim.AdamW([parameter]), optim.SGD([parameter], lr=0.1)):
        before = parameter._version
        optimizer.step()
        assert parameter._version > before
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
