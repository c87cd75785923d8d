"""The dtype of each operator under `torch.autocast("xla")`: the lists are those of CUDA."""

import functools
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ...compat.names import torch as private
from ...compat.names.torch import OpOverload, pytree, schema_of
from ...tensor import device as devices
from ..op_schema import resolve

# Matrix products and convolutions: fast in the lower dtype, and they accumulate in float32 anyway.
_LOWER = (
    "_convolution", "_convolution.deprecated", "conv1d", "conv2d", "conv3d", "conv1d.padding", "conv2d.padding",
    "conv3d.padding", "conv_tbc", "conv_transpose1d", "conv_transpose2d.input", "conv_transpose3d.input", "convolution",
    "prelu", "addmm", "addmv", "addr", "matmul", "einsum", "mm", "mv", "linear", "linalg_vecdot", "linalg_multi_dot",
    "addbmm", "baddbmm", "bmm", "chain_matmul", "lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell",
    "lstm.input", "lstm.data", "gru.input", "gru.data", "rnn_tanh.input", "rnn_tanh.data", "rnn_relu.input",
    "rnn_relu.data", "_thnn_fused_lstm_cell", "_thnn_fused_gru_cell", "scaled_dot_product_attention",
)  # fmt: skip

# Sums of many terms and steep functions: they lose too much in the lower dtype.
_FLOAT32 = (
    "acos", "asin", "cosh", "erfinv", "exp", "expm1", "log", "log10", "log2", "log1p", "reciprocal", "rsqrt", "sinh",
    "tan", "pow.Tensor_Scalar", "pow.Tensor_Tensor", "pow.Scalar", "softplus", "layer_norm", "native_layer_norm",
    "group_norm", "frobenius_norm.dim", "nuclear_norm", "nuclear_norm.dim", "cosine_similarity", "poisson_nll_loss",
    "cosine_embedding_loss", "nll_loss", "nll_loss2d", "hinge_embedding_loss", "kl_div", "l1_loss", "smooth_l1_loss",
    "huber_loss", "mse_loss", "margin_ranking_loss", "multilabel_margin_loss", "soft_margin_loss",
    "triplet_margin_loss", "multi_margin_loss", "binary_cross_entropy_with_logits", "dist", "pdist", "cdist", "renorm",
    "logsumexp", "upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d", "upsample_linear1d",
    "upsample_bilinear2d", "upsample_trilinear3d", "upsample_bicubic2d", "_upsample_bilinear2d_aa",
    "_upsample_bicubic2d_aa", "_upsample_nearest_exact1d", "_upsample_nearest_exact2d", "_upsample_nearest_exact3d",
    "rms_norm", "norm.Scalar", "norm.ScalarOpt_dim",
)  # fmt: skip
# Of the same kind, and not in every release of PyTorch that we take.
_FLOAT32_IF_THERE = tuple(name for name in ("linalg_matrix_sqrth",) if hasattr(torch.ops.aten, name))

# As above, unless the call names a dtype.
_FLOAT32_UNLESS_NAMED = (
    "prod", "prod.dim_int", "softmax.int", "log_softmax.int", "cumprod", "cumsum", "linalg_vector_norm",
    "linalg_matrix_norm", "linalg_matrix_norm.str_ord", "sum", "sum.dim_IntList",
)  # fmt: skip

# Operands of unlike dtypes meet in the widest.
_WIDEST = (
    "addcdiv", "addcmul", "atan2", "bilinear", "cross", "dot", "vdot", "grid_sampler", "index_put", "tensordot",
    "scatter_add",
)  # fmt: skip

_REFUSED = "binary_cross_entropy"

_libraries: list[torch.library.Library] = []
_thread = threading.local()


