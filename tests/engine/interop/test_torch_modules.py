"""PyTorch's modules as pure functions of JAX: values, gradients and buffers beside PyTorch on the CPU."""

import copy
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch._higher_order_ops import while_loop

from torch_xla.interop import as_jax, to_jax


class Attention(nn.Module):
    """A small decoder: embeddings, attention, norms, and one weight under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 8)
        self.qkv = nn.Linear(8, 24)
        self.norm = nn.LayerNorm(8)
        self.head = nn.Linear(8, 11, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens: Tensor, targets: Tensor | None = None) -> dict[str, Tensor]:
        x = self.norm(self.embed(tokens))
        q, k, v = self.qkv(x).unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4)
        x = x + nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        logits = self.head(x)
        if targets is None:
            return {"logits": logits}
        return {"logits": logits, "loss": nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())}


def convolutions() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1), nn.GroupNorm(2, 4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(64, 5)
    )


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(3, 4, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.lstm(x)[0].tanh()  # type: ignore[no-any-return]


class Kinks(nn.Module):
    """At its zeros PyTorch's derivatives are a convention, which JAX's differ from."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        y = x * self.scale
        return y.relu() + y.clamp(0, 1) + y.norm() + nn.functional.hardtanh(y) + y.abs() + (y + 1).detach() * y


MODULES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "convolutions": (convolutions, (2, 3, 8, 8)),
    "recurrent": (Recurrent, (2, 5, 3)),
    "encoder": (lambda: nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True), (2, 5, 8)),
    "kinks": (Kinks, (3, 4)),
}


@pytest.fixture
def wide() -> Any:
    with jax.enable_x64(True):
        yield


def arrays_of(module: nn.Module) -> dict[str, np.ndarray]:
    return {name: each.detach().numpy() for name, each in module.named_parameters()}


def assert_equal(found: dict[str, Any], expected: dict[str, Any], tolerance: float) -> None:
    assert found.keys() == expected.keys()
    for name, each in expected.items():
        np.testing.assert_allclose(np.asarray(found[name]), each, rtol=tolerance, atol=tolerance, err_msg=name)


@pytest.mark.parametrize("name", MODULES)
@pytest.mark.parametrize("home", ["cpu", "xla"])
def test_values_and_gradients_are_those_of_pytorch_in_float64(name: str, home: str, wide: None) -> None:
    make, size = MODULES[name]
    torch.manual_seed(0)
    module = make().double()
    x = torch.randn(size, dtype=torch.float64, requires_grad=True)
    expected = module(x)
    expected.square().sum().backward()
    gradients = {n: p.grad.numpy() for n, p in module.named_parameters()}  # type: ignore[union-attr]

    parameters, function = as_jax(copy.deepcopy(module).to(home))
    np.testing.assert_allclose(function(parameters, jnp.asarray(x.detach().numpy())), expected.detach(), rtol=1e-12)
    loss = lambda parameters, x: jnp.sum(function(parameters, x) ** 2)  # noqa: E731
    found, by_x = jax.jit(jax.grad(loss, argnums=(0, 1)))(parameters, jnp.asarray(x.detach().numpy()))
    assert_equal(found, gradients, 1e-11)
    np.testing.assert_allclose(by_x, x.grad.numpy(), rtol=1e-11, atol=1e-12)  # type: ignore[union-attr]


def test_a_language_model_trains_without_64_bit_numbers() -> None:
    torch.manual_seed(0)
    module = Attention()
    tokens, targets = torch.randint(11, (2, 6)), torch.randint(11, (2, 6))
    parameters, function = as_jax(module)
    assert sorted(parameters) == sorted(name for name, _ in module.named_parameters())

    @jax.jit
    def step(parameters: Any, tokens: Any, targets: Any) -> Any:
        loss, grads = jax.value_and_grad(lambda p: function(p, tokens, targets=targets)["loss"])(parameters)
        return loss, jax.tree.map(lambda p, g: p - 0.1 * g, parameters, grads)

    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    for _ in range(3):
        loss, parameters = step(parameters, jnp.asarray(tokens.numpy()), jnp.asarray(targets.numpy()))
        expected = module(tokens, targets)["loss"]
        expected.backward()
        optimizer.step()
        optimizer.zero_grad()
        np.testing.assert_allclose(loss, expected.item(), rtol=1e-5)
    assert_equal(parameters, arrays_of(module), 1e-5)
    assert set(function(parameters, jnp.asarray(tokens.numpy()))) == {"logits"}


