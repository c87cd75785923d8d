"""A call of each operator that takes a float: its arguments, given the float and the dtype of the tensors."""

import re
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

Arguments = tuple[list[Any], dict[str, Any]]

# Operators that are compared elsewhere or not at all, and why.
NOT_CALLED = {
    "xla.": "kernels of attention for TPUs, whose tests give their scales known and as arguments",
    "aten._flash_attention": "CUDA's own operators, which no call reaches",
    "aten._scaled_dot_product_fused_attention_overrideable_backward": "its numbers are constants always",
    "aten._transformer_encoder_layer_fwd": "composed of operators that are called",
    "aten._segment_reduce_backward": "the initial number is a constant always",
}
# Operators that refuse 0 where a number is known; PyTorch divides by it, or takes it for no norm.
NOT_OF_ZERO = ("aten.celu.default", "aten.renorm.default")


def vector(dtype: torch.dtype) -> Tensor:
    return torch.tensor(
        [0.5, -0.0, 0.0, 2.0, -1.5, 3.0, float("inf"), 1e-3] if dtype.is_floating_point else [0, 1, 2, 3, -1, -2, 7, 5]
    ).to(dtype)


def operands(dtype: torch.dtype) -> list[Tensor]:
    one = vector(dtype)
    return [one, one.flip(0), one.roll(3).abs() + 1, one * 2]


def matrix(dtype: torch.dtype, rows: int = 3, columns: int = 3) -> Tensor:
    return (torch.arange(float(rows * columns)).reshape(rows, columns) / 4 - 0.7).to(dtype)


def images(dtype: torch.dtype, dims: int = 2) -> Tensor:
    return matrix(dtype, 6, 4**dims).reshape(2, 3, *[4] * dims)


def by_schema(op: Any, number: float, dtype: torch.dtype) -> Arguments:
    """Return arguments by their types alone: vectors, the number for each float, defaults."""
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    left = operands(dtype)
    for argument in op._schema.arguments:
        kind, value = str(argument.type), None
        if kind == "Tensor":
            value = left.pop(0)
        elif kind == "List[Tensor]":
            value = [left[0], left.pop(0) + 1]
        elif kind in ("number", "float", "Optional[number]", "Optional[float]"):
            value = number
        elif kind in ("List[number]", "List[float]"):
            value = [number, number + 1]
        elif argument.has_default_value():
            value = argument.default_value
        elif kind in ("int", "bool", "Optional[str]", "Optional[int]", "Optional[bool]"):
            value = {"int": 1, "bool": False}.get(kind)
        else:
            raise TypeError(f"{op} takes a {kind}: add it to CALLS")
        if argument.kwarg_only:
            kwargs[argument.name] = value
        else:
            args.append(value)
    return args, kwargs


def _with(*args: Any, **kwargs: Any) -> Arguments:
    return list(args), kwargs


MakeArguments = Callable[[Any, float, torch.dtype], Arguments]


def resized(op: Any, scale: float, dtype: torch.dtype) -> Arguments:
    """Return arguments of `upsample_…`, forward and backward: the sizes, then scales, which may be any."""
    name = str(op)
    dims = int(re.findall(r"(\d)d", name)[0])
    to, x = [5] * dims, images(dtype, dims)
    rest = [False] * ("nearest" not in name) + [scale] * dims
    if "backward" in name:
        return _with(torch.ones(2, 3, *to, dtype=dtype), to, list(x.shape), *rest)
    return _with(x, to, *rest)


def _batch(number: float, dtype: torch.dtype) -> list[Any]:
    ones = torch.tensor([1.0, 2.0, -0.5]).to(dtype)
    return [images(dtype), ones, ones + 1, ones * 3, ones.abs()]


def _cdist_backward(op: Any, p: float, dtype: torch.dtype) -> Arguments:
    a, b = matrix(dtype), matrix(dtype).flip(0)
    return _with(torch.ones(3, 3, dtype=dtype), a, b, p, torch.cdist(a, b, abs(p) if p == p else 2.0))


