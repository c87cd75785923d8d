"""What a program is, in words that another process would use too: the key of programs kept on disk.

In memory a program is found by the identity of its plans; on disk by a hash of their text, and of everything outside
the program that what XLA makes of it depends on.
"""

import functools
import hashlib
import os
import platform
from dataclasses import fields
from importlib.metadata import version
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import jax
import torch

from .. import config, dtypes
from ..client.target import Target
from ..graph.graph import Graph
from ..graph.plan import Plan
from ..graph.spec import Spec
from . import function, sources

# What stands in the text of an object that has none of its own, and in names that hold in one process alone.
_ADDRESS = " at 0x"

_texts: WeakKeyDictionary[Plan, str] = WeakKeyDictionary()


class Nameless(ValueError):
    """Something in a program has no text that another process would give it, and to it alone."""


def is_named(graph: Graph) -> bool:
    """Whether another process would call all that `graph` does by the same names."""
    try:
        for operation in graph.operations:
            _text(operation.plan)
    except Nameless:
        return False
    return True


def of_program(graph: Graph, donated: tuple[int, ...], promoted: tuple[int, ...], numbers: bytes) -> str:
    """A hash of what a program computes: operations, wiring, sizes, donation, and the numbers baked into it.

    `promoted` are the numbers that are arguments; `numbers` are all of them, packed, those zeroed. Raises `Nameless`
    for a graph that is not named.
    """
    words: list[str] = []
    for element in graph.code:
        if element.__class__ is Plan:
            words.append(_text(element))
        else:
            words.append(repr(element))
    words.append(f"{donated} {promoted}")
    digest = hashlib.sha256("\n".join(words).encode())
    digest.update(numbers)
    return digest.hexdigest()[:32]


def _text(plan: Plan) -> str:
    text = _texts.get(plan)
    if text is None:
        text = _texts[plan] = _plan(plan)
    return text


def _plan(plan: Plan) -> str:
    # A decomposition has a serial number of this process beside its operator; sizes and arguments tell it in full.
    op = plan.op[0] if isinstance(plan.op, tuple) else plan.op
    if _ADDRESS in str(op):
        raise Nameless(f"{op} is a name of this process alone")
    parts = [getattr(plan, field.name) for field in fields(plan) if field.name not in ("op", "inside")]
    return " ".join(_words(part) for part in (op, *parts))


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
    if _ADDRESS in text:
        raise Nameless(f"{value!r} has no text that another process would give it")
    return text


def environment(target: Target) -> dict[str, str]:
    """Everything outside a program that an executable depends on, by name."""
    settings: Any = jax.config  # as they are in this thread
    found = {
        "torch": torch.__version__,
        "jax": jax.__version__,
        "jaxlib": version("jaxlib"),
        "rules": sources.digest(),
        "platform": target.platform,
        "device": target.kind,
        "runtime": str(getattr(target.device.client, "platform_version", "")),
        "XLA_FLAGS": config.variable("XLA_FLAGS") or "",
        "LIBTPU_INIT_ARGS": config.variable("LIBTPU_INIT_ARGS") or "",
        "matmul precision": str(settings.jax_default_matmul_precision),
        "dtypes": dtypes.device_mode(),
        "options": repr(function.options_for(target)),
        "devices": f"{len(target.devices)} of {len(target.processes)} processes",
        "mesh": f"{target.mesh.axis_names} {target.mesh.devices.shape}, along {target.axis}" if target.mesh else "",
    }
    if target.is_host:
        found["processor"] = _processor()
        # XLA cuts loops by the number of threads when it compiles for the CPU.
        found["cores"] = str(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count())
    return found


@functools.cache
def _processor() -> str:
    """The instruction set the host compiler may have used."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    chosen = sorted({line for line in lines if line.startswith(("flags", "Features", "model name"))})
    return hashlib.sha256("\n".join(chosen).encode()).hexdigest()[:16]
