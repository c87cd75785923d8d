"""The checked operators: every operator of PyTorch's database with every dtype of its CPU kernels."""

import functools
import re
import warnings
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

DTYPES = {
    "float32": torch.float32,
    "float64": torch.float64,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "int64": torch.int64,
    "int32": torch.int32,
    "uint8": torch.uint8,
    "bool": torch.bool,
    "complex64": torch.complex64,
}

# Their results are uninitialised memory.
UNINITIALISED = {
    "empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided", "resize_", "resize_as_",
}  # fmt: skip


# PyTorch compiles these for CUDA alone: there is no CPU to compare with.
OF_CUDA = "jiterator_"


@dataclass(frozen=True, order=True)
class Entry:
    """One operator of the database with one dtype."""

    operator: str
    dtype: str

    def __str__(self) -> str:
        return f"{self.operator} {self.dtype}"


@functools.cache
def database() -> dict[str, Any]:
    """The operators by full name: name and variant. Python references, which PyTorch alone tests, are not in it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torch.testing._internal import common_methods_invocations as invocations  # takes seconds

    # It calls random operators with a seed of its own, and they look as if they were not random.
    invocations.wrapper_set_seed = lambda op, *args, **kwargs: op(*args, **kwargs)
    kinds = ("unary", "binary", "pointwise", "reduce", "other")
    foreach = [op for kind in kinds for op in getattr(invocations, f"foreach_{kind}_op_db")]
    return {op.formatted_name: op for op in (*invocations.op_db, *foreach)}


@functools.cache
def pointwise() -> frozenset[str]:
    """The names of the operators each of whose results comes of one element of each operand."""
    from torch.testing._internal.opinfo.core import BinaryUfuncInfo, ForeachFuncInfo, UnaryUfuncInfo  # takes seconds

    kinds = (BinaryUfuncInfo, UnaryUfuncInfo, ForeachFuncInfo)
    return frozenset(op.name for op in database().values() if isinstance(op, kinds)) - {"_foreach_norm"}


def slice_of(every: int) -> list[Entry]:
    """One entry of `every`, always the same ones and spread over all: for a check that must be quick."""
    return [entry for entry in entries(list(DTYPES)) if zlib.crc32(str(entry).encode()) % every == 0]


def entries(dtypes: list[str], pattern: str = "") -> Iterator[Entry]:
    """Those whose operator's name matches `pattern` somewhere, dtype by dtype."""
    wanted = re.compile(pattern)
    for dtype in dtypes:
        for name, op in database().items():
            if wanted.search(name) and not name.startswith(OF_CUDA) and DTYPES[dtype] in op.supported_dtypes("cpu"):
                yield Entry(name, dtype)
