"""Under autocast each operator computes in the dtype that its list says, and the lists are those of CUDA."""

import re
import threading
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch._higher_order_ops.while_loop import while_loop
from torch.nn.attention.flex_attention import flex_attention

from torch_xla._engine.compat.names import torch as private
from torch_xla._engine.dispatch.op_schema import resolve
from torch_xla._engine.dispatch.register import autocast


def x(dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.linspace(0.25, 0.75, 9, device="xla").view(3, 3).to(dtype)


BF16, FP16, FP32, FP64 = torch.bfloat16, torch.float16, torch.float32, torch.float64
CASES: dict[str, tuple[Callable[[], torch.Tensor], torch.dtype]] = {
    "product": (lambda: x() @ x(), BF16),
    "linear": (lambda: F.linear(x(), x(), x()[0]), BF16),
    "einsum": (lambda: torch.einsum("ij,jk->ik", x(), x(FP16)), BF16),
    "double": (lambda: x(FP64) @ x(FP64), FP64),
    "integers": (lambda: x().long() @ x().long(), torch.int64),
    "exp": (lambda: x(BF16).exp(), FP32),
    "power": (lambda: x(BF16) ** 2, FP32),
    "layer norm": (lambda: F.layer_norm(x(BF16), [3]), FP32),
    "loss": (lambda: F.mse_loss(x(BF16), x(FP16)), FP32),
    "sum": (lambda: x(BF16).sum(), FP32),
    "sum of a dimension": (lambda: x(FP16).sum(0), FP32),
    "sum that names": (lambda: x(BF16).sum(dtype=FP16), FP16),
    "softmax": (lambda: x(BF16).softmax(1), FP32),
    "softmax that names": (lambda: torch.softmax(x(BF16), 1, dtype=BF16), BF16),
    "widest": (lambda: torch.addcmul(x(BF16), x(), x(BF16)), FP32),
    "of one dtype": (lambda: torch.addcmul(x(BF16), x(BF16), x(BF16)), BF16),
    "any other": (lambda: x(BF16).relu() + x(BF16), BF16),
    "exact neighbours": (lambda: F.interpolate(x(BF16)[None], size=4, mode="nearest-exact"), FP32),
    "norm": (lambda: torch.ops.aten.norm.Scalar(x(BF16), 2), FP32),
    "mixed": (lambda: x(BF16) + x(), FP32),
}


@pytest.mark.parametrize("name", CASES)
def test_an_operator_computes_in_the_dtype_of_its_list(name: str) -> None:
    call, dtype = CASES[name]
    with torch.autocast("xla"):
        assert call().dtype is dtype
        with torch.autocast("xla", enabled=False):
            assert (x() @ x()).dtype is FP32
    assert (x() @ x()).dtype is FP32


def test_the_dtype_can_be_chosen_and_is_bfloat16_in_a_new_thread() -> None:
    with torch.autocast("xla", dtype=FP16):
        assert (x() @ x()).dtype is FP16
    found: list[torch.dtype] = []

    def look() -> None:
        with torch.autocast("xla"):
            found.append((x() @ x()).dtype)

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert found == [BF16] and torch.get_autocast_dtype("xla") is BF16


def test_tensors_of_the_host_are_left_alone() -> None:
    host = torch.ones(3, 3)
    with torch.autocast("xla"):
        assert (host @ host).dtype is FP32 and host.bfloat16().exp().dtype is BF16


def test_gradients_have_the_dtypes_of_their_parameters() -> None:
    weight = x().requires_grad_()
    with torch.autocast("xla"):
        loss = (x(BF16) @ weight).sum()
    loss.backward()
    assert weight.grad is not None and weight.grad.dtype is FP32 and loss.dtype is FP32


def test_what_is_unsafe_is_refused_with_what_to_use() -> None:
    with (
        torch.autocast("xla"),
        pytest.raises(RuntimeError, match="binary_cross_entropy_with_logits or torch.nn.BCEWith"),
    ):
        F.binary_cross_entropy(x(), x())


def test_every_name_is_an_operator_and_in_one_list() -> None:
    float32 = autocast._FLOAT32 + autocast._FLOAT32_IF_THERE
    lists = [autocast._LOWER, float32, autocast._FLOAT32_UNLESS_NAMED, autocast._WIDEST]
    names = [name for each in lists for name in each]
    assert len(set(names)) == len(names)
    for name in names:
        assert private.has_kernel(f"aten::{name}", "AutocastPrivateUse1"), name
        assert name not in autocast._FLOAT32_UNLESS_NAMED or any(
            argument.name == "dtype" for argument in resolve(f"aten::{name}")._schema.arguments
        )


def test_they_are_the_lists_of_cuda() -> None:
    ours = {name for each in (autocast._LOWER, autocast._FLOAT32, autocast._WIDEST) for name in each}
    theirs = {
        name.removeprefix("aten::")
        for name in private.all_operator_names()
        # Dimensions have names until PyTorch 2.12, on the CPU and CUDA alone.
        if name.startswith("aten::")
        and not re.search("dimname|[.]names_", name.lower())
        and private.has_kernel(name, "AutocastCUDA")
    }
    ours |= {*autocast._FLOAT32_UNLESS_NAMED, *autocast._FLOAT32_IF_THERE, autocast._REFUSED}
    kernels_of_cuda = {"cudnn_convolution", "cudnn_convolution_transpose", "_scaled_dot_product_flash_attention"}
    # Builds of PyTorch for CUDA alone have cuDNN's recurrent networks in the list.
    assert theirs - ours - {"_cudnn_rnn"} == kernels_of_cuda
    # Here these are operators of their own; on CUDA they end in others of the list (`rms_norm` since 2.12).
    assert {name.rstrip("123d").partition(".")[0].rstrip("123d") for name in ours - theirs - {"rms_norm"}} == {
        "conv", "gru", "lstm", "rnn_relu", "rnn_tanh",
    }  # fmt: skip


def _flex(q: torch.Tensor) -> torch.Tensor:
    return flex_attention(q, q.float(), q, score_mod=lambda score, b, h, i, j: score - (i - j).abs())


HIGHER_ORDER = {
    "flex attention": _flex,
    "condition": lambda q: torch.cond(q.sum() > 0, lambda t: t.sin(), lambda t: t.cos(), (q,)),
    "loop": lambda q: while_loop(lambda i, t: i < 3, lambda i, t: (i + 1, t + 1), (q.new_zeros(()), q))[1],
}


@pytest.mark.parametrize("backend", ["eager", "openxla"])
@pytest.mark.parametrize("name", HIGHER_ORDER)
def test_operators_that_take_functions_do_as_on_the_cpu(name: str, backend: str) -> None:
    q = torch.linspace(-1, 1, 2 * 2 * 16 * 8).view(2, 2, 16, 8)
    with torch.autocast("cpu", dtype=BF16):
        expected = torch.compile(HIGHER_ORDER[name], backend="eager")(q)
    with torch.autocast("xla"):
        found = torch.compile(HIGHER_ORDER[name], backend=backend)(q.to("xla"))
    assert found.dtype is expected.dtype
    torch.testing.assert_close(found.cpu(), expected, rtol=2e-2, atol=2e-2)
