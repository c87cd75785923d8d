"""Raise the CPU's errors: writes to overlapping memory, results that cannot be cast, wrong arguments."""

import math
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from ...compat.names import torch as private
from ...compat.names.torch import address_of, overload_name_of, pytree, schema_of
from ...ir.value_spec import Spec
from ...ir.view import Geometry, InternalOverlap, Overlap, has_internal_overlap, overlap_between
from ...quiet_calls import quiet
from ...tensor.host_known_values import contents_of
from ...tensor.storage import value_of
from ...tensor.upload import from_numpy
from ..op_schema import Operator, operator_of, overload_for

_OVERLAPPING_TARGET = (
    "unsupported operation: more than one element of the written-to tensor refers to a single memory location. "
    "Please clone() the tensor before performing the operation."
)
_OVERLAPPING_OPERAND = (
    "unsupported operation: some elements of the input tensor and the written-to tensor refer to a single memory "
    "location. Please clone() the tensor before performing the operation."
)

# PyTorch lets these write to a tensor that shows an element twice: whatever the order, the outcome is the same.
_WRITES_ONE_NUMBER = {"fill_", "zero_", "_foreach_zero_", "threshold_"}
# … and these too, with a warning.
_DEPRECATED_ON_EXPANDED = {
    "masked_fill_": "masked_fill_",
    "index_fill_": "index_fill_",
    "index_put_": "index_put_",
    "_index_put_impl_": "index_put_",
}

# Operators that write elements to other places than they read them from, so no operand may overlap the written one.
_PLACE_ELEMENTS = frozenset(
    ("index_put_", "_index_put_impl_", "index_add_", "index_copy_", "index_fill_", "index_reduce_", "masked_fill_",
     "masked_scatter_", "put_", "scatter_", "scatter_add_", "scatter_reduce_")
)  # fmt: skip

# They read elements from other places than they write them to, so an `out=` of theirs may be nothing that they read.
_READ_ELSEWHERE = frozenset(
    ("cat", "gather", "index", "index_add", "index_copy", "index_reduce", "index_select", "linalg_cross",
     "masked_select", "nonzero", "scatter", "scatter_add", "scatter_reduce", "take")
)  # fmt: skip

# Their operands must have one dtype. Others take indices or masks beside numbers.
PRODUCTS = frozenset(("mm", "bmm", "mv", "dot", "vdot", "addmm", "addmv", "addbmm", "baddbmm", "addr", "linear"))

_OF_LAPACK = (torch.float32, torch.float64, torch.complex64, torch.complex128)
_HALVES = frozenset((torch.float16, torch.bfloat16))
_INTEGERS = frozenset((torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64))
# Dtypes for which PyTorch's CUDA backend has a kernel and its CPU has none, as PyTorch's operator database says.
_OF_ACCELERATORS = {
    "avg_pool3d": _HALVES,
    "histc": _INTEGERS,
    "multi_margin_loss": _HALVES,
    "multilabel_margin_loss_forward": _HALVES,
    "polygamma": _HALVES,
    "round": _HALVES,
    "rrelu_with_noise": _HALVES,
    "rrelu_with_noise_functional": _HALVES,
    "trace": frozenset((torch.bool,)),
    "_upsample_bilinear2d_aa": _HALVES,
}

# What PyTorch calls on accelerators and, whose error counts, on the CPU instead: it does not take `None`.
_OF_THE_CPU = {"aten::native_dropout": "aten::dropout"}

# Beyond this many bytes the CPU is not asked, because its answer costs too much.
_TOO_LARGE = 1 << 30

# The CPU reads or writes memory before it has looked at all of their arguments: it is asked in these cases alone.
_ASKED_IF: dict[str, Callable[..., bool]] = {
    "aten::_fft_c2c": lambda *_: False,
    "aten::_fft_c2r": lambda *_: False,
    "aten::_fft_r2c": lambda *_: False,
    "aten::linalg_lstsq": lambda self, b, *_, driver=None, **__: (
        not (driver in ("gelsd", "gelss") and b.shape[-1:] == (0,) and b.dtype in _OF_LAPACK)
    ),
    "aten::lu_unpack": lambda LU, pivots, *_: LU.dim() > 1 and has_all_pivots(LU, pivots),
    "aten::repeat_interleave.Tensor": lambda *_, **__: False,
    "aten::segment_reduce": lambda *_, offsets=None, unsafe=False, **__: offsets is None and not unsafe,
}


def has_all_pivots(LU: Tensor, pivots: Tensor) -> bool:
    """Return whether there are as many pivots as the CPU's kernel reads."""
    count = min(LU.shape[-2:])
    return pivots.shape[-1:] == (count,) and pivots.numel() == count * math.prod(LU.shape[:-2])


