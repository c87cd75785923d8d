"""JAX functions as recorded operations, with gradients."""

import subprocess
import sys
from collections import OrderedDict
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from jax.experimental import pallas
from torch import Tensor, nn

import torch_xla
import torch_xla.debug.metrics as met
from torch_xla._engine.interop import jax_functions
from torch_xla._engine.ir.graph_text import to_text
from torch_xla._engine.step.pending_graph import graph_of
from torch_xla.core.xla_builder import call_jax
from torch_xla.experimental.assume_pure import j2t_autograd
from torch_xla.experimental.scan import scan
from torch_xla.interop import as_torch


def test_what_a_function_does_not_take_is_refused() -> None:
    with pytest.raises(RuntimeError, match="takes tensors on the xla device; one of its arguments is on cpu"):
        call_jax(jnp.sin, (torch.ones(2),))
    with pytest.raises(TypeError, match="hashable values"):
        call_jax(lambda x, s: x, (torch.ones(2, device="xla"), {1, 2}))


def test_a_jax_function_is_one_operation_with_any_structure() -> None:
    def function(pair: Any, *, scale: float, table: Any) -> Any:
        return {"sum": pair[0] + pair[1] * scale, "where": jnp.argmax(pair[0]), "table": (table, None)}

    a, b = torch.tensor([1.0, 5.0]).to("xla"), torch.tensor([2.0, 3.0]).to("xla")
    found = call_jax(function, ([a, b],), {"scale": 2.0, "table": np.arange(2)}, name="mine")
    assert found["sum"].tolist() == [5.0, 11.0] and found["where"].item() == 1
    assert found["table"][0].tolist() == [0, 1] and found["table"][1] is None
    assert set(met.executed_fallback_ops()) <= {"aten::_local_scalar_dense"}  # of `item`


@pytest.mark.parametrize("dtype", (torch.float32, torch.float64, torch.complex64))
def test_gradients_are_pytorchs(dtype: torch.dtype) -> None:
    def in_torch(x: Tensor, w: Tensor) -> Tensor:
        return (x @ w).pow(3) * w.sum()

    def in_jax(x: Any, w: Any) -> Any:
        return (x @ w) ** 3 * w.sum()

    results: list[list[Tensor]] = []
    for device, function in (("cpu", in_torch), ("xla", as_torch(in_jax))):
        torch.manual_seed(0)
        x = torch.randn(2, 3, dtype=dtype).to(device).requires_grad_()
        w = torch.randn(3, 3, dtype=dtype).to(device).requires_grad_()
        out = function(x, w)
        first = torch.autograd.grad(
            out, (x, w), torch.ones_like(out) * (1 + 2j if dtype.is_complex else 1), create_graph=True
        )
        second = torch.autograd.grad(first[0].abs().sum(), (x, w))
        results.append([t.detach().cpu() for t in (out, *first, *second)])
    for theirs, ours in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


def test_integers_have_no_gradient_and_leave_the_others_theirs() -> None:
    x = torch.tensor([3.0, 1.0]).to("xla").requires_grad_()
    index = torch.tensor([1, 0]).to("xla")
    values, order = j2t_autograd(lambda x, i: (x[i] * 2, jnp.argsort(x)))(x, index)
    assert order.requires_grad is False and order.tolist() == [1, 0]
    (values * torch.tensor([1.0, 10.0]).to("xla")).sum().backward()
    assert x.grad is not None and x.grad.tolist() == [20.0, 2.0]


def test_the_users_precision_setting_decides_without_64_bit_tensors() -> None:
    x = torch.ones(2, device="xla")
    assert call_jax(lambda x: jnp.zeros(3) + x.sum(), (x,)).dtype is torch.float32
    assert call_jax(lambda x: jnp.zeros(3) + x.sum(), (x.double(),)).dtype is torch.float64
    assert call_jax(lambda i: i + 1, (torch.tensor([1 << 40]).to("xla"),)).tolist() == [(1 << 40) + 1]


def test_a_jax_function_trains_with_the_rest() -> None:
    def trained(device: str) -> list[float]:
        torch.manual_seed(0)
        model = nn.Linear(3, 3).to(device)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
        activation: Any = nn.functional.silu if device == "cpu" else as_torch(jax.nn.silu)
        losses = []
        for _ in range(4):
            loss = activation(model(torch.ones(2, 3).to(device))).pow(2).sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
            torch_xla.sync()
        return [loss.item() for loss in losses]

    assert trained("xla") == pytest.approx(trained("cpu"), rel=1e-5)
    assert (met.counter_value("UncachedCompile") or 0) <= 2 + 1


@pytest.mark.slow
def test_equal_functions_are_one_program_in_another_process() -> None:
    program = """
import jax.numpy as jnp, torch
from torch_xla._engine.interop import jax_functions
x = torch.ones(3, device="xla")
table = jnp.arange(3.0)
jax_functions.call(lambda x: jnp.tanh(x) + table, (x,), {})
print([traced.plan.op for traced in jax_functions.known.values()])
"""
    names = [
        subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
        for _ in range(2)
    ]
    assert names[0] == names[1] and "jax::<lambda>_" in names[0]


def _within_jit(constant: np.ndarray) -> Any:
    inner = jax.jit(lambda x: x + constant)
    return lambda x: inner(x)


def _within_checkpoint(constant: np.ndarray) -> Any:
    return jax.checkpoint(lambda x: x + constant)


def _within_branches(constant: np.ndarray) -> Any:
    def call(x: Any) -> Any:
        return jax.lax.cond(x[0] > 0, jax.jit(lambda y: y + constant), lambda y: y, x)

    return call


