"""Program that the doctor runs in a process of its own: try PyTorch, JAX, this package and the device in turn.

Each stage prints one line of JSON when it begins and one when it ends, so that a stage that hangs or takes the process
down is known too.
"""

import importlib
import json
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from typing import Any


def say(stage: str, **facts: object) -> None:
    """Print one line for the doctor."""
    print(json.dumps({"stage": stage, **facts}), flush=True)


def attempt(stage: str, look: Callable[[], Mapping[str, object]]) -> None:
    """Try one stage and report its findings, or why it failed."""
    say(stage, state="started")
    try:
        say(stage, state="ended", **look())
    except BaseException as error:  # whatever a package does when it is imported, to end the process included
        lines = traceback.format_exception_only(error)
        say(stage, state="failed", error="".join(lines).strip(), missing=isinstance(error, ModuleNotFoundError))
        sys.exit(0)


def torch() -> dict[str, Any]:
    """Return PyTorch's version, and the owner of its slot for an external backend."""
    module: Any = importlib.import_module("torch")
    return {
        "version": str(module.__version__),
        "cuda": module.version.cuda,
        "privateuse1": module.device("privateuseone").type,
        "file": module.__file__,
    }


def jax() -> dict[str, object]:
    """Return JAX and its compiled part."""
    module: Any = importlib.import_module("jax")
    jaxlib: Any = importlib.import_module("jaxlib")
    return {"version": module.__version__, "jaxlib": jaxlib.__version__, "file": module.__file__}


def torch_xla() -> dict[str, Any]:
    """Return this package."""
    module: Any = importlib.import_module("torch_xla")
    return {"version": module.__version__, "file": module.__file__}


def device() -> dict[str, Any]:
    """Return the devices that start."""
    xla: Any = importlib.import_module("torch_xla")
    memory: Any = importlib.import_module("torch_xla._engine.runtime.device_memory")
    platform: Any = importlib.import_module("torch_xla._engine.runtime.platform")
    found = platform.local_devices()
    return {
        "type": platform.real_name(found[0]).partition(":")[0],
        "names": xla.real_devices(),
        "kind": found[0].device_kind,
        "bytes": memory.usage(found[0]).limit,
    }


def computation() -> dict[str, Any]:
    """Compile and run a product; return how long that took, and where programs are kept."""
    module: Any = importlib.import_module("torch")
    disk: Any = importlib.import_module("torch_xla._engine.compile.disk.cache_folder")
    start = time.perf_counter()
    x = module.arange(4.0).reshape(2, 2).to("xla")
    right = (x @ x).tolist() == [[2.0, 3.0], [6.0, 11.0]]
    return {"right": right, "seconds": time.perf_counter() - start, "kept_in": str(disk.folder() or "")}


if __name__ == "__main__":
    for step in (torch, jax, torch_xla, device, computation):
        attempt(step.__name__, step)
