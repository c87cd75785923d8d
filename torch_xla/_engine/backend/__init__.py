"""Backend: `xla` as a backend of PyTorch: its name, hooks and guard, the registered kernels, autocast, and
what replaces functions of PyTorch that belong to no other room.

Doors: modules, patches, register.
"""

from .hooks import claim_device_name as claim_device_name
from .hooks import is_installed as is_installed
from .patches import apply_patches as apply_patches
from .register import register_kernels as register_kernels
