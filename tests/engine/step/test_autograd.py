"""Autograd in full on the device: PyTorch's own engine over recorded operations."""

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.autograd.forward_ad as forward_ad
from torch import Tensor, nn
from torch.func import (
    functional_call,
    functionalize,
    grad,
    hessian,
    jacfwd,
    jacrev,
    jvp,
    linearize,
    stack_module_state,
    vjp,
    vmap,
)
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

from tests.support.twins import Program, cases, check_refused, check_same, numbers
from torch_xla import _XLAC


def n(*size: int, d: str, dtype: torch.dtype = torch.float32) -> Tensor:
    return numbers(*size, device=d, dtype=dtype)


def leaf(*size: int, d: str, dtype: torch.dtype = torch.float32) -> Tensor:
    return n(*size, d=d, dtype=dtype).requires_grad_()


def model(d: str) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).to(d)


def gradient(function: Callable[[Tensor], Tensor], *size: int) -> Program:
    """A program that gives the gradient of the sum of squares of `function`."""

    def program(d: str) -> Any:
        x = leaf(*size, d=d)
        y = function(x)
        y.pow(2).sum().backward()
        return y, x.grad

    return program


@cases(
    {
        "arithmetic": gradient(lambda x: (x * 3 - 1) / (x + 2), 3),
        "in place": gradient(lambda x: (y := x * 2, y[1:].mul_(3), y.__setitem__(0, 7.0), y.relu_())[0], 4),
        "in place through views": gradient(
            lambda x: (y := x.clone(), y.view(-1)[2:5].mul_(10), y.t()[0].add_(y[1, :2]))[0], 2, 3
        ),
        "copy into": gradient(lambda x: torch.zeros_like(x).copy_(x * 2), 3),
        "slice assignment": gradient(lambda x: (y := torch.zeros_like(x), y[1:].copy_(x[:-1]))[0], 4),
        "expand": gradient(lambda x: x.expand(4, 3), 3),
        "as_strided": gradient(lambda x: x.as_strided((3, 3), (2, 1), 1), 12),
        "unfold": gradient(lambda x: x.unfold(0, 3, 2), 7),
        "index": gradient(lambda x: x[torch.tensor([0, 2, 0])], 4, 3),
        "index by list": gradient(lambda x: x[:, [0, 1]][1], 2, 3),
        "gather": gradient(lambda x: x.gather(1, torch.tensor([[0], [2]], device=x.device)), 2, 3),
        "where": gradient(lambda x: torch.where(x > 1, x * 2, x * 3), 3),
        "sort, max, topk": gradient(
            lambda x: torch.cat([x.sort(1).values, x.max(1, keepdim=True).values, x.topk(2).values], 1), 2, 3
        ),
        "statistics": gradient(lambda x: torch.stack([x.mean(), x.var(), x.std(), x.norm()]), 2, 3),
        "softmax": gradient(lambda x: x.softmax(0), 3),
        "matrix product": gradient(lambda x: x @ x.t(), 2, 3),
        "batched product": gradient(lambda x: x @ x.transpose(1, 2), 2, 2, 3),
        "vector product": gradient(lambda x: x @ x[0], 2, 3),
        "to double and back": gradient(lambda x: (x.double() * 2).float(), 3),
        "to the host and back": gradient(lambda x: (x.cpu() * 2).to(x.device), 3),
        "cat, stack, split": gradient(lambda x: torch.stack(torch.cat([x, x * 2]).split(2)), 4),
        "cumsum, flip, roll": gradient(lambda x: x.cumsum(0).flip(0).roll(1), 4),
    }
)
def test_gradients_are_those_of_the_cpu(program: Program) -> None:
    check_same(program, rtol=1e-5, atol=1e-5)


def test_complex_gradients_are_those_of_the_cpu() -> None:
    def use(d: str) -> Any:
        x = torch.complex(n(3, d=d), n(3, d=d) + 1).requires_grad_()
        return torch.autograd.grad((x * x.conj()).real.sum() + x.abs().sum() + x.imag.pow(2).sum(), x)

    check_same(use)


def test_hooks_see_and_change_gradients() -> None:
    def use(d: str) -> Any:
        log: list[Any] = []
        x = leaf(3, d=d)
        x.register_hook(lambda g: g * 2)
        x.register_post_accumulate_grad_hook(lambda p: log.append("accumulated"))
        y = x * 3
        y.register_hook(lambda g: log.append(g.sum().item()))
        y.retain_grad()
        assert y.grad_fn is not None
        y.grad_fn.register_prehook(lambda g: log.append("before"))
        y.grad_fn.register_hook(lambda gi, go: log.append(len(gi)))
        y.sum().backward()
        return x.grad, y.grad, log

    check_same(use)