@pytest.mark.parametrize("within", (_within_jit, _within_checkpoint, _within_branches))
def test_functions_that_differ_in_an_inner_constant_alone_are_two(within: Any) -> None:
    x = torch.ones(4, device="xla")
    for start in (0.0, 1.0):
        constant = np.arange(start, start + 4, dtype=np.float32)
        assert call_jax(within(constant), (x,)).tolist() == (constant + 1).tolist()


def test_kernels_that_differ_in_the_blocks_they_read_alone_are_two() -> None:
    def kernel(x: Any, out: Any) -> None:
        out[...] = x[...] * 2

    def blocked(order: Any) -> Any:
        def call(x: jax.Array) -> Any:
            block = pallas.BlockSpec((2,), lambda i: (i,))
            shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
            read = pallas.BlockSpec((2,), lambda i: (order(i),))
            return pallas.pallas_call(
                kernel, grid=(4,), in_specs=[read], out_specs=block, out_shape=shape, interpret=True
            )(x)

        return call

    x = torch.arange(8.0, device="xla")
    assert call_jax(blocked(lambda i: i), (x,)).tolist() == [0, 2, 4, 6, 8, 10, 12, 14]
    assert call_jax(blocked(lambda i: 3 - i), (x,)).tolist() == [12, 14, 8, 10, 4, 6, 0, 2]
    names = {
        jax_functions._name("", jax.make_jaxpr(blocked(lambda i: 3 - i))(np.ones(8, np.float32))) for _ in range(2)
    }
    assert len(names) == 1 and " at 0x" not in names.pop()


def _with_gradient(factor: float, scale: float = 2.0) -> Any:
    """A function that multiplies by `scale`, and says that its gradient is `factor`."""

    @jax.custom_vjp
    def scaled(x: Any) -> Any:
        return x * scale

    scaled.defvjp(lambda x: (x * scale, None), lambda _, gradient: (gradient * factor,))

    def function(x: Any) -> Any:
        return scaled(x)

    return function


@pytest.mark.parametrize("way", ["called", "in a body", "compiled"])
def test_functions_that_differ_in_the_gradient_they_bring_alone_are_two(way: str) -> None:
    def gradient(function: Any) -> float:
        x = torch.ones((), device="xla", requires_grad=True)

        def call(x: torch.Tensor) -> torch.Tensor:
            if way == "in a body":
                found: torch.Tensor = scan(lambda c, _: (call_jax(function, (c,)), c), x, x.new_zeros(1))[0]
                return found
            return call_jax(function, (x,)) + 0  # type: ignore[no-any-return]

        result = (torch.compile(call, backend="openxla") if way == "compiled" else call)(x)
        result.backward()
        assert x.grad is not None
        return float(x.grad)

    assert [gradient(_with_gradient(factor)) for factor in (3.0, 5.0, 3.0)] == [3, 5, 3]


def test_functions_that_one_factory_made_are_two_to_a_graph() -> None:
    x = torch.ones((), device="xla")

    def called(function: Any) -> float:
        return float(torch.compile(lambda x: call_jax(function, (x,)) + 0, backend="openxla")(x))

    assert [called(_with_gradient(1.0, scale)) for scale in (2.0, 5.0)] == [2, 5]


def test_a_function_is_traced_again_under_another_setting_of_jax() -> None:
    x = torch.ones(2, 2, device="xla")

    def product(y: Any) -> Any:
        return y @ y

    def recorded() -> str:
        return to_text(graph_of([call_jax(product, (x,))]).graph)

    plain = recorded()
    with jax.default_matmul_precision("highest"):
        exact = recorded()
    assert plain == recorded() != exact


def test_numbers_that_are_equal_and_not_the_same_are_two_functions() -> None:
    whole, x = torch.ones(2, dtype=torch.int32, device="xla"), torch.ones(1, device="xla")
    found = [call_jax(lambda y, n: y * n, (whole, n)).dtype for n in (1, 1.0, True)]
    assert found == [torch.int32, torch.float32, torch.int32]
    function = jnp.divide
    assert [call_jax(function, (x, n)).item() for n in (0.0, -0.0)] == [float("inf"), -float("inf")]
    assert [call_jax(jnp.multiply, (whole, n)).dtype for n in (1, 1.0)] == [torch.int32, torch.float32]


def test_arrays_and_structures_reach_the_function_as_they_are() -> None:
    x = torch.ones(2, device="xla")
    found = call_jax(
        lambda t, *, more: {"sum": t + more[0] + more[1]["n"], "n": t.sum()},
        (x,),
        {"more": (np.full(2, 2, np.float32), {"n": jnp.ones(2)})},
    )
    assert found["sum"].tolist() == [4, 4] and found["n"].item() == 2
    with pytest.raises(ValueError, match="at least one tensor among its arguments"):
        jax_functions.call(lambda: jnp.ones(2), (), {})
    assert "f32[2]" in jax_functions.hlo_text(jnp.sin, (x,), {}) and "sine" in jax_functions.hlo_text(jnp.sin, (x,), {})


def test_functions_of_graphs_without_end_are_forgotten_and_those_in_use_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jax_functions, "_MOST_IN_GRAPHS", 4)
    monkeypatch.setattr(jax_functions, "_in_graphs", OrderedDict())
    names = []
    for number in range(8):
        tree = jax.tree.structure(((0,), {}))
        flat = jax_functions.Flat(lambda x, number=number: x + number, tree, (jax_functions._ARRAY,), f"plus {number}")
        names.append(jax_functions._in_graph(flat, [((2,), torch.float32)]).plan.op)
        jax_functions._named(names[0])
    assert len(jax_functions._in_graphs) <= 4 and names[0] in jax_functions._in_graphs
    with pytest.raises(RuntimeError, match="which left memory after 4 others; trace the graph again"):
        jax_functions._named(names[1])
