"""The programs whose texts are kept: one for each way in which a graph comes about."""

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F

Program = Callable[[], Sequence[torch.Tensor]]


def ones(*size: int, **options: object) -> torch.Tensor:
    """Return an input of the graph, not an operation: its values are on the device."""
    return torch.ones(*size, **options).to("xla")  # type: ignore[arg-type]


def elementwise() -> Sequence[torch.Tensor]:
    x, y = ones(2, 3), ones(3)
    return [torch.where(x > 0.5, x * 2.5 + y, x / y)]


def promotion() -> Sequence[torch.Tensor]:
    return [ones(2, dtype=torch.bfloat16) + ones(2, dtype=torch.int32) * 3]


def linear_and_gelu() -> Sequence[torch.Tensor]:
    return [F.gelu(F.linear(ones(2, 4), ones(3, 4), ones(3)))]


def reductions() -> Sequence[torch.Tensor]:
    x = ones(2, 3)
    return [x.sum(), x.mean(1, keepdim=True), x.amax(0), x.softmax(-1)]


def write_through_a_view() -> Sequence[torch.Tensor]:
    x = ones(4, 4)
    x[1:3, ::2].add_(1)
    return [x]


def strided_read() -> Sequence[torch.Tensor]:
    return [ones(4, 6).t().as_strided((2, 3), (2, 7), 1) + 1]


def gather_and_scatter() -> Sequence[torch.Tensor]:
    x, index = ones(4, 3), torch.tensor([0, 2]).to("xla")
    return [x[index], x.index_add(0, index, ones(2, 3))]


def random_numbers() -> Sequence[torch.Tensor]:
    return [F.dropout(ones(2, 3), 0.5), torch.randn(2, device="xla")]


def convolution() -> Sequence[torch.Tensor]:
    return [F.max_pool2d(F.conv2d(ones(1, 2, 6, 6), ones(3, 2, 3, 3)), 2)]


def attention() -> Sequence[torch.Tensor]:
    q = ones(1, 2, 3, 4)
    return [F.scaled_dot_product_attention(q, q, q, is_causal=True)]


def loss_and_gradients() -> Sequence[torch.Tensor]:
    weight = ones(3, 4).requires_grad_()
    F.cross_entropy(ones(2, 4) @ weight.t(), torch.tensor([0, 2]).to("xla")).backward()
    assert weight.grad is not None
    return [weight.grad]


def optimizer_step() -> Sequence[torch.Tensor]:
    parameters = [ones(2, 3).requires_grad_(), ones(3).requires_grad_()]
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    optimizer = torch.optim.SGD(parameters, lr=0.1, momentum=0.9)
    optimizer.step()
    return [parameter.data for parameter in parameters]


PROGRAMS: dict[str, Program] = {
    program.__name__: program
    for program in (
        elementwise,
        promotion,
        linear_and_gelu,
        reductions,
        write_through_a_view,
        strided_read,
        gather_and_scatter,
        random_numbers,
        convolution,
        attention,
        loss_and_gradients,
        optimizer_step,
    )
}