def test_module_hooks_run_in_order() -> None:
    def use(d: str) -> Any:
        log: list[str] = []
        m = model(d)[0]
        m.register_forward_pre_hook(lambda m, i: log.append("before"))
        m.register_forward_hook(lambda m, i, o: log.append("forward") or o * 2)  # type: ignore[func-returns-value]
        m.register_full_backward_hook(lambda m, gi, go: log.append("backward"))
        m(leaf(2, 3, d=d)).sum().backward()
        return log, m.weight.grad

    check_same(use)


def test_gradients_of_gradients_of_gradients() -> None:
    def use(d: str) -> Any:
        x = leaf(3, d=d)
        (first,) = torch.autograd.grad((x**3).sum(), x, create_graph=True)
        (second,) = torch.autograd.grad(first.sum(), x, create_graph=True)
        return first, second, torch.autograd.grad(second.sum(), x)

    check_same(use)


@pytest.mark.parametrize(
    "sizes", [((2, 3), (3, 2)), ((2, 2, 3), (3, 2)), ((3,), (3, 2)), ((2, 3), (3,)), ((2, 1, 2, 3), (4, 3, 2))], ids=str
)
def test_products_can_be_differentiated_twice(sizes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    def use(d: str) -> Any:
        a, b = leaf(*sizes[0], d=d), leaf(*sizes[1], d=d)
        first = torch.autograd.grad((a @ b).pow(2).sum(), (a, b), create_graph=True)
        return [g.detach() for g in first], torch.autograd.grad(first[0].sum() + first[1].sum(), (a, b))

    check_same(use, strides=False)


def test_a_gradient_penalty_reaches_the_weights() -> None:
    def use(d: str) -> Any:
        m, x = model(d), leaf(2, 3, d=d)
        (g,) = torch.autograd.grad(m(x).sum(), x, create_graph=True)
        ((g.norm(2, dim=1) - 1) ** 2).mean().backward()
        return [p.grad for p in m.parameters() if p.grad is not None]

    check_same(use, strides=False)


class Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: float) -> Tensor:
        ctx.save_for_backward(x)
        ctx.factor = factor
        return x * factor

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return g * ctx.factor + x * 0, None


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.mark_dirty(x)
        return x.mul_(2)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return g * 2