def register_autocast() -> None:
    """Register the policies; all other operators ignore autocast."""
    _libraries.append(private.register_fallthrough("AutocastPrivateUse1"))
    library = torch.library.Library("aten", "IMPL", "AutocastPrivateUse1")
    _libraries.append(library)
    for names, policy in (
        (_LOWER, _lower),
        (_FLOAT32 + _FLOAT32_IF_THERE, _float32),
        (_FLOAT32_UNLESS_NAMED, _unless_named),
        (_WIDEST, _widest),
    ):
        for name in names:
            private.register_autocast_kernel(library, name, _kernel(name, policy))
    private.register_autocast_kernel(library, _REFUSED, _refuse)
    private.higher_order_operators_ignore_autocast()
    private.register_autocast_of_flex_attention(_flex_attention)


def with_default_dtype(original: Callable[..., None]) -> Callable[..., None]:
    """Wrap `torch.autocast.__init__` so that the default dtype of "xla" is `bfloat16`.

    PyTorch's default for our device is `float16`, and is kept for each thread.
    """

    @functools.wraps(original)
    def __init__(self: object, device_type: str, *args: object, **kwargs: object) -> None:  # noqa: N807
        if device_type == "xla":
            devices.take_name()
            set_default_dtype()
        original(self, device_type, *args, **kwargs)

    return __init__


def set_default_dtype() -> None:
    """Make `bfloat16` this thread's default, once, before anything, such as Dynamo, saves PyTorch's default."""
    if not getattr(_thread, "knows_default", False):
        _thread.knows_default = True
        torch.set_autocast_dtype("xla", torch.bfloat16)


def _kernel(name: str, policy: Callable[[OpOverload, Any, Any], tuple[Any, Any]]) -> Callable[..., Any]:
    op: OpOverload | None = None

    def kernel(*args: object, **kwargs: object) -> Any:
        nonlocal op
        if op is None:
            op = resolve(f"aten::{name}")
        with private.without_autocast():
            args, kwargs = policy(op, args, kwargs)
            return op(*args, **kwargs)

    return kernel


def _flex_attention(query: Tensor, key: Tensor, value: Tensor, *args: object) -> object:
    with private.without_autocast():
        cast, _ = _cast((query, key, value), {}, torch.get_autocast_dtype("xla"))
        return private.flex_attention(*cast, *args)


def _cast(args: Any, kwargs: Any, dtype: torch.dtype) -> tuple[Any, Any]:
    def convert(leaf: Any) -> object:
        if _is_eligible(leaf) and leaf.dtype is not dtype:
            return leaf.to(dtype)
        return leaf

    converted: tuple[Any, Any] = pytree.tree_map(convert, (args, kwargs))
    return converted


def _is_eligible(leaf: object) -> bool:
    return (
        isinstance(leaf, Tensor)
        and leaf.device.type == "xla"
        and leaf.is_floating_point()
        and leaf.dtype is not torch.float64
    )


def _lower(op: OpOverload, args: object, kwargs: object) -> tuple[object, object]:
    return _cast(args, kwargs, torch.get_autocast_dtype("xla"))


def _float32(op: OpOverload, args: object, kwargs: object) -> tuple[object, object]:
    return _cast(args, kwargs, torch.float32)


def _unless_named(op: OpOverload, args: Any, kwargs: Any) -> tuple[Any, Any]:
    position = next(i for i, a in enumerate(schema_of(op).arguments) if a.name == "dtype")
    named = kwargs.get("dtype") is not None or (len(args) > position and args[position] is not None)
    if named or not (_is_eligible(args[0]) and args[0].dtype is not torch.float32):
        return args, kwargs
    return args, {**kwargs, "dtype": torch.float32}


def _widest(op: OpOverload, args: object, kwargs: object) -> tuple[object, object]:
    dtypes = {leaf.dtype for leaf in pytree.tree_leaves((args, kwargs)) if _is_eligible(leaf)}
    if len(dtypes) < 2:
        return args, kwargs
    return _cast(args, kwargs, torch.float32)


def _refuse(*args: object, **kwargs: object) -> object:
    raise RuntimeError(
        "torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe to autocast: the logarithm of a "
        "probability in a lower dtype overflows. Use torch.nn.functional.binary_cross_entropy_with_logits or "
        "torch.nn.BCEWithLogitsLoss, which take the logits and are safe."
    )
