"""The accelerator that Lightning's examples have in common."""

import torch
from lightning.pytorch.accelerators import CPUAccelerator


class XLAHost(CPUAccelerator):
    """The host beside the xla devices: Lightning's own accelerator for XLA is there for TPUs alone."""

    def setup_device(self, device: torch.device) -> None:
        """Does nothing: the device of `CPUAccelerator` may be the CPU alone."""
