"""Tensors that XLA has no form for: every way to one says what to do instead."""

import warnings
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import torch_xla.debug.metrics as met
from torch_xla._engine.errors import NoLowering

INDICES, VALUES = [[0, 1], [1, 0]], [1.0, 2.0]


def x() -> Tensor:
    return torch.ones(4, 4, device="xla")


def host(values: list[list[int]]) -> Tensor:
    return torch.tensor(values, device="cpu")


def of_embedding(kind: type[nn.Module]) -> None:
    table = kind(4, 3, sparse=True).to("xla")
    table(torch.tensor([[1, 2]], device="xla")).sum().backward()


def of_gather() -> None:
    source = x().requires_grad_()
    torch.gather(source, 1, torch.zeros(4, 1, dtype=torch.int64, device="xla"), sparse_grad=True).sum().backward()


SPARSE: dict[str, Callable[[], object]] = {
    "coordinates": lambda: torch.sparse_coo_tensor(host(INDICES), VALUES, (2, 2), device="xla"),
    "coordinates of unknown size": lambda: torch.sparse_coo_tensor(host(INDICES), VALUES, device="xla"),
    "rows": lambda: torch.sparse_csr_tensor([0, 1, 2], [0, 1], VALUES, (2, 2), device="xla"),
    "rows of unknown size": lambda: torch.sparse_csr_tensor([0, 1, 2], [0, 1], VALUES, device="xla"),
    "columns": lambda: torch.sparse_csc_tensor([0, 1, 2], [0, 1], VALUES, (2, 2), device="xla"),
    "to_sparse": lambda: x().to_sparse(),
    "to_sparse of one dim": lambda: x().to_sparse(1),
    "to_sparse_csr": lambda: x().to_sparse_csr(),
    "to_sparse_csc": lambda: x().to_sparse_csc(),
    "to_sparse_bsr": lambda: x().to_sparse_bsr((2, 2)),
    "to_sparse_bsc": lambda: x().to_sparse_bsc((2, 2)),
    "from the host": lambda: torch.eye(4, device="cpu").to_sparse().to("xla"),
    "rows from the host": lambda: torch.eye(4, device="cpu").to_sparse_csr().to("xla"),
    "a product": lambda: torch.sparse.mm(torch.eye(4, device="cpu").to_sparse(), x()),
    "softmax": lambda: torch.sparse.softmax(x(), 0),
    "empty": lambda: torch.empty(2, 2, layout=torch.sparse_coo, device="xla"),
    "zeros": lambda: torch.zeros(2, 2, layout=torch.sparse_coo, device="xla"),
    "gradient of an embedding": lambda: of_embedding(nn.Embedding),
    "gradient of bags": lambda: of_embedding(nn.EmbeddingBag),
    "gradient of gather": of_gather,
}

QUANTISED: dict[str, Callable[[], object]] = {
    "by tensor": lambda: torch.quantize_per_tensor(x(), 0.1, 0, torch.quint8),
    "by channel": lambda: torch.quantize_per_channel(x(), torch.ones(4), torch.zeros(4), 0, torch.qint8),
    "dynamically": lambda: torch.quantize_per_tensor_dynamic(x(), torch.quint8, False),
    "from the host": lambda: torch.quantize_per_tensor(torch.ones(2, device="cpu"), 0.1, 0, torch.quint8).to("xla"),
    "empty": lambda: torch.empty(2, dtype=torch.quint8, device="xla"),
}


def check_refused(call: Callable[[], object], advice: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch's own, about layouts in beta and quantised dtypes on their way out
        with pytest.raises(NoLowering, match=f"^aten::[a-z_]+: {advice}"):
            call()


@pytest.mark.parametrize("call", list(SPARSE.values()), ids=list(SPARSE))
def test_a_sparse_tensor_is_refused(call: Callable[[], object]) -> None:
    check_refused(call, r"an 'xla' tensor cannot be sparse, .* Keep it dense: call `\.to_dense\(\)` before")


def test_bags_of_a_sparse_table_are_summed_up_on_the_device() -> None:
    met.clear_all()
    table = nn.EmbeddingBag(4, 3, sparse=True).to("xla")
    bags = table(torch.tensor([[1, 2]], device="xla"))
    with pytest.raises(NoLowering, match="an 'xla' tensor cannot be sparse"):
        bags.sum().backward()
    assert not met.executed_fallback_ops()
    torch.testing.assert_close(bags, table.weight[1:3].mean(0, keepdim=True))


@pytest.mark.parametrize("call", list(QUANTISED.values()), ids=list(QUANTISED))
def test_a_quantised_tensor_is_refused(call: Callable[[], object]) -> None:
    check_refused(call, "an 'xla' tensor cannot have a quantised dtype. Keep the integers in a tensor of torch.int8")


def test_other_layouts_are_refused() -> None:
    check_refused(lambda: x().to_mkldnn(), "oneDNN's layout is one of the CPU. .*leave `.to_mkldnn\\(\\)` out")
    check_refused(lambda: torch.nested.nested_tensor([x(), x()]), r"an 'xla' tensor cannot be nested in the strided")
    with pytest.raises(NotImplementedError, match="Unsupported device type for mkldnn layout: xla"):
        torch.empty(2, 2, layout=torch._mkldnn, device="xla")  # type: ignore[attr-defined]


def test_a_dense_tensor_is_none_of_these() -> None:
    assert x().layout is torch.strided and not (x().is_sparse or x().is_quantized or x().is_mkldnn or x().is_nested)
    assert torch.equal(x().to_dense().cpu(), torch.ones(4, 4))


def test_the_padding_row_of_an_embedding_gets_no_gradient() -> None:
    table = nn.Embedding(4, 3, padding_idx=1).to("xla")
    assert not table.weight[1].any()
    table(torch.tensor([0, 1, 1, 2], device="xla")).sum().backward()
    assert table.weight.grad is not None and table.weight.grad.sum(1).tolist() == [3.0, 0.0, 3.0, 0.0]
