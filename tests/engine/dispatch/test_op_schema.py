"""The kind of an overload is read from its schema."""

import pytest
import torch

from torch_xla._engine.compat.names import torch as private
from torch_xla._engine.dispatch.op_schema import Form, form_of, operator_of, resolve
from torch_xla._engine.dispatch.register.aten_kernels import _NAMED_AFTER_RESULTS


def test_every_operator_with_an_out_is_known_by_its_name() -> None:
    for name in private.all_operator_names():
        overload = name.partition(".")[2]
        if not name.startswith("aten::") or private.has_kernel(name, "CompositeImplicitAutograd"):
            continue
        try:
            schema = private.schema_named(*name.partition(".")[::2])
        except RuntimeError:
            assert name.partition(".")[0] == "aten::cholesky"  # PyTorch 2.14 has taken it out; our kernel is left
            continue
        if any(argument.is_out for argument in schema.arguments):
            known = "out" in overload.lower() or overload in _NAMED_AFTER_RESULTS
            assert known, f"{name} has an `out=` that its name does not tell"


@pytest.mark.parametrize(
    ("name", "form", "functional"),
    [
        ("aten::add.Tensor", Form.FUNCTIONAL, "aten::add.Tensor"),
        ("aten::add_.Tensor", Form.INPLACE, "aten::add.Tensor"),
        ("aten::add.out", Form.OUT, "aten::add.Tensor"),
        ("aten::max.dim_max", Form.OUT, "aten::max.dim"),
        ("aten::sort.values_stable", Form.OUT, "aten::sort.stable"),
        ("aten::_foreach_add_.Scalar", Form.INPLACE, "aten::_foreach_add.Scalar"),
        ("aten::bernoulli_.float", Form.INPLACE, "aten::bernoulli.p"),
        ("aten::normal_", Form.INPLACE, "aten::normal_functional"),
        ("aten::view", Form.VIEW, None),
        ("aten::as_strided_", Form.INPLACE, None),
    ],
)
def test_the_form_and_the_functional_sibling_are_read_off_the_schema(
    name: str, form: Form, functional: str | None
) -> None:
    operator = operator_of(name)
    assert operator.form is form
    if functional is not None:
        assert operator.functional is not None and operator.functional.name() == functional


def test_arguments_that_only_the_written_form_may_leave_out_are_filled_in() -> None:
    assert operator_of("aten::bernoulli_.float").defaults == ((1, "p", 0.5),)
    assert operator_of("aten::add_.Tensor").defaults == ()


def test_a_name_finds_its_overload_and_another_none() -> None:
    assert resolve("aten::add.Tensor") is torch.ops.aten.add.Tensor
    assert resolve("aten::relu") is torch.ops.aten.relu.default
    with pytest.raises(AttributeError):
        resolve("aten::no_such_operator")


def test_a_call_knows_which_arguments_are_written_and_which_take_numbers() -> None:
    assert operator_of("aten::max.dim_max").written == ("max", "max_values")
    assert operator_of("aten::_foreach_add_.Scalar").bumps and not operator_of("aten::_foreach_add_.Scalar").returns
    add = operator_of("aten::add.Tensor")
    assert add.written == () and add.returns and {1, "other", 2, "alpha"} <= add.scalars
    assert operator_of("aten::index_put_").index_like and not add.index_like
    assert 2 not in operator_of("aten::sum.dim_IntList").scalars


def test_every_form_that_writes_has_the_arguments_of_its_functional_one() -> None:
    """Or of some of them it is known where they are, what they are if left out, or that they say a dtype."""
    checked = 0
    for name in private.all_operator_names():
        if not name.startswith("aten::") or private.has_kernel(name, "CompositeImplicitAutograd"):
            continue
        try:
            op = resolve(name)
        except (AttributeError, RuntimeError):
            continue
        if form_of(op) not in (Form.INPLACE, Form.OUT):
            continue
        operator = operator_of(name)
        if operator.functional is None:
            continue
        checked += 1
        names = {a.name for a in op._schema.arguments if not a.is_out}
        needed = {a.name for a in operator.functional._schema.arguments if not a.has_default_value()}
        assert len(needed) <= len(names), name
        assert form_of(operator.functional) is Form.FUNCTIONAL, name
    assert checked > 1000
