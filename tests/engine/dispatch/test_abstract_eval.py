"""PyTorch's meta kernels determine the results of a call: sizes, strides, dtypes, nesting, errors."""

from typing import Any

import pytest
import torch

from torch_xla._engine.dispatch.abstract_eval import infer, to_meta
from torch_xla._engine.dispatch.op_schema import operator_of
from torch_xla._engine.ir.value_spec import spec_of

X = torch.arange(6.0).view(2, 3)


def inferred(name: str, *args: Any, **kwargs: Any) -> Any:
    return infer(operator_of(name), args, kwargs)


def test_a_meta_tensor_has_the_form_of_the_tensor() -> None:
    z = torch.ones(2, 3, dtype=torch.complex64, device="xla").t()
    made = to_meta(z.conj())
    assert (made.shape, made.stride(), made.dtype) == ((3, 2), (1, 3), torch.complex64) and made.is_conj()
    assert not to_meta(z).is_conj()


def test_one_result_several_and_lists_are_told_apart() -> None:
    x = X.to("xla")
    one = inferred("aten::add.Tensor", x, x.t().t())
    assert (one.outputs, one.nested) == ((spec_of((2, 3), (3, 1), torch.float32),), False)
    two = inferred("aten::max.dim", x, 0)
    assert [each.dtype for each in two.outputs] == [torch.float32, torch.int64] and two.structure == (-1, -1)
    several = inferred("aten::_foreach_add.Scalar", [x, x[0]], 1)
    assert [each.size for each in several.outputs] == [(2, 3), (3,)] and several.structure == (2,) and several.nested
    some = inferred("aten::linear_backward", x, x, torch.ones(3, 3, device="xla"), [True, False, True])
    assert some.structure == (-1, -2, -1) and len(some.outputs) == 2 and some.constants == (None, None, None)


def test_what_is_written_keeps_its_own_strides_and_what_is_new_has_no_gaps() -> None:
    x = X.to("xla")
    written = inferred("aten::add_.Tensor", x.t()[1:], 1)
    assert written.outputs == (spec_of((2, 2), (1, 3), torch.float32),) and written.nested
    (made,) = inferred("aten::exp", x[:, :2]).outputs
    assert made.stride == (2, 1)
    (turned,) = inferred("aten::exp", x.t()).outputs
    assert turned.stride == (1, 3)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.int32], ids=str)
def test_expanded_operands_leave_the_order_to_the_others(dtype: torch.dtype) -> None:
    """PyTorch's meta kernels forget it in narrow floats."""
    turned, one = torch.ones(4, 3, 2, dtype=dtype).permute(1, 2, 0), torch.ones((), dtype=dtype)
    row, column = torch.ones(4, dtype=dtype), torch.ones(3, 1, 1, dtype=dtype)
    calls: list[Any] = [
        (torch.mul, one.expand(3, 2, 4), turned),
        (torch.add, turned, one.expand(2, 4)),
        (torch.lt, row.expand(2, 4), turned),
        (torch.maximum, column.expand(3, 2, 4), turned[:, :, ::2].repeat(1, 1, 2)),
        (torch.sub, turned.select(0, 1)[None], row.expand(3, 1, 4)),
        (torch.mul, turned[:, ::2], column),
        (torch.where, one.bool().expand(3, 2, 4), turned, row),
        (torch.lerp, turned, one.expand(3, 2, 4), one.expand(4)),
        (torch.addcmul, one.expand(3, 2, 4), turned, row),
        (torch.exp, row.expand(3, 2, 4).transpose(0, 1)),
        (torch.clone, turned.expand(2, 3, 2, 4)),
        (torch.Tensor.contiguous, turned.expand(2, 3, 2, 4)),
        (lambda x: x.reshape(6, 8), turned.expand(2, 3, 2, 4)),  # as heads of attention are repeated
        (lambda x: x.clone(memory_format=torch.channels_last), turned.expand(2, 3, 2, 4)),
    ]
    for function, *operands in calls:
        if function in (torch.lerp, torch.exp) and not dtype.is_floating_point:
            continue
        theirs, ours = function(*operands), function(*map(_there, operands))
        assert (ours.shape, ours.stride()) == (theirs.shape, theirs.stride()), function.__name__


def _there(tensor: torch.Tensor) -> torch.Tensor:
    """Zeros on the device, of the same strides."""
    memory = torch.zeros(tensor.untyped_storage().size() // tensor.element_size(), dtype=tensor.dtype, device="xla")
    return memory.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())


def test_the_same_tensor_twice_stays_the_same() -> None:
    x = X.to("xla")
    assert inferred("aten::add_.Tensor", x, x).outputs == (spec_of((2, 3), (3, 1), torch.float32),)


def test_errors_are_those_of_pytorch() -> None:
    x = X.to("xla")
    with pytest.raises(RuntimeError, match="^a and b must have same reduction dim"):
        inferred("aten::mm", x, x)
    with pytest.raises(RuntimeError, match="output with shape .* doesn't match the broadcast shape"):
        inferred("aten::add_.Tensor", x[0], x)


@pytest.mark.parametrize("name", ["add", "sub", "mul", "div", "clamp_max", "clamp_min", "maximum", "minimum", "pow"])
def test_no_operand_of_a_list_enlarges_what_is_written(name: str) -> None:
    said = []
    for device in ("cpu", "xla"):
        with pytest.raises(RuntimeError) as refusal:
            getattr(torch, f"_foreach_{name}_")([torch.ones(3, device=device)], [torch.ones(2, 3, device=device)])
        said.append(str(refusal.value))
    assert said[0] == said[1]


def test_memory_that_is_pinned_has_the_dtype_asked_for() -> None:
    assert torch.ops.aten.eye.default(2, dtype=torch.bool, device="xla", pin_memory=True).dtype is torch.bool
    with pytest.raises(RuntimeError, match="upper bound and lower bound inconsistent with step sign"):
        torch.arange(-1, 2, -100, dtype=torch.float32, device="xla", pin_memory=True)


def test_results_in_an_order_of_memory_follow_their_operands() -> None:
    x = torch.ones(2, 3, 8, 8).to(memory_format=torch.channels_last)
    weight = torch.ones(4, 3, 3, 3)
    args = ([1, 1], [0, 0], [1, 1], False, [0, 0], 1)
    (found,) = inferred("aten::convolution", x.to("xla"), weight.to("xla"), None, *args).outputs
    assert found.stride == torch.ops.aten.convolution(x, weight, None, *args).stride()


@pytest.mark.parametrize("dims", [2, 3])
@pytest.mark.parametrize("name", ["reflection_pad", "replication_pad"])
def test_the_gradient_of_a_padded_image_lies_in_the_order_of_the_image(name: str, dims: int) -> None:
    order = torch.channels_last if dims == 2 else torch.channels_last_3d
    plain = torch.ones(2, 3, *(4, 5, 6)[:dims])
    gradient = torch.ones(2, 3, *(6, 7, 8)[:dims])
    for image, of_last in ((plain.to(memory_format=order), False), (plain, True)):
        other = gradient.to(memory_format=order) if of_last else gradient
        backward = getattr(torch.ops.aten, f"{name}{dims}d_backward")
        (found,) = inferred(f"aten::{name}{dims}d_backward", other.to("xla"), image.to("xla"), [1, 1] * dims).outputs
        assert found.stride == backward(other, image, [1, 1] * dims).stride()