def test_buffers_that_change_are_returned() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    parameters, function = as_jax(module)
    x = torch.randn(5, 3)
    assert sorted(function.buffers) == ["1.num_batches_tracked", "1.running_mean", "1.running_var"]
    buffers = function.buffers

    def loss(parameters: Any, buffers: Any, x: Any) -> Any:
        output, buffers = function(parameters, x, buffers=buffers)
        return jnp.sum(output**3), buffers

    for _ in range(2):
        expected = module(x)
        (_, buffers), gradients = jax.jit(jax.value_and_grad(loss, has_aux=True))(
            parameters, buffers, jnp.asarray(x.numpy())
        )
    assert_equal(buffers, {name: each.numpy() for name, each in module.named_buffers()}, 1e-6)
    module.zero_grad()
    (expected**3).sum().backward()
    assert_equal(gradients, {n: p.grad.numpy() for n, p in module.named_parameters()}, 1e-4)  # type: ignore[union-attr]
    with pytest.raises(ValueError, match=r"changes its buffers \(1.running_mean.*buffers=buffers"):
        function(parameters, jnp.asarray(x.numpy()))
    evaluated, calm = as_jax(module.eval())
    np.testing.assert_allclose(calm(evaluated, jnp.asarray(x.numpy())), module(x).detach(), rtol=1e-5, atol=1e-6)
    assert module.train().training
    np.testing.assert_allclose(calm(evaluated, jnp.asarray(x.numpy())), module.eval()(x).detach(), rtol=1e-5, atol=1e-6)


def test_random_numbers_follow_from_the_key() -> None:
    parameters, function = as_jax(nn.Sequential(nn.Linear(3, 64), nn.Dropout(0.25)))
    x, keys = jnp.ones((2, 3)), jax.random.split(jax.random.key(1), 4)
    first, again, other = (function(parameters, x, rng=key) for key in (keys[0], keys[0], keys[1]))
    assert (first == again).all()
    assert (first != other).any()
    batched = jax.vmap(lambda key: function(parameters, x, rng=key))(keys)
    for key, each in zip(keys, batched, strict=True):
        np.testing.assert_allclose(each, function(parameters, x, rng=key), rtol=1e-6)
    # The backward pass meets the elements that the forward pass kept.
    gradient = jax.grad(lambda p: jnp.sum(function(p, x, rng=keys[0])))(parameters)["0.bias"]
    kept = (np.asarray(first) != 0).sum(0)
    np.testing.assert_allclose(gradient, kept / 0.75, rtol=1e-6)
    assert 0.6 < kept.mean() / 2 < 0.9
    with pytest.raises(TypeError, match=r"draws random numbers \(aten.*rng=jax.random.key"):
        function(parameters, x)


