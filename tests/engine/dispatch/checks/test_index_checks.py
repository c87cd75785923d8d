"""Indices: on the device, on the host, known and unknown."""

import warnings
from collections.abc import Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import torch_xla.debug.metrics as met
from tests.support.twins import Program, cases, check_refused, check_same, numbers, outcome


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


def empty(d: str) -> torch.Tensor:
    return torch.empty(0, dtype=torch.int64, device=d)


@cases(
    {
        "no rows": lambda d: n(3, 2, d=d).index_put_((empty(d),), n(4, d=d)),
        "no rows, added": lambda d: n(3, 2, d=d).index_put((empty(d),), n(3, 2, d=d), accumulate=True),
        "rows of nothing": lambda d: n(3, 0, d=d).__setitem__(torch.tensor([0, 1], device=d), n(5, d=d)),
        "more dimensions": lambda d: n(3, 2, d=d).__setitem__(empty(d), n(3, 1, 2, d=d)),
        "dimensions of one": lambda d: n(3, 2, d=d).index_put_((empty(d),), n(1, 1, 1, 2, d=d)),
        "a known mask": lambda d: n(3, 2, d=d).__setitem__(torch.tensor([False] * 3, device=d), n(0, 3, d=d)),
        "a mask on the host": lambda d: n(3, 2, d=d).__setitem__(torch.tensor([False] * 3), n(2, 2, d=d)),
        "part of nothing": lambda d: n(3, 2, d=d).__setitem__((slice(0, 0), [0, 1]), n(3, d=d)),
        "apart": lambda d: n(2, 3, 2, d=d).__setitem__((empty(d), slice(None), empty(d)), n(2, d=d)),
        "unsafe": lambda d: torch.ops.aten._unsafe_index_put(n(3, 2, d=d), (empty(d),), n(4, d=d)),
        "a mask without elements": lambda d: torch.ops.aten.index_put(
            n(3, 0, 2, d=d), (n(3, 0, d=d) > 0,), n(3, 1, d=d)
        ),
        "one added through a mask": lambda d: n(3, d=d).index_put_(
            (torch.tensor([False, True, True], device=d),), n(1, 1, d=d), accumulate=True
        ),
    }
)
def test_values_for_no_places_must_fit_as_on_the_cpu(program: Program) -> None:
    check_refused(program)


@cases(
    {
        "none": lambda d: n(3, 2, d=d).index_put_((empty(d),), n(0, 2, d=d)),
        "a row": lambda d: n(3, 2, d=d).index_put_((empty(d),), n(1, 2, d=d)),
        "numbers": lambda d: n(3, 2, d=d).index_put_((empty(d),), n(1, 1, d=d)),
        "of nothing": lambda d: n(3, 0, d=d).index_put_((torch.tensor([0, 1], device=d),), n(2, 1, d=d)),
        "one through a mask": lambda d: n(3, 2, d=d).index_put_(
            (torch.tensor([False] * 3, device=d),), n(1, 1, 1, d=d)
        ),
        "apart": lambda d: torch.ops.aten.index_put(n(2, 3, 2, d=d), (empty(d), None, empty(d)), n(3, d=d)),
        "through a mask": lambda d: n(3, 2, d=d).index_put_((torch.tensor([False] * 3, device=d),), n(0, 2, d=d)),
    }
)
def test_values_that_fit_no_places_are_taken(program: Program) -> None:
    check_same(program)


# Some masks do not fit what they are used on, and some indices are outside of it.
_INDEX = st.one_of(
    st.none(),
    st.lists(st.booleans(), max_size=3).map(lambda chosen: torch.tensor(chosen, dtype=torch.bool)),
    st.lists(st.integers(-4, 3), max_size=3).map(lambda places: torch.tensor(places, dtype=torch.int64)),
    st.just(torch.zeros(2, 2, dtype=torch.int64)),
)


