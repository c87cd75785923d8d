"""`torch.func` over common operators: what its transforms call gives what it gives on the CPU."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import grad, hessian, jacfwd, jacrev, jvp, vmap


def made(*size: int) -> Tensor:
    return torch.rand(size, generator=torch.Generator().manual_seed(sum(size))) * 0.8 + 0.1


def some(*numbers: int, like: Tensor) -> Tensor:
    return torch.tensor(numbers, device=like.device)


def fractions(x: Tensor) -> Tensor:
    return torch.tensor([0.25, 0.7], device=x.device)


def above(x: Tensor) -> Tensor:
    return x @ x.mT + 3 * torch.eye(3, device=x.device)


OPERATORS: dict[str, tuple[Callable[..., Tensor], tuple[Tensor, ...]]] = {
    "quantile": (lambda x: torch.quantile(x, fractions(x)), (made(4),)),
    "nanquantile": (lambda x: torch.nanquantile(x, fractions(x)), (made(4),)),
    "matmul": (torch.matmul, (made(3, 4), made(4, 2))),
    "linear": (F.linear, (made(3, 4), made(2, 4), made(2))),
    "softmax": (lambda x: F.softmax(x, -1), (made(3, 4),)),
    "conv2d": (lambda x, w: F.conv2d(x, w, padding=1), (made(1, 2, 3, 3), made(2, 2, 2, 2))),
    "max_pool2d": (lambda x: F.max_pool2d(x, 2), (torch.arange(16.0).reshape(1, 1, 4, 4),)),
    "avg_pool2d": (lambda x: F.avg_pool2d(x, 2), (made(1, 1, 4, 4),)),
    "gelu": (F.gelu, (made(4),)),
    "silu": (F.silu, (made(4),)),
    "cumsum": (lambda x: x.cumsum(0), (made(4),)),
    "cumprod": (lambda x: x.cumprod(0), (made(4),)),
    "sort": (lambda x: x.sort().values, (made(5),)),
    "topk": (lambda x: x.topk(2).values, (made(5),)),
    "logsumexp": (lambda x: x.logsumexp(0), (made(4),)),
    "norm": (lambda x: x.norm(), (made(4),)),
    "var": (lambda x: x.var(), (made(4),)),
    "prod": (lambda x: x.prod(), (made(4),)),
    "amax": (lambda x: x.amax(0), (made(3, 2),)),
    "median": (lambda x: x.median(), (made(5),)),
    "where": (lambda x: torch.where(x > 0.5, x * 2, x * x), (made(5),)),
    "gather": (lambda x: x.gather(0, some(2, 0, like=x)), (made(4),)),
    "index": (lambda x: x[some(2, 0, like=x)], (made(4),)),
    "scatter_add": (lambda x: (x * 2).scatter_add(0, some(0, 1, 1, like=x), x), (made(3),)),
    "einsum": (lambda a, b: torch.einsum("ij,jk->ik", a, b), (made(2, 3), made(3, 2))),
    "cross_entropy": (lambda x: F.cross_entropy(x, some(1, 0, 2, like=x)), (made(3, 4),)),
    "binary_cross_entropy": (lambda x: F.binary_cross_entropy(x, x.detach() * 0 + 0.5), (made(4),)),
    "smooth_l1": (lambda x: F.smooth_l1_loss(x, x * 3), (made(4),)),
    "attention": (lambda q: F.scaled_dot_product_attention(q, q * 2, q * 3), (made(1, 2, 3, 4),)),
    "embedding": (lambda w: F.embedding(some(1, 0, like=w), w), (made(3, 2),)),
    "pad": (lambda x: F.pad(x, (1, 1), mode="reflect"), (made(1, 4),)),
    "cholesky": (lambda x: torch.linalg.cholesky(above(x)), (made(3, 3),)),
    "solve": (lambda a, b: torch.linalg.solve(above(a), b), (made(3, 3), made(3))),
    "det": (torch.det, (made(3, 3),)),
    "in place": (lambda x: x.clone().mul_(2).add_(x), (made(4),)),
    "pow": (torch.pow, (made(4), made(4))),
    "lerp": (lambda a, b: torch.lerp(a, b, 0.3), (made(4), made(4) + 1)),
    "clamp": (lambda x: x.clamp(0.3, 0.6), (made(4),)),
}

TRANSFORMS: dict[str, Callable[[Any, tuple[Tensor, ...]], Any]] = {
    "jvp": lambda f, given: jvp(f, given, tuple(torch.full_like(x, 0.5) for x in given)),
    "jacfwd": lambda f, given: jacfwd(f)(*given),
    "jacrev": lambda f, given: jacrev(f)(*given),
    "hessian": lambda f, given: hessian(lambda *x: f(*x).sum())(*given),
    "vmap of grad": lambda f, given: vmap(grad(lambda *x: f(*x).sum()))(*[torch.stack([x, x * 0.9]) for x in given]),
}


def outcome(operator: str, transform: str, device: str) -> Any:
    function, given = OPERATORS[operator]
    try:
        found = TRANSFORMS[transform](function, tuple(x.to(device) for x in given))
    except Exception as error:  # whatever PyTorch raises
        return type(error)
    return torch.utils._pytree.tree_map(lambda x: x.cpu(), found)


def compare(operator: str, transform: str) -> None:
    expected, ours = (outcome(operator, transform, device) for device in ("cpu", "xla"))
    if isinstance(expected, type):
        assert ours is expected
    else:
        assert not isinstance(ours, type), ours
        torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.filterwarnings("ignore:There is a performance drop")  # on the CPU
@pytest.mark.parametrize(
    ("operator", "transform"), [("quantile", "jvp"), ("in place", "jvp"), ("attention", "vmap of grad")]
)
def test_these_transforms_do_what_they_do_on_the_cpu(operator: str, transform: str) -> None:
    compare(operator, transform)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("operator", [name for name in OPERATORS if name != "attention"])  # the CPU lacks most
def test_transforms_do_what_they_do_on_the_cpu(operator: str, transform: str) -> None:
    compare(operator, transform)