def test_vmap_over_parameters_is_an_ensemble() -> None:
    modules = [nn.Linear(3, 2) for _ in range(4)]
    converted = [as_jax(module) for module in modules]
    function = converted[0][1]
    stacked = jax.tree.map(lambda *each: jnp.stack(each), *(parameters for parameters, _ in converted))
    x = torch.randn(5, 3)
    found = jax.vmap(function, in_axes=(0, None))(stacked, jnp.asarray(x.numpy()))
    for each, module in zip(found, modules, strict=True):
        np.testing.assert_allclose(each, module(x).detach(), rtol=1e-5, atol=1e-6)
    with pytest.raises(ValueError, match=r"(?s)has the size \[2, 3\]; got an array of \[4, 2, 3\].*jax.vmap"):
        function(stacked, jnp.asarray(x.numpy()))
    of_examples = jax.vmap(jax.grad(lambda p, x: jnp.sum(function(p, x) ** 2)), in_axes=(None, 0))
    gradients = of_examples(converted[0][0], jnp.asarray(x.numpy()))
    for row, each in zip(x, gradients["weight"], strict=True):
        modules[0].zero_grad()
        modules[0](row).square().sum().backward()
        np.testing.assert_allclose(each, modules[0].weight.grad, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("pool", "size"),
    [
        (nn.MaxPool1d(2), (7,)),
        (nn.MaxPool2d(3, 2, 1), (6, 7)),
        (nn.AdaptiveMaxPool2d(2), (4, 6)),
        (nn.MaxPool3d(2), (4, 4, 5)),
    ],
    ids=lambda each: type(each).__name__,
)
def test_vmap_gives_the_gradients_of_examples_through_maximum_pooling(pool: nn.Module, size: tuple[int, ...]) -> None:
    parameters, function = as_jax(pool)
    xs = torch.randn(4, 2, *size, requires_grad=True)
    weights = torch.randn(3, *pool(xs).shape[1:])

    def total(x: jax.Array, w: jax.Array) -> jax.Array:
        return jnp.sum(function(parameters, x[None])[0] * w)

    both = jax.vmap(jax.grad(total), (0, None))(jnp.asarray(xs.detach().numpy()), jnp.asarray(weights[0].numpy()))
    (expected,) = torch.autograd.grad((pool(xs) * weights[0]).sum(), xs)
    np.testing.assert_allclose(both, expected, rtol=1e-6)
    weighted = jax.vmap(jax.grad(total), (None, 0))(jnp.asarray(xs[0].detach().numpy()), jnp.asarray(weights.numpy()))
    for w, each in zip(weights, weighted, strict=True):
        (expected,) = torch.autograd.grad((pool(xs[:1]) * w).sum(), xs)
        np.testing.assert_allclose(each, expected[0], rtol=1e-6)


