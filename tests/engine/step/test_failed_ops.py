"""An operation that cannot be lowered leaves its tape, and everything else stays on it."""

import copy
import itertools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest
import torch
from torch import Tensor

import torch_xla
from torch_xla import interop
from torch_xla._engine.compile import shard_mapped
from torch_xla._engine.compile.stages import stage_cuts
from torch_xla._engine.errors import ExecutionError, NotComputed, OutOfMemory
from torch_xla._engine.lowering.fx_graphs import interpreter
from torch_xla._engine.lowering.machinery import registry
from torch_xla._engine.runtime.device_assignment import Target
from torch_xla._engine.step.failed_ops import prune
from torch_xla._engine.tensor.device import device_at
from torch_xla.core.xla_builder import call_jax, create_placeholder_tensor


def test_an_operation_that_cannot_be_lowered_fails_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: Any) -> Any:
        raise ValueError("this rule is broken")

    rule = registry.rule_of(torch.ops.aten.erf.default)
    assert rule is not None
    monkeypatch.setitem(registry._rules, rule.op, registry.replace(rule, lower=broken))
    x = torch.ones(41, device="xla")
    failed, other = x.erf(), x * 2
    later, sum_, overwritten = failed + 1, torch.zeros(41, device="xla"), torch.zeros(41, device="xla")
    sum_.add_(later)
    overwritten.add_(failed)
    with pytest.raises(ValueError, match="this rule is broken"):
        torch_xla.sync()
    torch_xla.sync()
    assert other.tolist() == [2.0] * 41
    for use in (failed.tolist, lambda: later + 1, sum_.sum):
        with pytest.raises(RuntimeError, match=r"never computed.*this rule is broken \(Raised by the rule of aten::e"):
            use()
    overwritten.copy_(other)
    assert overwritten.tolist() == [2.0] * 41


def test_the_weights_survive_a_function_on_the_host_that_raises() -> None:
    calls, raises_at = itertools.count(1), {2, 5}

    def on_the_host(x: Any) -> Any:
        if next(calls) in raises_at:
            raise ValueError("this batch is broken")
        return 2 * np.asarray(x)

    class Doubled(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Any:
            return call_jax(lambda x: jax.pure_callback(on_the_host, jax.ShapeDtypeStruct(x.shape, x.dtype), x), (x,))

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
            return 2 * gradient

    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4)).to("xla")
    expected = copy.deepcopy(model)
    optimizers = [torch.optim.SGD(each.parameters(), lr=0.1, momentum=0.9) for each in (model, expected)]
    for index in range(1, 7):
        x = torch.randn(5, 3, device="xla")
        for network, optimizer in zip((model, expected), optimizers, strict=True):
            optimizer.zero_grad()
            y = network(x)
            if network is expected and index in raises_at:
                continue  # what comes before the function happens: the statistics move
            (Doubled.apply(y) if network is model else 2 * y).square().mean().backward()
            optimizer.step()
            if network is model and index in raises_at:
                with pytest.raises(RuntimeError, match="this batch is broken"):
                    torch_xla.sync(wait=True)
            torch_xla.sync(wait=True)
    for ours, theirs in zip(model.state_dict().values(), expected.state_dict().values(), strict=True):
        torch.testing.assert_close(ours.cpu(), theirs.cpu())


def test_another_error_leaves_the_tape_as_it_is() -> None:
    torch_xla.sync()
    x = torch.ones(3, device="xla") * 2.5
    tape = device_at(0).tape
    code = list(tape.code)

    prune(ValueError("nobody's rule"), (device_at(0),))
    assert device_at(0).tape is tape and tape.code == code and x.tolist() == [2.5] * 3


def _placeholder() -> Tensor:
    return create_placeholder_tensor((1 << 20, 1 << 20), torch.float32)


def _planned() -> Tensor:
    made = list[Tensor]()
    torch_xla.debug.plan(lambda: made.append(torch.ones(43, device="xla") * 2))
    return made[0]


def _deleted_in_jax() -> Tensor:
    x = torch.full((43,), 3.0).to("xla")
    interop.to_jax(x).delete()
    return x


def _given_away() -> Tensor:
    x = torch.full((43,), 4.0).to("xla")
    assert torch_xla._XLAC._set_buffer_donation(x, True)
    y = x + 1
    torch_xla.sync()
    assert y.tolist() == [5.0] * 43
    return x


