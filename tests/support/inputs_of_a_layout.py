"""The inputs of a small program, and what each is to a layout: three parameters, a batch, and what stays whole."""

import torch

from torch_xla._engine.ir.graph import Graph
from torch_xla._engine.ir.value_spec import contiguous_stride, spec_of
from torch_xla._engine.planning.sharding_search.input_roles import Role, RoleKind

SIZES = ((8, 8), (8, 8), (8, 8), (4, 16), ())
GRAPH = Graph(tuple(spec_of(size, contiguous_stride(size), torch.float32) for size in SIZES), (), ())
ROLES = [
    Role(RoleKind.PARAMETER, "layers.0.weight", 0),
    Role(RoleKind.PARAMETER, "layers.1.weight", 1),
    Role(RoleKind.FOLLOWER, "", 1),
    Role(RoleKind.BATCH),
    Role(RoleKind.WHOLE),
]