class WithIndex(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        index = x.argmax()
        ctx.mark_non_differentiable(index)
        ctx.set_materialize_grads(False)
        return x * 1, index

    @staticmethod
    def backward(ctx: Any, g: Tensor, index_gradient: Any) -> Tensor:
        assert index_gradient is None
        return g


class Nested(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.detach() ** 2

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        with torch.enable_grad():
            y = x.detach().requires_grad_()
            (y**2).sum().backward()
        assert y.grad is not None
        return y.grad * g


class Vmapped(torch.autograd.Function):
    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(inputs[0])

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return g * 2

    @staticmethod
    def vmap(info: Any, in_dims: Any, x: Tensor) -> Any:
        return Vmapped.apply(x), in_dims[0]


@cases(
    {
        "with a number": gradient(lambda x: Scale.apply(x, 3.0), 3),  # type: ignore[no-any-return]
        "in place": gradient(lambda x: Doubled.apply(x.clone()), 3),  # type: ignore[no-any-return]
        "with an index": gradient(lambda x: WithIndex.apply(x)[0], 3),
        "backward within backward": gradient(lambda x: Nested.apply(x), 3),  # type: ignore[no-any-return]
        "under vmap": lambda d: vmap(Vmapped.apply)(n(3, d=d)),
        "under grad": lambda d: grad(lambda x: Vmapped.apply(x).sum())(n(3, d=d)),
    }
)
def test_functions_of_ones_own(program: Program) -> None:
    check_same(program)


@cases(
    {
        "grad": lambda d: grad(lambda x: (x**3).sum())(n(3, d=d)),
        "vmap": lambda d: vmap(lambda a: a * 2 + 1)(n(3, d=d)),
        "vmap over columns": lambda d: vmap(lambda a: a.softmax(-1), in_dims=1, out_dims=1)(n(2, 3, d=d)),
        "vmap of an index": lambda d: vmap(lambda a, i: a[i])(n(3, 4, d=d), torch.tensor([0, 1, 0], device=d)),
        "vmap of a product": lambda d: vmap(torch.mv, in_dims=(0, None))(n(2, 2, 3, d=d), n(3, d=d)),
        "vmap of grad": lambda d: vmap(grad(lambda a: a**2))(n(3, d=d)),
        "jacrev": lambda d: jacrev(lambda x: x**2)(n(3, d=d)),
        "vjp": lambda d: vjp(lambda x: x**2, n(3, d=d))[1](n(3, d=d)),
        "functionalize": lambda d: functionalize(lambda x: x.clone().add_(1).view(-1).mul_(2))(n(3, d=d)),
        "jacobian": lambda d: torch.autograd.functional.jacobian(lambda x: x**2, n(3, d=d)),
        "batched gradients": lambda d: torch.autograd.grad(
            (x := leaf(3, d=d)) * 2, x, torch.eye(3, device=d), is_grads_batched=True
        ),
        "gradcheck": lambda d: torch.autograd.gradcheck(lambda x: (x**2).sin(), leaf(3, d=d, dtype=torch.float64)),
        "gradgradcheck": lambda d: torch.autograd.gradgradcheck(lambda x: x**3, leaf(3, d=d, dtype=torch.float64)),
    }
)
def test_torch_func_on_the_device(program: Program) -> None:
    check_same(program, strides=False)


@cases(
    {
        "jvp": lambda d: jvp(lambda x: x**2, (n(3, d=d),), (n(3, d=d),)),
        "jvp of a product": lambda d: jvp(lambda a: a @ a.T, (n(2, 3, d=d),), (torch.ones(2, 3, device=d),)),
        "jacfwd": lambda d: jacfwd(lambda x: x**2)(n(3, d=d)),
        "hessian": lambda d: hessian(lambda x: ((n(2, 3, d=d) @ x) ** 2).sum())(n(3, d=d)),
        "linearize": lambda d: linearize(lambda x: x**2, n(3, d=d))[1](torch.ones(3, device=d)),
    }
)
def test_forward_mode_on_the_device(program: Program) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch's own, of torch.jit and torch.fx
        check_same(program, strides=False)


def test_dual_numbers() -> None:
    def use(d: str) -> Any:
        with forward_ad.dual_level():
            x = forward_ad.make_dual(n(2, 3, d=d).t(), torch.ones(3, 2, device=d))
            return forward_ad.unpack_dual(x**2).tangent

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check_same(use, strides=False)


def test_modules_as_functions() -> None:
    def use(d: str) -> Any:
        m = nn.Linear(3, 2).to(d)
        weights = {"weight": torch.ones(2, 3, device=d), "bias": torch.zeros(2, device=d)}

        def loss(weights: dict[str, Tensor], x: Tensor) -> Tensor:
            return functional_call(m, weights, (x,)).sum()  # type: ignore[no-any-return]

        per_sample = vmap(grad(loss), in_dims=(None, 0))(weights, n(4, 3, d=d))
        return functional_call(m, weights, (n(3, d=d),)).detach(), grad(loss)(weights, n(3, d=d)), per_sample

    check_same(use, strides=False)


def test_an_ensemble_by_vmap() -> None:
    def use(d: str) -> Any:
        models = [model(d) for _ in range(3)]
        params, buffers = stack_module_state(models)  # type: ignore[arg-type]
        outputs = vmap(lambda p, b, x: functional_call(models[0], (p, b), (x,)), in_dims=(0, 0, None))
        return outputs(params, buffers, n(3, d=d)).detach()

    check_same(use)


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointing_gives_the_same_gradients(reentrant: bool) -> None:
    def use(d: str) -> Any:
        m, x = model(d), leaf(2, 3, d=d)
        checkpoint(m, x, use_reentrant=reentrant).sum().backward()
        checkpoint_sequential(m, 2, x, use_reentrant=reentrant).sum().backward()
        return x.grad, [p.grad for p in m.parameters()]

    check_same(use)


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointing_repeats_the_random_numbers(reentrant: bool) -> None:
    masks = []

    def noisy(x: Tensor) -> Tensor:
        y = nn.functional.dropout(x, 0.5)
        masks.append((y != 0).detach())
        return y * x

    x = torch.ones(100, device="xla", requires_grad=True)
    checkpoint(noisy, x, use_reentrant=reentrant).sum().backward()
    assert len(masks) == 2
    assert torch.equal(masks[0].cpu(), masks[1].cpu())


def test_anomaly_mode_names_the_function_that_made_a_nan() -> None:
    def use(d: str) -> None:
        with torch.autograd.detect_anomaly():
            x = leaf(3, d=d)
            ((x - x).sqrt() * 0).sum().backward()

    check_refused(use)


def test_saved_tensors_may_wait_on_the_host() -> None:
    def use(d: str) -> Any:
        with torch.autograd.graph.save_on_cpu():
            x = leaf(3, d=d)
            y = (x.exp() * x).sum()
        y.backward()
        return x.grad

    check_same(use)


def test_gradients_accumulate_until_they_are_cleared() -> None:
    def use(d: str) -> Any:
        x = leaf(3, d=d)
        for _ in range(3):
            (x * 2).sum().backward()
        first = x.grad
        x.grad = None
        y = (x**2).sum()
        y.backward(retain_graph=True)
        y.backward()
        return first, x.grad

    check_same(use)


@cases(
    {
        "not a scalar": lambda d: (leaf(3, d=d) * 2).backward(),
        "no gradient": lambda d: n(3, d=d).sum().backward(),
        "twice": lambda d: [y.backward() for y in [(leaf(3, d=d) ** 2).sum()] * 2],
        "unused": lambda d: torch.autograd.grad(leaf(3, d=d).sum(), [leaf(3, d=d)]),
        "integers": lambda d: n(3, d=d, dtype=torch.int64).requires_grad_(),
        "a gradient of another size": lambda d: setattr(leaf(3, d=d), "grad", n(4, d=d)),
        "one of many views": lambda d: (leaf(4, d=d) * 1).unbind()[0].add_(1),
    }
)
def test_misuse_is_refused_in_the_words_of_the_cpu(program: Program) -> None:
    check_refused(program)


def test_gradients_cross_between_host_and_device() -> None:
    x = torch.arange(3.0, requires_grad=True)
    y = (x.to("xla") * 2).cpu() * x
    y.sum().backward()
    assert x.grad is not None and x.grad.device.type == "cpu"
    assert x.grad.tolist() == [0, 4, 8]


def test_no_grad_and_inference_mode() -> None:
    def use(d: str) -> Any:
        x = leaf(3, d=d)
        with torch.no_grad():
            y = x * 2
        with torch.inference_mode():
            z = x * 2
            z.add_(1)
        return y, z, z.is_inference(), (x.detach() * 2).requires_grad

    check_same(use)


def test_clipping_and_vectors_of_parameters() -> None:
    def use(d: str) -> Any:
        m = model(d)
        m(n(2, 3, d=d)).sum().backward()
        total = nn.utils.clip_grad_norm_(m.parameters(), 0.1)
        nn.utils.clip_grad_value_(m.parameters(), 0.01)
        vector = nn.utils.parameters_to_vector(m.parameters())
        nn.utils.vector_to_parameters(torch.ones_like(vector), m.parameters())
        return total, [p.grad for p in m.parameters()], [p.detach() for p in m.parameters()]

    check_same(use, strides=False)


def test_autocast_computes_products_in_bfloat16() -> None:
    def use(d: str) -> Any:
        with torch.autocast(d, dtype=torch.bfloat16):
            x = leaf(2, 2, d=d)
            y = x @ x
            loss = y.float().sum()
        loss.backward()
        return y.dtype, x.grad

    check_same(use)


def test_dual_numbers_are_copied_to_the_cpu() -> None:
    with forward_ad.dual_level():
        kept = torch.zeros(2, 1)
        kept.copy_(forward_ad.make_dual(torch.ones(2, 1, device="xla"), torch.tensor([[5.0], [6.0]], device="xla")))
        primal, tangent = forward_ad.unpack_dual(kept)
        assert primal.tolist() == [[1.0], [1.0]]
        assert tangent is not None and tangent.tolist() == [[5.0], [6.0]]


def test_dual_numbers_pass_through_layers_that_are_taken_whole() -> None:
    def program(device: str) -> Any:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).to(device)
        x = torch.linspace(-1, 1, 6).reshape(2, 3).to(device)
        with forward_ad.dual_level():
            out = model(forward_ad.make_dual(x, torch.ones_like(x)))
            tangent = forward_ad.unpack_dual(out).tangent
        return tangent, model(x)

    check_same(program)
    x = torch.ones(2, 3, device="xla")
    assert "linear" in _XLAC._get_xla_tensors_text([nn.functional.linear(x, x)])  # one node again
