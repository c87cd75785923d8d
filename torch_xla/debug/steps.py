"""Examine a step: find its first NaN or bad value, capture it, and compute it again on the CPU."""

import os
from contextlib import AbstractContextManager

from .._engine import diagnostics as _diagnostics
from .._engine.diagnostics import StepComparison as StepComparison
from .._engine.errors import NotFinite as NotFinite


def find_nan(inf: bool = False) -> AbstractContextManager[None]:
    """Trace the first NaN within a `with` block to the operator that makes it and to the line of your program.

    Each program that runs in the block is looked at: at `sync()`, and where a value is read. If one of its results has
    a NaN, it is run again operator by operator, and `NotFinite` (a `RuntimeError`) names the first that makes a NaN
    from operands without one, with what it read; `operator` and `line` of the exception hold both. With `inf=True` an
    inf counts too. The step itself is complete then: its tensors have their values.

    Operations recorded before the block run before it, and operations still recorded at its end run there. Inside, each
    step waits for the device and donates no buffers; outside, nothing is slower.
    `XLA_FIND_NAN=1` does the same for a whole program, `XLA_FIND_NAN=inf` with `inf=True`.

    >>> import torch, torch_xla
    >>> x = torch.tensor([1.0, -1.0], device="xla")
    >>> with torch_xla.debug.find_nan():
    ...     y = (x * 2).log().sum()
    Traceback (most recent call last):
    torch_xla._engine.errors.NotFinite: The first NaN of this step comes from aten::log at ...
      its result f32[2]: 1 of 2 elements are NaN, the first at [1]
      it read f32[2] from aten::mul at ...: from -2 to 2, -2 at [1]
    """
    return _diagnostics.searching_nan(inf)


def check_values() -> AbstractContextManager[None]:
    """Return a `with` block in which values that an operator cannot take raise, as they do on the CPU.

    On an XLA device an index that is out of range reads the nearest element or writes nothing, and an integer divided
    by zero is some number. In the block each operation that has such values (indices, class numbers, probabilities,
    integer divisors, …: docs/troubleshooting.md lists them) also reports on them, on the device. The next wait (a value
    that is read, `sync(wait=True)`, the end of the block) raises what PyTorch raises on the CPU (`IndexError`,
    `RuntimeError`), with the operator, the value, its place and the line of your program. The bad step is complete
    then, with what it computed from the value.

    A function that is replayed is recorded again in the block. `XLA_CHECK_VALUES=1` does the same for a whole program.

    >>> import torch, torch_xla
    >>> table, words = torch.rand(10, 4, device="xla"), torch.tensor([1, 2, 11], device="xla") + 0
    >>> with torch_xla.debug.check_values():
    ...     rows = torch.nn.functional.embedding(words, table)
    Traceback (most recent call last):
    IndexError: embedding at ...: `indices` must be from 0 to 9. It is 11 at [2].
    """
    return _diagnostics.checking_values()


def capture_step(path: str | os.PathLike[str], every_result: bool = True) -> AbstractContextManager[None]:
    """Return a `with` block whose computation is written to the file `path`: the program, its inputs and its results.

    `replay_step(path)`, or `python -m torch_xla.debug.replay FILE` elsewhere, computes it again with PyTorch on the CPU
    and compares. With `every_result`, each operator is also run by itself on the device and its result kept, so that
    the replay can name the first that differs: the file then holds every intermediate tensor. Without, it holds inputs
    and results of the step alone.

    The file is one of `torch.save`, with your data and lines of your program in it; opening it runs no code. If the
    block raises, no file is written.

    >>> import os, tempfile, torch, torch_xla
    >>> path = os.path.join(tempfile.mkdtemp(), "step.pt")
    >>> x = torch.rand(3, 3).to("xla")
    >>> with torch_xla.debug.capture_step(path):
    ...     y = torch.softmax(x @ x, -1)
    >>> torch_xla.debug.replay_step(path).agrees
    True
    """
    return _diagnostics.capturing_step(path, every_result)


def replay_step(path: str | os.PathLike[str], tolerance: float | None = None) -> StepComparison:
    """Compute a captured step again with PyTorch on the CPU and compares it with what the device computed.

    Printed, the result is a report. `first` is the first operator that differs (`None`: none does), with `operator`,
    `line`, `relative`, `place`, `device` and `cpu`; `differences` has all, `output_differences` those of the results of
    the step, `agrees` says that there are none at all. Every operator is given what the device's operator read, so that
    a difference is its own.

    A difference counts beyond `tolerance` times the largest element of a result: by default 1e-5 for float32, 1.6e-2
    for bfloat16, nothing for integers. The results of the step may be ten times as far off.

    Raises `ValueError` for a file that is no captured step, and `FileNotFoundError`.

    >>> import torch_xla
    >>> torch_xla.debug.replay_step("nothing.pt")
    Traceback (most recent call last):
    FileNotFoundError: [Errno 2] No such file or directory: 'nothing.pt'
    """
    return _diagnostics.replay_step(path, tolerance)
