"""What the backend of `torch.compile` borrows of Dynamo and AOTAutograd. Importing this imports both."""

from collections.abc import Callable
from typing import Any

from torch._dynamo import trace_rules
from torch._dynamo.backends import registry
from torch._dynamo.backends.common import aot_autograd as aot_autograd
from torch._functorch.aot_autograd import aot_function as aot_function
from torch._functorch.aot_autograd import aot_module_simplified as aot_module_simplified


def register_backend(backend: Callable[..., Any], name: str) -> None:
    """Makes `backend` what `torch.compile(backend=name)` means, also where PyTorch has registered the name already."""
    registry.list_backends()  # PyTorch registers its own first
    registry._COMPILER_FNS.pop(name, None)
    registry.register_backend(backend, name=name)


def never_trace(package: str) -> None:
    """Lets Dynamo run the functions of `package` as they are."""
    trace_rules.add(package)
