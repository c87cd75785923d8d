"""Dispatch: the door to PyTorch. Its dispatcher enters here with tensors and leaves with tensors."""

from .device import claim_device_name as claim_device_name
from .patches import apply_patches as apply_patches
from .register import register_kernels as register_kernels
