"""What the backend of `torch.compile` borrows of Dynamo and AOTAutograd. Importing this imports both."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._dynamo import trace_rules
from torch._dynamo.backends import registry
from torch._dynamo.backends.common import aot_autograd as aot_autograd
from torch._functorch.aot_autograd import aot_export_joint_simple as aot_export_joint_simple
from torch._functorch.aot_autograd import aot_function as aot_function
from torch._functorch.aot_autograd import aot_module_simplified as aot_module_simplified
from torch._functorch.partitioners import default_partition as default_partition
from torch._functorch.partitioners import (
    min_cut_rematerialization_partition as min_cut_rematerialization_partition,
)
from torch._subclasses.fake_tensor import FakeTensor as FakeTensor
from torch._subclasses.fake_tensor import FakeTensorMode as FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv as ShapeEnv


def described(tensors: Sequence[torch.Tensor]) -> list[Any]:
    """Tensors without memory, as these are: of fixed sizes, although what is traced with them may make new ones."""
    # Each of its own, although some may share memory: a pure function cannot tell.
    with FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=True):
        return [torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device=t.device) for t in tensors]


def register_backend(backend: Callable[..., Any], name: str) -> None:
    """Makes `backend` what `torch.compile(backend=name)` means, also where PyTorch has registered the name already."""
    registry.list_backends()  # PyTorch registers its own first
    registry._COMPILER_FNS.pop(name, None)
    registry.register_backend(backend, name=name)


def never_trace(package: str) -> None:
    """Lets Dynamo run the functions of `package` as they are."""
    trace_rules.add(package)
