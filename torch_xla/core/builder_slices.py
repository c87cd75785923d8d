"""Slices of one element along the first dimension, at an index that is a value on the device."""

from .builder_op import Op
from .builder_shape import Type


def _starts(x: Op, idx: Op) -> list[Op]:
    place = idx.reshape(()).cast(Type.S32)
    return [place, *([Op.scalar(x.builder(), 0, Type.S32)] * (x.shape().rank - 1))]


def dynamic_slice(xs: Op, idx: Op) -> Op:
    """Return `xs[idx]`, for an operation `idx` of one integer."""
    sizes = xs.shape().sizes
    return xs.dynamic_slice(_starts(xs, idx), (1, *sizes[1:])).reshape(sizes[1:])


def dynamic_update_slice(ys: Op, y: Op, idx: Op) -> Op:
    """Return `ys` with `ys[idx]` replaced by `y`."""
    return ys.dynamic_update_slice(y.reshape((1, *y.shape().sizes)), _starts(ys, idx))
