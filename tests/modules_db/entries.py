"""The checked modules: every module class of PyTorch's database, with the floating-point dtypes of its CPU kernels."""

import functools
import re
from collections.abc import Iterator
from typing import Any

from tests.opinfo.entries import Entry

DTYPES = ("float32", "float64", "bfloat16", "float16")


@functools.cache
def database() -> dict[str, Any]:
    """The module classes by the name PyTorch's tests give them, such as "nn.Linear"."""
    from torch.testing._internal.common_modules import module_db  # takes seconds, and needs no device

    return {info.name: info for info in module_db}


def entries(dtypes: list[str], pattern: str = "") -> Iterator[Entry]:
    """Those whose name matches `pattern` somewhere, dtype by dtype."""
    wanted = re.compile(pattern)
    for dtype in dtypes:
        for name in database():
            if wanted.search(name):
                yield Entry(name, dtype)
