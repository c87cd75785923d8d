"""What a program is, in words that another process would use too: the key of programs kept on disk.

In memory a program is found by the identity of its plans; on disk by a hash of their text, and of everything outside
the program that what XLA makes of it depends on.
"""

import functools
import hashlib
import os
import platform
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
import torch

from .. import config, dtypes
from ..graph.graph import Graph
from ..graph.plan import Plan
from ..graph.spec import Spec

_PACKAGE = Path(__file__).parents[2]
# Rules and what they stand on: a change there may change what a program computes.
_SOURCES = (
    "_engine/lowering", "_engine/compile", "_engine/graph", "_engine/view", "_engine/dynamo", "_engine/interop",
    "_engine/dtypes.py", "_engine/precision.py",
)  # fmt: skip

_texts: dict[Plan, str] = {}


def of_program(graph: Graph, donated: tuple[int, ...], promoted: tuple[int, ...], numbers: bytes) -> str:
    """A hash of what a program computes: operations, wiring, sizes, donation, and the numbers baked into it.

    `promoted` are the numbers that are arguments; `numbers` are all of them, packed, those zeroed.
    """
    words: list[str] = []
    for element in graph.code:
        if element.__class__ is Plan:
            text = _texts.get(element)
            if text is None:
                text = _texts[element] = _plan(element)
            words.append(text)
        else:
            words.append(repr(element))
    words.append(f"{donated} {promoted}")
    digest = hashlib.sha256("\n".join(words).encode())
    digest.update(numbers)
    return digest.hexdigest()[:32]


def _plan(plan: Plan) -> str:
    # A decomposition has a serial number of this process beside its operator; sizes and arguments tell it in full.
    op = plan.op[0] if isinstance(plan.op, tuple) else plan.op
    parts = (op, plan.arguments, plan.operands, plan.numbers, plan.outputs, plan.structure, plan.compute_dtype)
    return " ".join(_words(part) for part in parts)


def _words(value: Any) -> str:
    if isinstance(value, list | tuple) and not hasattr(value, "_fields"):
        return f"[{','.join(map(_words, value))}]"
    if isinstance(value, dict):
        return f"{{{','.join(f'{k}:{_words(v)}' for k, v in value.items())}}}"
    if isinstance(value, type):
        return value.__name__
    if isinstance(value, str | int | float | complex | Spec | torch.dtype | torch.Size) or value is None:
        return repr(value)
    text = str(value)
    if " at 0x" in text:
        raise ValueError(f"{value!r} has no text that another process would give it")
    return text


def environment(device: jax.Device) -> dict[str, str]:
    """Everything outside a program that an executable depends on, by name."""
    found = {
        "torch": torch.__version__,
        "jax": jax.__version__,
        "jaxlib": version("jaxlib"),
        "rules": _source_hash(),
        "platform": device.platform,
        "device": device.device_kind,
        "runtime": str(getattr(device.client, "platform_version", "")),
        "XLA_FLAGS": config.variable("XLA_FLAGS") or "",
        "LIBTPU_INIT_ARGS": config.variable("LIBTPU_INIT_ARGS") or "",
        "matmul precision": str(jax.config.values.get("jax_default_matmul_precision")),
        "dtypes": dtypes.device_mode(),
    }
    if device.platform == "cpu":
        found["processor"] = _processor()
        # XLA cuts loops by the number of threads when it compiles for the CPU.
        found["cores"] = str(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count())
    return found


@functools.cache
def _source_hash() -> str:
    digest = hashlib.sha256()
    for name in _SOURCES:
        place = _PACKAGE / name
        for path in sorted(place.rglob("*.py")) if place.is_dir() else [place]:
            digest.update(path.name.encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


@functools.cache
def _processor() -> str:
    """The instruction set the host compiler may have used."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    chosen = sorted({line for line in lines if line.startswith(("flags", "Features", "model name"))})
    return hashlib.sha256("\n".join(chosen).encode()).hexdigest()[:16]
