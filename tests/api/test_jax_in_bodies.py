"""Functions of JAX in bodies of scans, loops and branches, and in graphs of `torch.compile`: as outside of them."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
import torch
from jax.experimental import pallas
from jax.experimental.pallas import tpu as pallas_tpu

from torch_xla.core import xla_builder as xb
from torch_xla.experimental.assume_pure import assume_pure
from torch_xla.experimental.custom_kernel import gmm, make_kernel_from_pallas, paged_attention, tgmm
from torch_xla.experimental.fori_loop import while_loop
from torch_xla.experimental.scan import scan
from torch_xla.interop import as_torch, call_jax

Function = Callable[..., Any]

INTERPRETED = pytest.mark.filterwarnings("ignore:the Pallas kernel .* is interpreted:UserWarning")


def times(x: Any, y: Any, product: Any) -> None:
    product[...] = x[...] * y[...]


@jax.custom_vjp
def multiplied(x: Any, y: Any) -> Any:
    return pallas.pallas_call(times, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype))(x, y)


multiplied.defvjp(
    lambda x, y: (multiplied(x, y), (x, y)), lambda kept, grad: (multiplied(grad, kept[1]), multiplied(grad, kept[0]))
)
kernel = make_kernel_from_pallas(multiplied, lambda x, y: [(x.shape, x.dtype)])


@assume_pure
def pure(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x * y.sin()


def nested(x: Any, y: Any, scale: float = 1.0) -> dict[str, Any]:
    return {"sum": [jnp.sin(x) * y * scale, None], "signs": (x > 0,)}


def random(*size: int) -> torch.Tensor:
    return torch.randn(*size, device="xla").requires_grad_()


def integers(*values: Any) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32, device="xla")


def unrolled(body: Function, carry: torch.Tensor, xs: torch.Tensor) -> Any:
    outputs = []
    for x in xs:
        carry, y = body(carry, x)
        outputs.append(y)
    return carry, torch.stack(outputs)


def expect_the_same(body: Function, carry: torch.Tensor, xs: torch.Tensor, *closed: torch.Tensor) -> None:
    """As the rounds one after the other, with gradients; compiled, without."""

    def results(loop: Function) -> list[torch.Tensor]:
        last, ys = loop(body, carry, xs)
        return [last, ys, *torch.autograd.grad(last.sin().sum() + ys.cos().sum(), [carry, xs, *closed])]

    torch.testing.assert_close(results(scan), results(unrolled), rtol=1e-4, atol=1e-5)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # PyTorch looks, and hides it
def test_functions_of_jax_in_a_scan() -> None:
    def body(carry: torch.Tensor, x: torch.Tensor) -> Any:
        found = call_jax(nested, carry, x, scale=2.0)
        assert found["sum"][1] is None and found["signs"][0].dtype is torch.bool
        return found["sum"][0] + 1, xb.call_jax(jnp.multiply, (carry, weight))

    weight = random(3)
    expect_the_same(body, random(3), random(4, 3), weight)
    expect_the_same(lambda carry, x: (pure(carry, x), carry), random(3), random(4, 3))


@INTERPRETED
def test_a_kernel_in_a_scan() -> None:
    expect_the_same(lambda carry, x: (kernel(carry, x) + 1, carry), random(3), random(4, 3))


@pytest.mark.slow
def test_our_kernels_in_a_scan() -> None:
    weight, sizes = random(2, 4, 4), integers(2, 3)
    expect_the_same(lambda carry, x: (gmm(carry, weight, sizes).tanh() + x, x), random(5, 4), random(3, 5, 4), weight)
    expect_the_same(
        lambda carry, x: (tgmm(carry, x, sizes).sum(0).tanh()[:, [0, 1, 2, 3, 0]], carry), random(4, 5), random(3, 5, 4)
    )
    pages, indices, lengths = random(1, 4, 2, 8), integers([0, 1], [3, 2]), integers(3, 4)
    expect_the_same(
        lambda carry, x: (paged_attention(carry, pages, pages, lengths, indices, 1) + x, carry),
        random(2, 2, 8), random(3, 2, 2, 8), pages,
    )  # fmt: skip


def test_functions_of_jax_in_loops_and_branches() -> None:
    x = random(2)
    start = torch.zeros((), dtype=torch.int32, device="xla")
    _, found = while_loop(lambda i, _: i < 3, lambda i, x: (i + 1, call_jax(jnp.sinh, x)), (start, x.detach()))
    torch.testing.assert_close(found.cpu(), x.detach().cpu().sinh().sinh().sinh())
    for x in [random(size) for size in (2, 3, 4)]:  # from the second size on it is a symbol
        result = torch.cond(x.sum() > -100, lambda x: call_jax(jnp.sinh, x), lambda x: 2 * x, (x,))
        torch.testing.assert_close(torch.autograd.grad(result.sum(), x)[0], x.detach().cosh())


def test_a_body_says_what_of_jax_it_cannot_do() -> None:
    def talks(x: Any) -> Any:
        jax.debug.print("{}", x)
        return x

    with pytest.raises(NotImplementedError, match="talks is a JAX function that calls Python on the host"):
        scan(lambda carry, x: (call_jax(talks, carry), x), random(2), random(3, 2))

    seeded = assume_pure(torch.relu, add_rng_seed_argument=True)
    with pytest.raises(NotImplementedError, match="a pure function is given rng_seed inside of a body"):
        scan(lambda carry, x: (seeded(carry, rng_seed=1), x), random(2), random(3, 2))


def test_what_a_body_computes_of_python_numbers_alone() -> None:
    weight = random(4)
    expect_the_same(lambda carry, x: (carry * weight[[1, 0, 2, 3]].exp() + x, x), random(4), random(3, 4), weight)


of_tensors = as_torch(nested)
scaled = functools.partial(nested, scale=3.0)
COMPILED: dict[str, Function] = {
    "function": lambda x, y: call_jax(nested, x, y, scale=2.0)["sum"][0] + 1,
    "function made inside": lambda x, y: call_jax(lambda x: jnp.tanh(x), x) * y,
    "partial function": lambda x, y: call_jax(scaled, x, y)["sum"][0],
    "function of tensors": lambda x, y: of_tensors(x, y)["sum"][0],
    "function of JAX": lambda x, y: xb.call_jax(jnp.multiply, (x, y)),
    "kernel": lambda x, y: kernel(x, y) + 1,
    "pure function": lambda x, y: pure(x, y) + 1,
    "grouped product": lambda x, y: gmm(x.expand(5, 2), y.expand(2, 2, 2), integers(2, 3)).sum(0),
}


@pytest.mark.slow
@INTERPRETED
@pytest.mark.parametrize("name", COMPILED)
def test_functions_of_jax_in_one_compiled_graph(name: str) -> None:
    x, y = random(2), random(2)

    def results(function: Function) -> list[torch.Tensor]:
        result = function(x, y)
        return [result, *torch.autograd.grad(result.sin().sum(), [x, y])]

    torch._dynamo.reset()
    compiled = torch.compile(COMPILED[name], backend="openxla", fullgraph=True)
    torch.testing.assert_close(results(compiled), results(COMPILED[name]))


@pytest.mark.slow
def test_compiled_functions_of_jax_take_sizes_that_change_and_tell_their_errors() -> None:
    compiled = torch.compile(lambda x: call_jax(jnp.sin, x) + 1, backend="openxla")
    for size in (2, 3, 4):
        torch.testing.assert_close(compiled(torch.ones(size, device="xla")).cpu(), torch.ones(size).sin() + 1)
    with pytest.raises(TypeError, match="dot_general"):
        torch.compile(lambda x: call_jax(jnp.matmul, x, x[:1]), backend="openxla")(torch.ones(2, 3, device="xla"))


def sent(x: Any, out: Any, scratch: Any, done: Any) -> None:
    copy = pallas_tpu.make_async_copy(x, scratch, done)
    copy.start()
    copy.wait()
    out[...] = 2 * scratch[...]


@INTERPRETED
def test_a_kernel_with_scratch_and_copies_is_interpreted() -> None:
    def doubled(x: Any) -> Any:
        memory = [pallas_tpu.VMEM(x.shape, x.dtype), pallas_tpu.SemaphoreType.DMA]
        return pallas.pallas_call(
            sent, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype), scratch_shapes=memory,
            in_specs=[pallas.BlockSpec(memory_space=pallas.ANY)],
        )(x)  # fmt: skip

    run = make_kernel_from_pallas(doubled, lambda x: [(x.shape, x.dtype)])
    assert run(torch.ones(4, device="xla")).tolist() == [2.0] * 4