def written_tensors(operator: Operator, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[Tensor]:
    """Yield the tensors a call writes to."""
    for where in operator.written:
        target = args[where] if isinstance(where, int) else kwargs.get(where)
        for tensor in target if isinstance(target, (list, tuple)) else (target,):
            if isinstance(tensor, Tensor):
                yield tensor


def places_elements(operator: Operator) -> bool:
    """Return whether it writes elements to other places than it reads them from."""
    return schema_of(operator.overload).name.partition("::")[2] in _PLACE_ELEMENTS


def refuse_overlapping_target(operator: Operator, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Raise as PyTorch does if a written tensor shows an element of its storage twice."""
    for tensor in written_tensors(operator, args, kwargs):
        if has_internal_overlap(_geometry(tensor)) is not InternalOverlap.YES:
            continue
        name = schema_of(operator.overload).name.partition("::")[2]
        if name in _DEPRECATED_ON_EXPANDED:
            warnings.warn(
                f"Use of {_DEPRECATED_ON_EXPANDED[name]} on expanded tensors is deprecated. Please clone() the tensor "
                "before performing this operation.",
                stacklevel=4,
            )
        elif name not in _WRITES_ONE_NUMBER or overload_name_of(operator.overload) == "Tensor":
            raise RuntimeError(_OVERLAPPING_TARGET)


def refuse_partial_overlap(
    operator: Operator, written: list[Tensor], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    """Raise as PyTorch does if an operand shares some, but not all, of its memory with a written tensor."""
    reads_elsewhere = schema_of(operator.overload).name.partition("::")[2] in _READ_ELSEWHERE
    if reads_elsewhere or places_elements(operator):
        operands = pytree.tree_leaves(args if reads_elsewhere else (args[1:], kwargs))
        others = [o for o in operands if isinstance(o, Tensor)]
        # The written tensor must not be another operand, even if it is empty.
        if any(o is written[0] or _overlap_in_storage(written[0], o) not in (None, Overlap.NO) for o in others):
            refusal = refusal_of_the_cpu(operator, args, kwargs)
            # For the zeros it is asked with, a mask means something else: what it says of sizes does not count.
            if refusal is not None and str(refusal).startswith("unsupported operation"):
                raise refusal
        return
    for target in written:
        for operand in pytree.tree_leaves((args, kwargs)):
            if not isinstance(operand, Tensor) or operand is target:
                continue
            partial = _overlap_in_storage(target, operand) is Overlap.PARTIAL
            if partial and not any(operand is other for other in written):
                # A few operators do not mind; which, the CPU knows.
                refuse_if_the_cpu_does(operator, args, kwargs)
                return


def refuse_partial_overlap_of_lists(args: tuple[Any, ...]) -> None:
    """Do as `refuse_partial_overlap`, for a `_foreach_` operator that writes to `args[0]`: element by element."""
    for others in args[1:]:
        for target, operand in zip(args[0], others, strict=False) if isinstance(others, (list, tuple)) else ():
            shares = isinstance(operand, Tensor) and operand is not target
            if shares and operand.untyped_storage() is target.untyped_storage():
                if _overlap(target, operand) is Overlap.PARTIAL:
                    raise RuntimeError(_OVERLAPPING_OPERAND)


def refuse_overlapping_out(
    operator: Operator, outs: list[Tensor], results: list[Tensor], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    """Raise as PyTorch does if an `out=` shows an element twice; it looks at that before it looks at sizes.

    The CPU is asked about an `out=` of another size alone. Some of its kernels write to one of the same size as if its
    elements were beside each other: beyond the memory that it has, which ends the process.
    """
    for out, result in zip(outs, results, strict=True):
        if has_internal_overlap(_geometry(out)) is InternalOverlap.YES:
            if out.shape == result.shape:
                raise RuntimeError(_OVERLAPPING_TARGET)
            refuse_if_the_cpu_does(operator, args, kwargs)


def refuse_resizing_operands(
    operator: Operator, outs: list[Tensor], results: list[Tensor], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    """Raise as PyTorch does if an `out=` of another size than the result is an operand as well: it is not resized."""
    for out, result in zip(outs, results, strict=True):
        if out.shape != result.shape and any(operand is out for operand in pytree.tree_leaves(args)):
            refuse_if_the_cpu_does(operator, args, kwargs)


def _geometry(tensor: Tensor) -> Geometry:
    return Geometry(tuple(tensor.shape), tensor.stride(), int(tensor.storage_offset()))


def _overlap(a: Tensor, b: Tensor) -> Overlap:
    if a.element_size() == b.element_size():
        return overlap_between(_geometry(a), _geometry(b))
    return overlap_between(_in_bytes(a), _in_bytes(b))


def _overlap_in_storage(a: Tensor, b: Tensor) -> Overlap | None:
    """Return how two tensors overlap; `None` if they have different storages."""
    return _overlap(a, b) if a.untyped_storage() is b.untyped_storage() else None


def _in_bytes(tensor: Tensor) -> Geometry:
    geometry, width = _geometry(tensor), tensor.element_size()
    return Geometry((*geometry.size, width), (*[s * width for s in geometry.stride], 1), geometry.offset * width)


def refusal_of_the_cpu(
    operator: Operator,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    instead: dict[int, torch.dtype] | None = None,
    small: bool = False,
) -> Exception | None:
    """Return the CPU's error for a call with zeros in tensors of the same geometry; `None` if the CPU accepts it.

    `instead` has other dtypes for some of the tensors, by `id`. With `small` their sizes are small
    numbers instead: equal ones stay equal, and the smaller one stays smaller.
    """
    if operator.name in _ASKED_IF and not _ASKED_IF[operator.name](*args, **kwargs):
        return None
    called = operator_of(_OF_THE_CPU[operator.name]) if operator.name in _OF_THE_CPU and None not in args else None
    drawn = torch.default_generator.get_state()  # an operator that draws must not move the host's random numbers on
    try:
        twins = _Twins(instead or {}, _few(args, kwargs) if small else {})
        cpu_args, cpu_kwargs = pytree.tree_map(twins.of, (args, kwargs))
        if twins.bytes > _TOO_LARGE or _makes_too_much(operator, cpu_args, cpu_kwargs):
            return None
        with private.without_modes(), torch.no_grad():
            _call_quietly(operator, cpu_args, cpu_kwargs)
    except Exception as refusal:  # whatever the CPU raises is the answer
        # Not of the CPU: a number where the operator's own overload, which has no form that writes, takes a tensor.
        is_of_the_cpu = not str(refusal).startswith("Could not run ") and "Expected a value of type" not in str(refusal)
        if called is not None:
            refusal = refusal_of_the_cpu(called, args, kwargs, instead=instead, small=small) or refusal
        return refusal.with_traceback(None) if is_of_the_cpu else None
    finally:
        torch.default_generator.set_state(drawn)
    of_called = None if called is None else refusal_of_the_cpu(called, args, kwargs, instead=instead, small=small)
    return of_called if of_called is not None and is_of_a_missing_kernel(of_called) else None


def _makes_too_much(operator: Operator, args: tuple[object, ...], kwargs: dict[str, object]) -> bool:
    """Return whether the results of a call with few elements are too large for the CPU to make, as those of `outer`."""
    most = 1
    for leaf in pytree.tree_leaves((args, kwargs)):
        if isinstance(leaf, Tensor):
            most *= max(leaf.numel(), 1)
        elif isinstance(leaf, (int, float)) and math.isfinite(leaf):
            most *= max(math.ceil(abs(leaf)), 1)
    if most <= _TOO_LARGE >> 4:  # 16 bytes for each element
        return False
    on_meta = pytree.tree_map(_on_meta, (args, kwargs))
    try:
        with private.without_modes(), torch.no_grad():
            results = _call_quietly(operator, *on_meta)
    except Exception:  # it has no kernel for Meta, or refuses the call: the CPU says why
        return False
    made = [leaf for leaf in pytree.tree_leaves(results) if isinstance(leaf, Tensor)]
    return sum(leaf.untyped_storage().nbytes() for leaf in made) > _TOO_LARGE


def _on_meta(leaf: object) -> object:
    if isinstance(leaf, torch.device):
        return torch.device("meta")
    return leaf.to("meta") if isinstance(leaf, Tensor) else leaf


@quiet()
def _call_quietly(operator: Operator, args: tuple[Any, ...], kwargs: dict[str, Any]) -> object:
    results: list[object] = []

    def call(_: float) -> float:
        results.append(overload_for(operator, args)(*args, **kwargs))
        return 0.0

    # Warnings of C++ are shown when the outermost function of C++ returns that a user has called. This is one, too.
    torch.zeros(1, device="cpu").apply_(call)
    return results[0]


def refuse_if_the_cpu_does(operator: Operator, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Raise the CPU's error for a call, except where it lacks a kernel that accelerators have."""
    refusal = refusal_of_the_cpu(operator, args, kwargs)
    if refusal is None or (isinstance(refusal, NotImplementedError) and not is_of_a_missing_kernel(refusal)):
        return
    if not is_of_a_missing_kernel(refusal) or is_refused_everywhere(operator, args, kwargs):
        raise refusal


def refuse_but_for_zeros(operator: Operator, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Do as `refuse_if_the_cpu_does`, but for what the CPU says of the zeros it was asked with: `300 % bytes`."""
    try:
        refuse_if_the_cpu_does(operator, args, kwargs)
    except Exception as refusal:  # whatever the CPU raises is the answer
        if str(refusal) != "ZeroDivisionError":
            raise


def is_refused_everywhere(operator: Operator, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Return whether accelerators, too, lack a kernel for the dtypes of a call that the CPU has none for."""
    name = schema_of(operator.overload).name.removeprefix("aten::").rstrip("_")
    has = _OF_ACCELERATORS.get(name, ())
    tensors = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    return not any(tensor.dtype in has for tensor in tensors)


def is_of_a_missing_kernel(refusal: Exception) -> bool:
    """Return whether the CPU lacks a kernel for these dtypes. From PyTorch 2.15 on its class alone does not show it."""
    said = str(refusal)
    if "doesn't handle types other than" in said:  # a RuntimeError of `lstsq`
        return True
    return isinstance(refusal, NotImplementedError) and ("not implemented for" in said or "Could not run" in said)


def is_of_zeros(refusal: Exception) -> bool:
    """Return whether the CPU refuses the zeros it was asked with, and not their dtypes."""
    if isinstance(refusal, torch.linalg.LinAlgError):  # type: ignore[attr-defined]
        return True
    # A mask of zeros shows no elements to put values in.
    return "ZeroDivision" in str(refusal) or str(refusal).startswith("shape mismatch: value tensor")


def _few(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[int, int]:
    """Return a small number for each size of an operand, in the same order."""
    tensors = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    sizes = sorted({size for tensor in tensors for size in tensor.shape} | {0, 1, 2, 3, 4})
    return dict(zip(sizes, range(len(sizes)), strict=True))


class _Twins:
    """CPU tensors like those on the device, on storages of zeros; two that share memory there share it here."""

    def __init__(self, instead: dict[int, torch.dtype], few: dict[int, int]) -> None:
        self.bytes = 0
        self._instead = instead
        self._few = few
        self._storages: dict[int, torch.UntypedStorage] = {}
        self._tensors: dict[int, Tensor] = {}

    def of(self, leaf: Any) -> object:
        """Return the twin of a tensor; other arguments as the CPU takes them."""
        if isinstance(leaf, torch.device):
            return torch.device("cpu")
        if type(leaf) is torch.Generator:  # Dynamo, which may trace this, knows no `isinstance` of it
            return torch.Generator()  # the CPU refuses one of the device, and would take numbers of its own
        if not isinstance(leaf, Tensor):
            return leaf
        if id(leaf) not in self._tensors:
            self._tensors[id(leaf)] = self._twin(leaf)
        return self._tensors[id(leaf)]

    def _twin(self, tensor: Tensor) -> Tensor:
        dtype = self._instead.get(id(tensor), tensor.dtype)
        if self._few:
            return torch.zeros([self._few[size] for size in tensor.shape], dtype=dtype)
        if tensor.device.type == "xla":
            return self._like(tensor).to(dtype)
        self.bytes += tensor.nbytes
        return tensor.detach().clone().to(dtype) if self.bytes <= _TOO_LARGE else tensor.new_empty(0)

    def _like(self, tensor: Tensor) -> Tensor:
        value = value_of(tensor)
        spec = value.spec
        key = address_of(tensor.untyped_storage())
        storage = self._storages.get(key)
        if storage is None:
            size = spec.numel * spec.dtype.itemsize
            self.bytes += size
            storage = torch.zeros(size if self.bytes <= _TOO_LARGE else 0, dtype=torch.uint8).untyped_storage()
            contents = contents_of(value)
            if contents is not None:
                known = torch.empty_strided(spec.size, spec.stride, dtype=spec.dtype).copy_(from_numpy(contents))
                storage.copy_(known.untyped_storage())
            self._storages[key] = storage
        self.bytes += max(0, tensor.numel() - spec.numel) * spec.dtype.itemsize  # an expanded one has more elements
        geometry = _geometry(tensor)
        twin = torch.empty(0, dtype=tensor.dtype)
        if self.bytes > _TOO_LARGE:
            return twin  # given a storage without memory, it would allocate its own
        twin.set_(storage, geometry.offset, geometry.size, geometry.stride)  # type: ignore[call-overload]
        if tensor.dtype.is_complex and tensor.is_conj():
            twin = torch._conj(twin)
        return torch._neg_view(twin) if tensor.is_neg() else twin


def warn_of_complex32(spec: Spec) -> None:
    """Let PyTorch warn that complex32 is experimental, as often as it does when it makes such memory."""
    if spec.dtype is torch.complex32:
        torch.empty(0, dtype=torch.complex32)