class Straight(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.round()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:  # type: ignore[override]
        return grad * 7


class Rounded(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor([0.3, 1.7]))
        self.frozen = nn.Parameter(torch.tensor([2.0, 3.0]), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        return Straight.apply(self.w * self.frozen) * x  # type: ignore[no-any-return]


def test_gradients_of_an_autograd_function_are_its_own_and_frozen_parameters_have_none() -> None:
    parameters, function = as_jax(Rounded())
    assert list(parameters) == ["w"]
    assert list(function.buffers) == ["frozen"]
    gradient = jax.grad(lambda p: jnp.sum(function(p, jnp.ones(2))))(parameters)
    np.testing.assert_array_equal(gradient["w"], [14.0, 21.0])


class Power(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor([0.5, -1.5, 2.0]))

    def forward(self, x: Tensor) -> Tensor:
        return ((self.w * x).sin() * x.exp()).sum()


def test_gradients_of_gradients_and_forward_derivatives(wide: None) -> None:
    module, x = Power().double(), torch.tensor([0.1, 0.7, -0.4], dtype=torch.float64)
    expected = torch.autograd.functional.hessian(
        lambda w: torch.func.functional_call(module, {"w": w}, (x,)), module.w.detach()
    )
    given = jnp.asarray(x.numpy())
    parameters, function = as_jax(module)
    twice = jax.jacrev(jax.jacrev(function))(parameters, given)["w"]["w"]
    np.testing.assert_allclose(twice, expected, rtol=1e-12, atol=1e-12)
    thrice = jax.jacrev(jax.jacrev(jax.grad(function)))(parameters, given)["w"]["w"]["w"]
    plain = jax.jacrev(jax.hessian(lambda w: jnp.sum(jnp.sin(w * given) * jnp.exp(given))))(parameters["w"])
    np.testing.assert_allclose(jnp.diagonal(jnp.diagonal(thrice)), jnp.diagonal(jnp.diagonal(plain)), rtol=1e-12)
    parameters, function = as_jax(module, derivatives="jax")
    np.testing.assert_allclose(jax.hessian(function)(parameters, given)["w"]["w"], expected, rtol=1e-12, atol=1e-12)


def test_all_orders_of_forward_and_backward_derivatives(wide: None) -> None:
    torch.manual_seed(0)
    # A normalisation, of which PyTorch's third gradients are wrong, so that two orders must not need three.
    module = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.GELU(), nn.Linear(4, 2)).double()
    x, v = (jnp.asarray(np.random.default_rng(seed).normal(size=(2, 3))) for seed in range(2))
    found = []
    for derivatives in ("torch", "jax"):
        parameters, function = as_jax(module, derivatives=derivatives)

        def total(x: jax.Array, parameters: object = parameters, function: Any = function) -> jax.Array:
            return jnp.sum(jnp.sin(function(parameters, x)) ** 2)

        def along(f: Callable[..., object]) -> Callable[..., object]:
            return lambda x: jax.jvp(f, (x,), (v,))[1]

        found.append(
            [
                jax.jvp(function, (parameters, x), (parameters, v))[1],
                jax.linearize(total, x)[1](v),
                jax.jit(jax.jacfwd(total))(x),
                jax.vmap(along(total))(jnp.stack([x, v])),
                along(jax.grad(total))(x),
                jax.grad(along(total))(x),
                jax.jit(along(along(total)))(x),
            ]
        )
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(found[0][4], found[0][5], rtol=1e-9)


def test_forward_derivatives_that_are_missing_say_so() -> None:
    parameters, function = as_jax(nn.MaxPool1d(2))
    x = jnp.arange(4.0)[None]
    words = r"cannot transpose this one \(.*Take gradients of gradients .* as_jax\(module, derivatives=\"jax\"\)"
    with pytest.raises(NotImplementedError, match=words):
        jax.jvp(lambda x: function(parameters, x), (x,), (x,))
    _, cubed = as_jax(Power())

    def along(f: Callable[..., object]) -> Callable[..., object]:
        return lambda w: jax.jvp(f, (w,), (jnp.ones(3),))[1]

    given = jnp.ones(3)
    with pytest.raises(NotImplementedError, match="no third ones of these. Make one of the three a gradient"):
        along(along(along(lambda w: cubed({"w": w}, given))))(given)


class Pair(NamedTuple):
    left: Tensor
    right: dict[str, Any]


class Nested(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 2)
        self.plain = torch.arange(2.0, device="xla")  # no buffer, and a constant

    def forward(self, pair: list[Tensor], *, options: dict[str, Any], mode: str = "sum", scale: float = 1.0) -> Pair:
        pair[0] += 1  # an argument of the caller, who must not see it
        position = torch.arange(2, device=pair[0].device) + torch.zeros(2)
        out = self.linear(pair[0]) * scale + pair[1] + position + self.plain
        return Pair(out, {"mode": mode, "reduced": out.sum() if mode == "sum" else out.mean(), "options": options})


class Branching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([1.0, 2.0]))

    def forward(self, x: Tensor) -> Tensor:
        y = x * self.weight
        chosen: Tensor = torch.cond(y.sum() > 0, lambda y: y.sin(), lambda y: y**2, (y,))
        return chosen


