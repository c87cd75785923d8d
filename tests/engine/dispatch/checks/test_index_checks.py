"""Indices: on the device, on the host, known and unknown."""

import warnings

import pytest
import torch

import torch_xla.debug.metrics as met
from tests.support.twins import Program, cases, check_same, numbers


def n(*size: int, d: str, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return numbers(*size, device=d, dtype=dtype)


@cases(
    {
        "list": lambda d: n(4, 3, d=d)[[0, 2, -1]],
        "lists": lambda d: n(4, 3, d=d)[[0, 2], [1, -1]],
        "list and slice": lambda d: n(4, 3, 2, d=d)[:, [0, 2], 1:],
        "lists apart": lambda d: n(4, 3, 2, d=d)[[0, 1], :, [1, 0]],
        "device tensor": lambda d: n(4, 3, d=d)[torch.tensor([[0, 1], [2, 3]], device=d)],
        "host tensor": lambda d: n(4, 3, d=d)[torch.tensor([1, 1])],
        "int32": lambda d: n(4, d=d)[torch.tensor([1, 3], dtype=torch.int32, device=d)],
        "zero-dim tensor": lambda d: n(4, 3, d=d)[torch.tensor(2, device=d)],
        "host mask": lambda d: n(4, 3, d=d)[torch.tensor([True, False, True, False])],
        "host mask of a matrix": lambda d: n(2, 2, d=d)[torch.tensor([[True, False], [True, True]])],
        "host mask and list": lambda d: n(2, 3, d=d)[torch.tensor([True, True]), [0, 2]],
        "empty list": lambda d: n(4, 3, d=d)[[]],
        "empty tensor": lambda d: n(4, 3, d=d)[torch.empty(0, dtype=torch.int64, device=d)],
        "None between": lambda d: n(4, 3, d=d)[None, [0, 1]],
        "take": lambda d: n(4, 3, d=d).take(torch.tensor([0, -1], device=d)),
        "index_select": lambda d: n(4, 3, d=d).index_select(1, torch.tensor([2, 0], device=d)),
        "of a view": lambda d: n(4, 3, d=d).t()[1:][[1, 0]],
    }
)
def test_reading_by_index(program: Program) -> None:
    check_same(program)
    # PyTorch reads a single index of no dimensions.
    assert set(met.executed_fallback_ops()) <= {"aten::_local_scalar_dense"}


def written(write: object) -> Program:
    def program(d: str) -> torch.Tensor:
        x = n(4, 3, d=d)
        write(x)  # type: ignore[operator]
        return x

    return program


@cases(
    {
        "list": written(lambda x: x.__setitem__([0, -1], 5.0)),
        "rows": written(lambda x: x.__setitem__([0, 2], torch.ones(2, 3, device=x.device))),
        "device mask": written(lambda x: x.__setitem__(x > 4, -1.0)),
        "device mask, a tensor of one": written(lambda x: x.__setitem__(x > 4, torch.tensor(-1.0, device=x.device))),
        "host mask": written(lambda x: x.__setitem__(torch.tensor([True, False, False, True]), 7.0)),
        "accumulate": written(
            lambda x: x.index_put_((torch.tensor([0, 0]).to(x.device),), torch.ones(3).to(x.device), accumulate=True)
        ),
        "through a view": written(lambda x: x.t()[1:].__setitem__(([0, 1], [3, 0]), 9.0)),
        "nothing": written(lambda x: x.__setitem__([], 9.0)),
    }
)
def test_writing_by_index(program: Program) -> None:
    check_same(program)
    assert met.executed_fallback_ops() == []


@pytest.mark.parametrize("place", ["device", "host"])
def test_indices_the_host_knows_are_checked_at_once(place: str) -> None:
    x = torch.arange(3.0, device="xla")
    index = torch.tensor([0, 3]).to("xla" if place == "device" else "cpu")
    with pytest.raises(IndexError, match="index 3 is out of bounds for dimension 0 with size 3"):
        x[index]
    with pytest.raises(IndexError, match="index 3 is out of bounds for dimension 0 with size 3"):
        x[index] = 1.0
    assert x.tolist() == [0, 1, 2]


@cases(
    {
        "a number": lambda d: n(4, 3, d=d).index_fill(1, torch.tensor([0, -1]), 7.0),
        "a tensor": lambda d: n(4, 3, d=d).index_fill(0, torch.tensor([2]), torch.tensor(7.0, device=d)),
        "in place": written(lambda x: x.index_fill_(0, torch.tensor([1, 3]), 7.0)),
        "nothing": written(lambda x: x.index_fill_(0, torch.tensor([], dtype=torch.int64), 7.0)),
    }
)
def test_what_is_filled_may_be_told_by_an_index_on_the_host(program: Program) -> None:
    check_same(program)
    assert met.executed_fallback_ops() == []


def test_an_index_on_the_host_of_what_is_filled_is_checked_at_once() -> None:
    x = torch.arange(3.0, device="xla")
    with pytest.raises(IndexError):
        x.index_fill_(0, torch.tensor([3]), 1.0)
    assert x.tolist() == [0, 1, 2]


def test_a_known_index_that_was_overwritten_is_not_mistaken_for_the_old_one() -> None:
    x = torch.arange(3.0, device="xla")
    index = torch.tensor([0, 7], device="xla")
    index[1] = 2
    assert x[index].tolist() == [0, 2]


def test_part_of_a_known_index_may_be_used() -> None:
    x = torch.arange(3.0, device="xla")
    index = torch.tensor([9, 1, 2], device="xla")
    assert x[index[1:]].tolist() == [1, 2]
    assert x.gather(0, index[1:]).tolist() == [1, 2]


def test_what_is_put_has_the_dtype_of_where_it_is_put() -> None:
    x, index = torch.ones(3, device="xla"), torch.tensor([1, 0], device="xla")
    with pytest.raises(RuntimeError, match="got Float for the destination and Bool for the source"):
        x.index_put_((index,), index > 0)
    assert x.index_put_((index,), (index > 0).float()).tolist() == [0, 1, 1]


@cases(
    {
        str(dtype).removeprefix("torch."): lambda d, dtype=dtype: _through_a_mask_of_its_dtype(d, dtype)
        for dtype in (torch.bool, torch.uint8)
    }
)
@pytest.mark.filterwarnings("ignore:indexing with dtype torch.uint8")
def test_values_through_a_mask_of_the_dtype_of_what_is_written(program: Program) -> None:
    check_same(program)


def _through_a_mask_of_its_dtype(d: str, dtype: torch.dtype) -> torch.Tensor:
    x = (n(4, d=d) >= 0).to(dtype)
    x[x.clone()] = (n(4, d=d) > 2).to(dtype)
    return x


BYTES: dict[str, Program] = {
    "read": lambda d: torch.ones(3, device=d)[torch.ones(3, dtype=torch.uint8, device=d)],
    "read, mask on the CPU": lambda d: torch.ones(3, device=d)[torch.ones(3, dtype=torch.uint8)],
    "read, second dimension": lambda d: torch.ones(2, 3, device=d)[:, torch.ones(3, dtype=torch.uint8, device=d)],
    "written": lambda d: torch.ones(3, device=d).index_put_(
        [torch.ones(3, dtype=torch.uint8, device=d)], torch.ones(3, device=d)
    ),
}


@pytest.mark.parametrize("name", BYTES)
def test_masks_of_bytes_are_deprecated_where_they_are_used(name: str) -> None:
    for device in ("cpu", "xla"):
        with pytest.warns(UserWarning, match="^indexing with dtype torch.uint8 is now deprecated") as told:
            BYTES[name](device)
        assert [warning.filename for warning in told] == [__file__]


def test_one_number_is_not_written_through_a_mask_of_bytes() -> None:
    for device in ("cpu", "xla"):
        with pytest.raises(RuntimeError, match="masked_fill_ only supports boolean masks"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.ones(3, device=device)[torch.ones(3, dtype=torch.uint8, device=device)] = 2.0
