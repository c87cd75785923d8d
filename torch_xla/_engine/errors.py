"""The exceptions that this package defines.

    RuntimeError
      ExecutionError      a compiled program failed: which step, which of the user's lines
        OutOfMemory       the device has no room for it
      CompilationRefused  a program would be compiled within `torch_xla.debug.no_recompile()`
      TransferRefused     a value would travel within `torch_xla.debug.no_transfer()`
      NotComputed         the elements of a tensor without memory were asked for
      NotFinite           a step computed NaN or inf within `torch_xla.debug.find_nan()`
      PeerError           another process of the program is lost, late, or does something else
    NotImplementedError
      NoLowering          an operator has neither a rule nor a CPU kernel
    ValueError
      MeshError           a mesh, or a partition spec over it, does not fit together

`OutOfMemory` is a `torch.OutOfMemoryError` too. Where PyTorch on the CPU raises, the same type is raised here, by
PyTorch's own checks where they can run.
"""

import torch


class ExecutionError(RuntimeError):
    """A compiled program failed on the device."""


class OutOfMemory(ExecutionError, torch.OutOfMemoryError):
    """The device has no room for a program's values."""


class NotComputed(RuntimeError):
    """The elements of a tensor without memory were asked for.

    A placeholder and a tensor of `torch_xla.debug.plan()` never had any; others gave theirs away.
    """


class NotFinite(RuntimeError):
    """A step computed NaN or inf within `torch_xla.debug.find_nan()`."""


class PeerError(RuntimeError):
    """Another process of the program is lost, late, or does something else than this one."""


class CompilationRefused(RuntimeError):
    """A program would have to be compiled where `torch_xla.debug.no_recompile()` forbids it."""


class TransferRefused(RuntimeError):
    """A value would have to travel where `torch_xla.debug.no_transfer()` forbids it."""


class NoLowering(NotImplementedError):
    """An operator can run neither on the device nor on the CPU."""


class MeshError(ValueError, AssertionError):
    """A mesh, or a partition spec over one, does not fit together. PyTorch/XLA asserts it: its users catch that."""
