"""Computations written with XLA's builder compute what PyTorch computes."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch

import torch_xla
import torch_xla.core.xla_builder as xb

SCALAR = xb.Shape.create(xb.Type.F32, ())


def plus() -> Any:
    return xb.create_computation("plus", lambda x, y: x + y, (SCALAR, SCALAR))


def largest() -> Any:
    return xb.create_computation("largest", lambda x, y: x.max(y), (SCALAR, SCALAR))


def run(function: Callable[..., Any], *tensors: torch.Tensor) -> Any:
    found = xb.XlaCallable(function)(*(each.to("xla") for each in tensors))
    return tuple(each.cpu() for each in found) if isinstance(found, tuple) else found.cpu()


X = torch.linspace(-0.9, 0.9, 24).reshape(2, 3, 4)
Y = X.flip(0) + 2.0
IMAGE, KERNEL = torch.randn(2, 4, 6, 6), torch.randn(8, 2, 3, 3)

CASES: list[tuple[str, Callable[..., Any], Sequence[torch.Tensor], Callable[..., Any]]] = [
    ("arithmetic", lambda x, y: (x + y) * 2.0 - x / y, (X, Y), lambda x, y: (x + y) * 2.0 - x / y),
    ("numbers in front", lambda x: 1.0 - x * (2.0 / (x + 3.0)), (X,), lambda x: 1.0 - x * (2.0 / (x + 3.0))),
    ("comparison", lambda x, y: (x < y) & ~(x >= 0.5), (X, X.flip(0)), lambda x, y: (x < y) & ~(x >= 0.5)),
    ("select", lambda x, y: (x > y).select(x, y), (X, X.flip(0)), torch.maximum),
    ("remainder of negative", lambda x, y: x % y, (X * 5, Y), torch.fmod),
    ("inverse error function", lambda x: x.erfinf().erf(), (X,), lambda x: x),
    ("atan2", lambda x, y: x.atan2(y), (X, Y), torch.atan2),
    ("clamp", lambda x: x.clamp(x.scalar_of(-0.5), x.scalar_of(0.5)), (X,), lambda x: x.clamp(-0.5, 0.5)),
    ("reshape", lambda x: x.reshape((4, -1)), (X,), lambda x: x.reshape(4, -1)),
    ("reshape by order", lambda x: x.reshape((4, 6), (2, 0, 1)), (X,), lambda x: x.permute(2, 0, 1).reshape(4, 6)),
    ("broadcast", lambda x: x.broadcast((2,)), (X,), lambda x: x.expand(2, *x.shape)),
    (
        "broadcast in dim",
        lambda x: x.broadcast_in_dim((4, 3, 2), (2,)),
        (torch.tensor([1.0, 2.0]),),
        lambda x: x.expand(4, 3, 2),
    ),
    ("slice", lambda x: x.slice((0, 1, 0), (2, 3, 4), (1, 1, 2)), (X,), lambda x: x[:, 1:3, ::2]),
    ("slice in dim", lambda x: x.slice_in_dim(1, 3, 1), (X,), lambda x: x[:, 1:3]),
    ("concatenation", lambda x, y: xb.Op.concat_in_dim((x, y), 1), (X, Y), lambda x, y: torch.cat((x, y), 1)),
    ("transpose, reverse", lambda x: x.transpose((2, 0, 1)).rev((0,)), (X,), lambda x: x.permute(2, 0, 1).flip(0)),
    (
        "pad",
        lambda x: x.pad(x.scalar_of(7.0), ((0, 0, 0), (1, 0, 0), (0, 2, 0))),
        (X,),
        lambda x: torch.nn.functional.pad(x, (0, 2, 1, 0), value=7.0),
    ),
    ("cast", lambda x: x.cast(xb.Type.S32).cast(xb.Type.F64), (X * 9,), lambda x: x.int().double()),
    ("bits", lambda x: x.bitcast(xb.Type.S32), (X,), lambda x: x.view(torch.int32)),
    (
        "sum",
        lambda x: x.reduce(x.zeros_like().slice((0,) * 3, (1,) * 3).reshape(()), plus(), (0, 2)),
        (X,),
        lambda x: x.sum((0, 2)),
    ),
    ("all", lambda x: x.reduce_all(xb.Op.zero(x.builder()), plus()), (X,), torch.sum),
    ("dot", lambda x, y: x @ y, (X[0], X[0].mT.contiguous()), torch.matmul),
    ("convolution", lambda x, k: x.conv(k, (1, 1), 2), (IMAGE, KERNEL), lambda x, k: torch.conv2d(x, k, groups=2)),
    (
        "padded convolution",
        lambda x, k: x.conv_with_general_padding(k, (2, 2), ((1, 1), (1, 1)), 2),
        (IMAGE, KERNEL),
        lambda x, k: torch.conv2d(x, k, None, 2, 1, groups=2),
    ),
    (
        "channels last",
        lambda x, k: x.conv_general_dilated(
            k, (1, 1), ((0, 0), (0, 0)), (1, 1), (2, 2), 0, 3, 2, 3, 0, 3, (1, 2), (0, 1), (1, 2), 2
        ),
        (IMAGE.permute(0, 2, 3, 1).contiguous(), KERNEL.permute(2, 3, 1, 0).contiguous()),
        lambda x, k: torch.conv2d(x.permute(0, 3, 1, 2), k.permute(3, 2, 0, 1), None, 1, 0, 2, 2).permute(0, 2, 3, 1),
    ),
    ("pooling", lambda x: x.max_pool((2, 2), (2, 2), 0, 1, (2, 3)), (IMAGE,), lambda x: torch.max_pool2d(x, 2)),
    (
        "window",
        lambda x: x.reduce_window(x.scalar_of(0.0), plus(), (1, 1, 2, 2), (1, 1, 2, 2)),
        (IMAGE,),
        lambda x: torch.nn.functional.avg_pool2d(x, 2) * 4,
    ),
    (
        "triangular",
        lambda a, b: a.triangualr_solve(b, True, True),
        (torch.eye(3) + torch.ones(3, 3).tril(), torch.ones(3, 1)),
        lambda a, b: torch.linalg.solve_triangular(a, b, upper=False),
    ),
    ("map", lambda x, y: xb.Op.map((x, y), plus(), (0, 1, 2)), (X, Y), torch.add),
    (
        "call",
        lambda x: xb.Op.call(plus(), (x.reduce_all(x.scalar_of(0.0), plus()), x.scalar_of(1.0))),
        (X,),
        lambda x: x.sum() + 1,
    ),
    ("iota", lambda x: xb.Op.iota(x.builder(), x.shape(), 1) + x, (X,), lambda x: x + torch.arange(3.0)[:, None]),
    ("size", lambda x: x.get_dimension_size(2), (X,), lambda x: torch.tensor(4, dtype=torch.int32)),
    ("constant", lambda x: xb.Op.constant(x.builder(), Y) + x, (X,), lambda x: x + Y),
]


@pytest.mark.parametrize(("function", "inputs", "expected"), [case[1:] for case in CASES], ids=[c[0] for c in CASES])
def test_operations(function: Callable[..., Any], inputs: Sequence[torch.Tensor], expected: Any) -> None:
    torch.testing.assert_close(run(function, *inputs), expected(*inputs), rtol=1e-4, atol=1e-5)


def test_gather_and_scatter() -> None:
    table, rows = torch.randn(5, 3), torch.tensor([4, 0, 4], dtype=torch.int32)
    found = run(lambda x, i: x.gather(i, (1,), (0,), (0,), 1), table, rows)
    torch.testing.assert_close(found, table[rows])
    updates = torch.randn(3, 3)
    found = run(lambda x, i, u: x.scatter(i, u, plus(), (1,), (0,), (0,), 1), table, rows, updates)
    torch.testing.assert_close(found, table.index_add(0, rows, updates))
    found = run(lambda x, i, u: x.scatter(i, u, largest(), (1,), (0,), (0,), 1), table, rows, updates)
    expected = torch.stack(
        [table[0].maximum(updates[1]), *table[1:4], table[4].maximum(updates[0]).maximum(updates[2])]
    )
    torch.testing.assert_close(found, expected)


def test_slices_whose_place_the_device_knows() -> None:
    start = torch.tensor(1, dtype=torch.int32)
    found = run(lambda x, i: x.dynamic_slice((i, i, i), (1, 2, 2)), X, start)
    torch.testing.assert_close(found, X[1:2, 1:3, 1:3])
    found = run(lambda x, i, y: x.dynamic_update_slice(y, (i, i, i)), X, start, torch.zeros(1, 2, 2))
    expected = X.clone()
    expected[1:2, 1:3, 1:3] = 0
    torch.testing.assert_close(found, expected)


def test_the_gradient_of_a_pooling() -> None:
    image = IMAGE.clone().requires_grad_()
    pooled = torch.max_pool2d(image, 2)
    pooled.backward(grad := torch.randn_like(pooled))
    at_least = xb.create_computation("ge", lambda x, y: x >= y, (SCALAR, SCALAR))
    window = (1, 1, 2, 2)
    found = run(lambda x, g: x.select_and_scatter(g, x.scalar_of(0.0), window, window, at_least, plus()), IMAGE, grad)
    torch.testing.assert_close(found, image.grad)


@pytest.mark.parametrize("other", [False, True])
def test_sorting(other: bool) -> None:
    keys, values = torch.tensor([[3.0, 1.0, 2.0], [2.0, 2.0, -1.0]]), torch.arange(6.0).reshape(2, 3)
    shapes = [SCALAR] * 4
    descending = xb.create_computation("descending", lambda x, y, *_: x > y, shapes)
    by_size = xb.create_computation("by size", lambda x, y, *_: x.abs() * 1.0 > y.abs(), shapes)
    found = run(lambda k, v: xb.Op.sort((k, v), by_size if other else descending, 1), keys, values)
    order = (keys.abs() if other else keys).argsort(dim=1, descending=True, stable=True)
    torch.testing.assert_close(found, (keys.gather(1, order), values.gather(1, order)))


def test_branches_and_loops() -> None:
    def branch(x: xb.Op) -> xb.Op:
        total = x.reduce_all(x.scalar_of(0.0), plus())
        return (total > 0.0).mkconditional((x,), lambda x: (x * 2.0,), lambda x: (x * 3.0,)).get_tuple_element(0)

    for sign, factor in ((1.0, 2.0), (-1.0, 3.0)):
        torch.testing.assert_close(run(branch, X.abs() * sign), X.abs() * sign * factor)

    def powers(x: xb.Op) -> xb.Op:
        start = (xb.Op.scalar(x.builder(), 0, xb.Type.S32), x)
        return xb.Op.mkwhile(start, lambda i, _: i < 5, lambda i, x: (i + 1, x * 2.0))

    count, found = run(powers, X)
    assert count.item() == 5
    torch.testing.assert_close(found, X * 32)


def test_a_computation_has_gradients_and_is_called_by_name() -> None:
    computation = xb.create_computation("cube", lambda x: (x * x * x, x + 1.0), (xb.tensor_shape(X),))
    assert "HloModule" in xb.get_computation_hlo(computation) and "f32[2,3,4]" in xb.get_computation_hlo(computation)
    x = X.to("xla").requires_grad_()
    cube, more = torch_xla._XLAC._xla_user_computation("xla::cube", [x], computation)
    (cube.sum() + more.sum()).backward()
    torch.testing.assert_close(x.grad.cpu(), 3 * X * X + 1)


def test_a_computation_comes_in_as_hlo() -> None:
    x, y = X.to("xla"), Y.to("xla")
    proto = torch_xla._XLAC._get_xla_tensors_hlo_proto([x * y + 1])
    function = xb.xla_computation_as_func(xb.computation_from_module_proto("mine", proto))
    torch.testing.assert_close(function(x, y).cpu(), X * Y + 1)
    with pytest.raises(ValueError, match="no serialised HLO module"):
        xb.computation_from_module_proto("mine", b"nothing")


def test_functions_of_jax() -> None:
    before = xb._jax_to_xla_computation_cache_elements()
    callable_ = xb.JaxCallable(lambda x: x * 3)
    torch.testing.assert_close(callable_(X.to("xla")).cpu(), X * 3)
    callable_(X.to("xla"))
    assert xb._jax_to_xla_computation_cache_elements() == before + 1
    assert "HloModule" in callable_.specialize(X.to("xla"))


def test_shapes() -> None:
    shape = xb.mkshape(xb.Type.BF16, (2, 3))
    assert (shape.sizes, shape.rank, shape.dtype, shape.as_scalar().sizes) == ((2, 3), 2, "bf16", ())
    assert shape.dynamic_dimensions == (False, False) and not shape.is_dynamic() and not shape.is_tuple()
    pair = xb.Shape([shape, SCALAR])
    assert pair.tuple_size() == 2 and pair.tuple_shape(1) == SCALAR and repr(pair) == "(bf16[2,3], f32[])"
    with pytest.raises(NotImplementedError, match="fixed sizes"):
        xb.Shape.create(xb.Type.F32, (2,), (True,))
    assert xb.Op.to_torch_type("pred") is torch.bool and xb.Op.from_torch_type(torch.int8) == "s8"


def test_mistakes_are_told_where_they_are_made() -> None:
    builder = xb.create_builder("mine")
    x = xb.mkparam(builder, 0, xb.mkshape("f32", (2,)))
    with pytest.raises(TypeError, match=r"Add\(f32\[2\], s32\[2\]\): both operands have one dtype"):
        x + x.cast("s32")
    with pytest.raises(ValueError, match="has no operation 'Plus'; it has Abs, "):
        xb.mkop("Plus", (x, x))
    with pytest.raises(ValueError, match="got some of 'mine' and 'other'"):
        x + xb.Op.zero(xb.create_builder("other"))
    with pytest.raises(ValueError, match="has a parameter 0 already"):
        xb.mkparam(builder, 0, SCALAR)
    xb.mkparam(builder, 2, SCALAR)
    with pytest.raises(ValueError, match="number 1 is missing"):
        x.build("mine")
    with pytest.raises(NotImplementedError, match="sizes of programs here are numbers"):
        x.dynamic_reshape((2,))


def test_a_placeholder_is_recorded_and_refuses_its_values() -> None:
    x = xb.create_placeholder_tensor((1 << 20, 1 << 20), torch.float32)
    assert torch_xla._XLAC._is_placecholder(x) and not torch_xla._XLAC._is_placecholder(torch.ones(1, device="xla"))
    total = (x + 1).sum()
    assert "f32[1048576,1048576]" in torch_xla._XLAC._get_xla_tensors_hlo([total])
    for wanted in (total, x):
        with pytest.raises(RuntimeError, match="a placeholder tensor .* holds no memory"):
            wanted.cpu()
    np.testing.assert_array_equal((torch.ones(2, device="xla") + 1).cpu(), [2, 2])
