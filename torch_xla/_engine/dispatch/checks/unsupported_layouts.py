"""Sparse, quantised, nested and oneDNN tensors: XLA has none, so creating one says what to do instead."""

from collections.abc import Callable
from typing import Any

import torch

from ...compat.names import torch as private
from ...compat.names.torch import schema_of
from ...errors import NoLowering
from ..recording_kernel import recorder

_SPARSE = (
    "an 'xla' tensor cannot be sparse, for XLA has no sparse layouts. Keep it dense: call `.to_dense()` before it "
    "moves to the device, and leave `sparse=True` and `sparse_grad=True` out of embeddings and `gather`."
)
_QUANTISED = (
    "an 'xla' tensor cannot have a quantised dtype. Keep the integers in a tensor of torch.int8 or torch.uint8 and "
    "multiply by the scale, call `.dequantize()` before it moves to the device, or train with torch.fake_quantize."
)
_NESTED = (
    "an 'xla' tensor cannot be nested in the strided layout. Use torch.nested.nested_tensor(…, layout=torch.jagged)."
)
_MKLDNN = "oneDNN's layout is one of the CPU. XLA chooses the layout in memory itself: leave `.to_mkldnn()` out."

_BACKENDS = {
    "SparsePrivateUse1": _SPARSE,
    "SparseCsrPrivateUse1": _SPARSE,
    "QuantizedPrivateUse1": _QUANTISED,
    "NestedTensorPrivateUse1": _NESTED,
}

_WAYS = {
    _SPARSE: (
        "_to_sparse", "_to_sparse.sparse_dim", "_to_sparse_csr", "_to_sparse_csc", "_to_sparse_bsr", "_to_sparse_bsc",
        "_sparse_softmax", "_sparse_log_softmax",
    ),
    _QUANTISED: (
        "quantize_per_tensor", "quantize_per_tensor.tensor_qparams", "quantize_per_tensor.tensors",
        "quantize_per_tensor_dynamic", "quantize_per_channel",
    ),
    _NESTED: ("_nested_tensor_from_tensor_list", "_nested_view_from_buffer", "_nested_view_from_buffer_copy"),
    _MKLDNN: ("to_mkldnn",),
}  # fmt: skip

# PyTorch composes these for every backend, so the one kernel for everything does not get them.
_COMPRESSED = (
    "sparse_compressed_tensor.comp_plain_value", "sparse_compressed_tensor.comp_plain_value_size",
    "_sparse_compressed_tensor_unsafe", "_sparse_compressed_tensor_with_dims", "_sparse_csr_tensor_unsafe",
    "_sparse_csc_tensor_unsafe", "_sparse_bsr_tensor_unsafe", "_sparse_bsc_tensor_unsafe",
)  # fmt: skip


def _refusing(name: str, advice: str) -> Callable[..., object]:
    def refuse(*_: object, **__: object) -> Any:
        raise NoLowering(f"{name}: {advice}")

    return refuse


def _refuse_for(advice: str) -> Callable[..., Any]:
    def refuse(op: object, *_: object, **__: object) -> Any:
        raise NoLowering(f"{schema_of(op).name}: {advice}")

    return refuse


_embedding_bag_backward = recorder("aten::_embedding_bag_backward")
_PLACE_OF_SPARSE = 9


def embedding_bag_backward(*args: object, **kwargs: object) -> object:
    """Return the gradient of a table whose rows were summed up by bag: dense, since no other exists here."""
    if args[_PLACE_OF_SPARSE] if len(args) > _PLACE_OF_SPARSE else kwargs["sparse"]:
        raise NoLowering(f"aten::_embedding_bag_sparse_backward: {_SPARSE}")
    return _embedding_bag_backward(*args, **kwargs)


KERNELS: dict[str, Callable[..., object]] = {
    "_embedding_bag_backward": embedding_bag_backward,
    **{name: _refusing(f"aten::{name.partition('.')[0]}", advice) for advice, names in _WAYS.items() for name in names},
}


def register_refusals() -> list[torch.library.Library]:
    """Give each backend key of such tensors one kernel for everything, which refuses."""
    compressed = torch.library.Library("aten", "IMPL", "SparseCsrPrivateUse1")
    for name in _COMPRESSED:
        compressed.impl(name, _refusing(f"aten::{name.partition('.')[0]}", _SPARSE), "SparseCsrPrivateUse1")
    return [compressed, *(private.register_fallback(key, _refuse_for(advice)) for key, advice in _BACKENDS.items())]
