"""Register: `xla` as a backend of PyTorch: its name, hooks, kernels, autocast, and most replacements of PyTorch's
functions.
"""

from .aten_kernels import register_kernels as register_kernels
from .device_hooks import claim_device_name as claim_device_name
from .device_hooks import is_installed as is_installed
from .torch_patches import apply_patches as apply_patches