@pytest.mark.parametrize(
    "make, why",
    [
        (_placeholder, "a placeholder tensor .* holds no memory"),
        (_planned, "it was only planned"),
        (_deleted_in_jax, r"this tensor \(float32\[43\]\) .* a JAX array that shares it"),
        (_given_away, "was given to a program that ran since"),
    ],
)
def test_a_tensor_without_memory_fails_one_sync(make: Callable[[], Tensor], why: str) -> None:
    x = make()
    needs, other = (x + 1).sum(), torch.ones(43, device="xla") * 2
    with pytest.raises(NotComputed, match=why):
        torch_xla.sync()
    torch_xla.sync()
    assert other.tolist() == [2.0] * 43
    assert (other + 1).tolist() == [3.0] * 43
    with pytest.raises(RuntimeError, match=f"(?s)never computed.*{why}"):
        needs.item()
    with pytest.raises(RuntimeError, match=why):
        (x * 2).sum().item()
    torch_xla.sync()


def test_a_compiled_function_in_stages_that_cannot_be_lowered_fails_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is one operation, and what fails is inside it."""

    def broken(self: Any) -> Any:
        raise ValueError("this rule is broken")

    def layers(x: Tensor, weight: Tensor) -> Tensor:
        for _ in range(12):
            x = (x @ weight).erf()
        return x

    rule = registry.rule_of(torch.ops.aten.erf.default)
    assert rule is not None and interpreter.rule_for(rule.op) is rule  # which keeps it
    monkeypatch.setattr(stage_cuts, "LEAST_BYTES_ON_HOST", 1)
    monkeypatch.setenv("XLA_STAGE_OPERATIONS", "1")
    x, weight = torch.ones(7, 7, device="xla"), torch.ones(7, 7, device="xla", requires_grad=True)
    torch_xla.sync()
    with monkeypatch.context() as patch:
        patch.setitem(registry._rules, rule.op, registry.replace(rule, lower=broken))
        failed, other = torch.compile(layers, backend="openxla")(x, weight), x * 2
        with pytest.raises(ValueError, match="this rule is broken"):
            torch_xla.sync()
        torch_xla.sync()
        assert other.tolist() == [[2.0] * 7] * 7
        with pytest.raises(
            RuntimeError, match=r"never computed.*this rule is broken \(Raised by the rule of aten::erf"
        ):
            failed.sum().item()


def test_an_operation_that_xla_does_not_compile_fails_once() -> None:
    def unknown(x: jax.Array) -> Any:
        return jax.ffi.ffi_call("no_such_target", jax.ShapeDtypeStruct(x.shape, x.dtype))(x)

    x, counter = torch.ones(43, device="xla"), torch.zeros(43, device="xla")
    counter += 1
    failed, other = call_jax(unknown, (x * 3,)), x * 2
    later = failed + 1
    with pytest.raises(
        ExecutionError, match=r"no_such_target[\s\S]*the other tensors of this step are still"
    ) as raised:
        torch_xla.sync()
    assert raised.value.__notes__[0].startswith("XLA does not compile jax::unknown")
    torch_xla.sync()
    assert other.tolist() == [2.0] * 43 and counter.tolist() == [1.0] * 43
    for use in (failed.tolist, lambda: later * 2):
        with pytest.raises(RuntimeError, match=r"never computed.*no_such_target.*\(XLA does not compile jax::unknown"):
            use()


def test_a_stage_that_fails_behind_others_is_told_as_the_cause_ever_after(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those before it have taken what the program was to write over."""
    started: list[Any] = []

    def failing(target: Target, compiled: Any) -> Any:
        start = starter(target, compiled)

        def fail(arrays: Any) -> Any:
            started.append(arrays)
            if len(started) == 5:
                raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: no memory for the fifth")
            return arrays

        return lambda calls: start(map(fail, calls))

    starter = shard_mapped.starter
    monkeypatch.setattr(shard_mapped, "starter", failing)
    monkeypatch.setattr(stage_cuts, "LEAST_BYTES_ON_HOST", 1)
    monkeypatch.setenv("XLA_STAGE_OPERATIONS", "8")
    torch_xla.sync()
    x, other = torch.full((8, 8), 0.5).to("xla"), torch.ones(3).to("xla")
    kept = x.view(64)
    for _ in range(24):
        x.tanh_().mul_(2)
    beside, doubled = other + 1, x * 2
    with pytest.raises(OutOfMemory, match="(?s)no memory for the fifth.*What the program was to write over is lost"):
        torch_xla.sync()
    torch_xla.sync()
    for use in (x.tolist, kept.tolist, doubled.tolist, lambda: x + 1):
        with pytest.raises(RuntimeError, match="(?s)never computed.*no memory for the fifth"):
            use()
    assert beside.tolist() == [2.0] * 3 and other.tolist() == [1.0] * 3
    x.copy_(torch.ones(8, 8))
    assert kept.sum().item() == 64