class Looping(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        start = torch.zeros((), dtype=torch.int64, device=x.device)
        result: Tensor = while_loop(lambda i, x: i < 3, lambda i, x: (i + 1, x * x), (start, x))[1]
        return result


def test_branches_and_loops_are_computed_and_jax_differentiates_them() -> None:
    xs = np.array([[0.5, 0.25], [-0.5, -0.25]], np.float32)
    ys = xs * np.array([1, 2], np.float32)
    for module, right in ((Branching(), np.stack([np.sin(ys[0]), ys[1] ** 2])), (Looping(), xs**8)):
        parameters, function = as_jax(module)
        for found in (jax.vmap(function, (None, 0))(parameters, xs), [jax.jit(function)(parameters, x) for x in xs]):
            np.testing.assert_allclose(found, right, rtol=1e-6)
        with pytest.raises(NotImplementedError, match=r'PyTorch has no gradients of .*derivatives="jax"'):
            jax.grad(lambda x: function(parameters, x).sum())(xs[0])  # noqa: B023

    branching = Branching()
    parameters, function = as_jax(branching, derivatives="jax")
    for x in xs:
        y = torch.tensor(x) * branching.weight
        (y.sin() if y.sum() > 0 else y**2).sum().backward()
        assert branching.weight.grad is not None
        found = jax.jit(jax.grad(lambda p, x: function(p, x).sum()))(parameters, x)["weight"]
        np.testing.assert_allclose(found, branching.weight.grad.numpy(), rtol=1e-6)
        branching.weight.grad = None
    _, function = as_jax(Looping(), derivatives="jax")
    _, forward = jax.jvp(lambda x: function({}, x), (xs[0],), (np.ones_like(xs[0]),))
    np.testing.assert_allclose(forward, 8 * xs[0] ** 7, rtol=1e-6)


def test_structures_keyword_arguments_and_writes_to_arguments() -> None:
    module = Nested().to("xla")
    parameters, function = as_jax(module)
    given = [jnp.ones((3, 2)), jnp.full((3, 2), 2.0)]
    found = function(parameters, given, options={"x": jnp.arange(3)}, mode="mean", scale=2.0)
    with torch.device("xla"):
        expected = module([torch.ones(3, 2, device="xla"), torch.full((3, 2), 2.0, device="xla")],
                          options={"x": torch.arange(3)}, mode="mean", scale=2.0)  # fmt: skip
    assert type(found) is Pair
    np.testing.assert_allclose(found.left, expected.left.detach().cpu(), rtol=1e-6)
    assert found.right["mode"] == "mean"
    assert found.right["options"]["x"].tolist() == [0, 1, 2]
    assert given[0].max() == 1


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_parameters_may_be_cast(dtype: Any) -> None:
    module = nn.Linear(3, 2)
    parameters, function = as_jax(module)
    half = jax.tree.map(lambda each: each.astype(dtype), parameters)
    found = function(half, jnp.ones((4, 3), dtype))
    assert found.dtype == dtype
    np.testing.assert_allclose(found.astype(np.float32), module(torch.ones(4, 3)).detach(), atol=2e-2)


def test_it_is_traced_once_for_each_kind_of_arguments() -> None:
    calls = []

    class Counted(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            calls.append(tuple(x.shape))
            return x * 2

    parameters, function = as_jax(Counted())
    for size in (2, 3, 2):
        assert function(parameters, jnp.ones(size)).tolist() == [2.0] * size
    count = len(calls)
    function(parameters, jnp.zeros(3))
    assert len(calls) == count


def test_without_memory_parameters_are_descriptions() -> None:
    with torch.device("meta"):
        module = nn.Linear(1 << 20, 1 << 20)
    parameters, function = as_jax(module)
    found = jax.eval_shape(function, parameters, jax.ShapeDtypeStruct((2, 1 << 20), np.float32))
    assert found.shape == (2, 1 << 20)


def test_what_is_given_wrongly_is_refused_with_what_to_do() -> None:
    parameters, function = as_jax(nn.Linear(3, 2))
    x = jnp.ones(3)
    with pytest.raises(TypeError, match=r"takes arrays; got a tensor on cpu.*to_jax"):
        function(parameters, torch.ones(3))
    with pytest.raises(TypeError, match=r"takes parameters as a dict of arrays by name; got a list"):
        function([], x)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"by name; bias missing"):
        function({"weight": parameters["weight"]}, x)
    with pytest.raises(ValueError, match=r"by name; other unknown"):
        function({**parameters, "other": x}, x)
    with pytest.raises(TypeError, match=r"takes a torch.nn.Module; got a function"):
        as_jax(lambda x: x)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r'"torch" or "jax"; got \'forward\''):
        as_jax(nn.Linear(1, 1), derivatives="forward")
    with pytest.raises(ValueError, match=r"float64, which JAX holds only with.*module.float\(\)"):
        as_jax(nn.Linear(1, 1).double())
    with pytest.raises(ValueError, match=r"has no size yet, as its module is lazy"):
        as_jax(nn.LazyLinear(3))

    class Random(nn.Module):
        def forward(self, x: Tensor, rng: Tensor) -> Tensor:
            return x + rng

    with pytest.raises(ValueError, match=r"has an argument 'rng'.*Wrap the module"):
        as_jax(Random())


def test_the_module_stays_as_it_is() -> None:
    module = nn.Linear(2, 2, device="xla")
    parameters, function = as_jax(module)
    with torch.no_grad():
        module.weight.fill_(0.0)
    assert bool((parameters["weight"] != 0).any())
    assert (function(parameters, jnp.ones(2)) != to_jax(module(torch.ones(2, device="xla")))).any()