def _fused(op: Any, number: float, dtype: torch.dtype) -> Arguments:
    """Return arguments of a fused step of an optimizer: lists of parameters, gradients and state, then numbers."""
    name, one = str(op), vector(dtype)
    states = 1 if "adagrad" in name or "sgd" in name else 2
    lists = [[one], [one.flip(0)], *([one.abs() + 1] for _ in range(states))]
    if "sgd" not in name:
        lists += [[]] * ("adam" in name) + [[torch.tensor(2.0)]]
    numbers: dict[str, Any] = {each.name: number for each in op._schema.arguments if str(each.type) == "float"}
    if "tensor_lr" in name:
        numbers["lr"] = torch.tensor(0.125)
    flags = {each.name: False for each in op._schema.arguments if str(each.type) == "bool"}
    return list(lists), {**numbers, **flags}


def _of_integers(op: Any, number: float, dtype: torch.dtype) -> Arguments:
    return by_schema(op, int(number * 4), torch.int64)


CALLS: dict[str, MakeArguments] = {
    **dict.fromkeys(
        [
            *(f"aten.bitwise_{name}.{form}" for name in ("and", "or", "xor") for form in ("Scalar", "Scalar_Tensor")),
            *(
                f"aten.bitwise_{way}_shift.{form}"
                for way in ("left", "right")
                for form in ("Scalar_Tensor", "Tensor_Scalar")
            ),
            *("aten.__lshift__.Scalar", "aten.__rshift__.Scalar"),
        ],
        _of_integers,
    ),
    "aten._scaled_dot_product_fused_attention_overrideable.default": lambda op, n, d: _with(
        images(d), images(d) * 2, images(d) + 1, dropout_p=n, scale=n
    ),
    "aten.histc.default": lambda op, n, d: _with(matrix(d), 4, -n, n + 1),
    "aten.normal.float_Tensor": lambda op, n, d: _with(n, vector(d).abs()),
    "aten.normal.float_float": lambda op, n, d: _with(n, n, [5], dtype=d, device=torch.device("cpu")),
    **{
        f"aten._fused_{name}.{form}": _fused
        for name in ("adam", "adamw", "sgd", "adagrad")
        for form in ("default", "tensor_lr")
    },
    **dict.fromkeys(
        ("aten.addmm.default", "aten._addmm_activation.default"),
        lambda op, n, d: _with(matrix(d), matrix(d), matrix(d).T, beta=n, alpha=n),
    ),
    "aten.addmm.dtype": lambda op, n, d: _with(
        matrix(torch.float32), matrix(torch.bfloat16), matrix(torch.bfloat16), torch.float32, beta=n, alpha=n
    ),
    "aten.baddbmm.dtype": lambda op, n, d: _with(
        matrix(torch.float32)[None],
        matrix(torch.bfloat16)[None],
        matrix(torch.bfloat16)[None],
        torch.float32,
        beta=n,
        alpha=n,
    ),
    "aten.addmv.default": lambda op, n, d: _with(matrix(d)[0], matrix(d), matrix(d)[1], beta=n, alpha=n),
    "aten.addbmm.default": lambda op, n, d: _with(matrix(d), matrix(d)[None], matrix(d)[None], beta=n, alpha=n),
    "aten.baddbmm.default": lambda op, n, d: _with(matrix(d)[None], matrix(d)[None], matrix(d)[None], beta=n, alpha=n),
    "aten.addr.default": lambda op, n, d: _with(matrix(d), matrix(d)[0], matrix(d)[1], beta=n, alpha=n),
    "aten.div.Scalar_mode": lambda op, n, d: _with(vector(d), n, rounding_mode="floor"),
    "aten.norm.ScalarOpt_dtype": lambda op, n, d: _with(matrix(d), n, dtype=torch.float32),
    "aten.norm.ScalarOpt_dim": lambda op, n, d: _with(matrix(d), n, [0], False),
    "aten.norm.ScalarOpt_dim_dtype": lambda op, n, d: _with(matrix(d), n, [0], False, dtype=torch.float32),
    "aten.renorm.default": lambda op, n, d: _with(matrix(d), n, 0, abs(n)),
    "aten._cdist_forward.default": lambda op, n, d: _with(matrix(d), matrix(d).flip(0), n, None),
    "aten._cdist_backward.default": _cdist_backward,
    "aten._pdist_forward.default": lambda op, n, d: _with(matrix(d), n),
    "aten._pdist_backward.default": lambda op, n, d: _with(
        torch.ones(3, dtype=d), matrix(d), n, torch.ones(3, dtype=d)
    ),
    "aten.scatter.value": lambda op, n, d: _with(matrix(d), 0, torch.tensor([[2, 0, 1]]), n),
    "aten.scatter.value_reduce": lambda op, n, d: _with(matrix(d), 0, torch.tensor([[2, 0, 1]]), n, reduce="multiply"),
    "aten.index_add.default": lambda op, n, d: _with(matrix(d), 0, torch.tensor([2, 0, 2]), matrix(d), alpha=n),
    "aten.index_fill.int_Scalar": lambda op, n, d: _with(matrix(d), 0, torch.tensor([2, 0]), n),
    "aten.embedding_renorm.default": lambda op, n, d: _with(matrix(d), torch.tensor([2, 0]), n, n),
    "aten._unsafe_masked_index.default": lambda op, n, d: _with(
        matrix(d), torch.tensor([True, False, True]), [torch.tensor([2, 0, 1])], n
    ),
    "aten.masked_fill.Scalar": lambda op, n, d: _with(vector(d), vector(d) > 0, n),
    "aten.segment_reduce.default": lambda op, n, d: _with(vector(d), "sum", lengths=torch.tensor([3, 0, 5]), initial=n),
    "aten.linalg_lstsq.default": lambda op, n, d: _with(
        matrix(d) + torch.eye(3, dtype=d), matrix(d), n, driver="gelsd"
    ),
    "aten.multi_margin_loss.default": lambda op, n, d: _with(matrix(d), torch.tensor([2, 0, 1]), 1, n),
    "aten.multi_margin_loss_backward.default": lambda op, n, d: _with(
        torch.ones((), dtype=d), matrix(d), torch.tensor([2, 0, 1]), 1, n
    ),
    "aten.native_layer_norm.default": lambda op, n, d: _with(matrix(d), [3], matrix(d)[0], matrix(d)[1], n),
    "aten._fused_rms_norm.default": lambda op, n, d: _with(matrix(d), [3], matrix(d)[0], n),
    "aten.native_group_norm.default": lambda op, n, d: _with(images(d), *_batch(n, d)[1:3], 2, 3, 16, 3, n),
    "aten._native_batch_norm_legit_functional.default": lambda op, n, d: _with(*_batch(n, d), True, n, abs(n)),
    "aten._native_batch_norm_legit.no_stats": lambda op, n, d: _with(*_batch(n, d)[:3], True, n, abs(n)),
    "aten._native_batch_norm_legit_no_training.default": lambda op, n, d: _with(*_batch(n, d), n, abs(n)),
    "aten.native_batch_norm_backward.default": lambda op, n, d: _with(
        images(d), images(d), *_batch(n, d)[1:], *_batch(n, d)[3:4], True, abs(n), [True] * 3
    ),
    "aten.batch_norm_stats.default": lambda op, n, d: _with(images(d), abs(n)),
    "aten.batch_norm_elemt.default": lambda op, n, d: _with(*_batch(n, d), abs(n)),
    "aten.full.default": lambda op, n, d: _with([3], n, dtype=d, device=torch.device("cpu")),
    "aten.new_full.default": lambda op, n, d: _with(vector(d), [3], n),
    "aten.linspace.Tensor_Scalar": lambda op, n, d: _with(torch.tensor(0.25), n, 7),
    "aten.linspace.Scalar_Tensor": lambda op, n, d: _with(n, torch.tensor(0.25), 7),
    "aten.logspace.Tensor_Tensor": lambda op, n, d: _with(torch.tensor(0.25), torch.tensor(1.5), 7, n),
    "aten.logspace.Tensor_Scalar": lambda op, n, d: _with(torch.tensor(0.25), n, 7, 3.0),
    "aten.logspace.Scalar_Tensor": lambda op, n, d: _with(n, torch.tensor(0.25), 7, 3.0),
    "aten.constant_pad_nd.default": lambda op, n, d: _with(matrix(d), [1, 2, 0, 1], n),
    "aten._foreach_add.Tensor": lambda op, n, d: _with([vector(d)], torch.tensor(2).to(d), alpha=n),
    "aten._amp_update_scale.default": lambda op, n, d: _with(
        torch.tensor([8.0]), torch.tensor([3], dtype=torch.int32), torch.tensor([0.0]), n, n, 4
    ),
}