@settings(max_examples=60)
@given(
    st.lists(st.integers(0, 3), min_size=1, max_size=3),
    st.lists(_INDEX, min_size=1, max_size=3),
    st.lists(st.integers(0, 3), max_size=3),
    st.booleans(),
)
def test_what_is_put_in_is_refused_where_the_cpu_does(
    sizes: list[int], indices: list[torch.Tensor | None], of_values: list[int], adds: bool
) -> None:
    def put(d: str) -> object:
        given = [None if index is None else index.to(d) for index in indices]
        try:
            return torch.ops.aten.index_put(n(*sizes, d=d), given, n(*of_values, d=d), adds).tolist()
        except (IndexError, RuntimeError) as refusal:
            return type(refusal), str(refusal).partition("\n")[0]

    on_cpu = put("cpu")
    on_xla = put("xla")
    if any(index is not None for index in indices):
        assert on_xla == on_cpu
    else:
        assert isinstance(on_xla, tuple) == isinstance(on_cpu, tuple)


def of_one_place(index_dims: int, number: int) -> Iterator[tuple[str, Program]]:
    """Calls of operators that take an index, of a tensor without dimensions."""

    def one(d: str) -> torch.Tensor:
        return torch.tensor(5.0, device=d)

    def index(d: str) -> torch.Tensor:
        return torch.tensor([number] if index_dims else number, device=d)

    def source(d: str) -> torch.Tensor:
        return torch.tensor([9.0] if index_dims else 9.0, device=d)

    yield "index_fill", lambda d: one(d).index_fill(0, index(d), 1.0)
    yield "index_fill_", lambda d: one(d).index_fill_(-1, index(d), 1.0)
    yield "index_select", lambda d: one(d).index_select(0, index(d))
    yield "index_add", lambda d: one(d).index_add(0, index(d), source(d))
    yield "index_copy_", lambda d: one(d).index_copy_(0, index(d), source(d))
    yield "index_reduce", lambda d: one(d).index_reduce(0, index(d), source(d), "amax")
    yield "gather", lambda d: one(d).gather(-1, index(d))
    yield "scatter", lambda d: one(d).scatter(0, index(d), source(d))
    yield "scatter a number", lambda d: one(d).scatter(0, index(d), 3.0)
    yield "scatter_add_", lambda d: one(d).scatter_add_(0, index(d), source(d))
    yield "scatter_reduce", lambda d: one(d).scatter_reduce(0, index(d), source(d), "sum")


@pytest.mark.parametrize("index_dims", [0, 1])
@pytest.mark.parametrize("number", [0, 1, -1, -2])
def test_a_tensor_without_dimensions_has_one_place(index_dims: int, number: int) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # index_reduce is in beta
        for name, program in of_one_place(index_dims, number):
            wanted, given = outcome(program, "cpu"), outcome(program, "xla")
            assert (type(given), str(given)) == (type(wanted), str(wanted)), name
            if wanted is None:
                check_same(program)


@pytest.mark.parametrize("form", ["put", "put_"])
@pytest.mark.parametrize("source", [1, [1], [1, 2], [True, False], [1j, 2j]])
def test_put_takes_a_source_of_the_dtype_of_its_tensor(form: str, source: object) -> None:
    check_refused(lambda d: getattr(n(3, d=d), form)(torch.tensor([0, 1], device=d), torch.tensor(source, device=d)))


@pytest.mark.parametrize("form", ["index_put", "index_put_", "_index_put_impl_", "_unsafe_index_put"])
@pytest.mark.parametrize("indices", [[], [None]])
def test_a_write_without_an_index_is_refused_as_on_the_cpu(form: str, indices: list[None]) -> None:
    for values in (1, 3):
        with pytest.raises(RuntimeError, match=f"{form} expects a tensor among its indices. To write to all elements"):
            getattr(torch.ops.aten, form)(n(3, d="xla"), indices, n(values, d="xla"))
        with pytest.raises(RuntimeError):  # of a failed assertion
            getattr(torch.ops.aten, form)(n(3, d="cpu"), indices, n(values, d="cpu"))
    check_refused(lambda d: getattr(torch.ops.aten, form)(n(3, d=d), indices, n(2, d=d)))
