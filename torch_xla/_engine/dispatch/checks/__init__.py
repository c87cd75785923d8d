"""Checks of a call's arguments: what PyTorch refuses on the CPU is refused here, in the same words."""
