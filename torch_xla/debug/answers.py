"""Answers to "why is it slow?": what was compiled and why, what waiting cost, where the host spent its time."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .._engine import diagnostics
from .._engine.diagnostics import Cost as Cost
from .._engine.diagnostics import Difference as Difference
from .._engine.diagnostics import Explanation as Explanation
from .._engine.diagnostics import HostProfile as HostProfile
from .._engine.diagnostics import Part as Part
from .._engine.errors import CompilationRefused as CompilationRefused
from .._engine.errors import TransferRefused as TransferRefused


def compilations() -> list[Explanation]:
    """Return why each of the last programs (512 at most) was compiled, oldest first.

    Each has the `differences` from the nearest program before it, the user's `line` where the program does otherwise,
    the line it was `started_by`, its `seconds` and the number of its `operations`.

    >>> import torch, torch_xla
    >>> def double(numbers):
    ...     return (numbers * 2).sum().item()
    >>> double(torch.ones(37, device="xla")), double(torch.ones(41, device="xla"))
    (74.0, 82.0)
    >>> torch_xla.debug.compilations()[-1].operations
    3
    """
    return diagnostics.explaining_recompiles()


def explain_recompiles() -> str:
    """Return what was compiled since the start and why, as text: equal reasons share a line, with count and seconds.

    ```
    3 compilations, 1.31 s
      compiled (train.py:31): the first program, of 211 operations  [0.52 s]
      recompiled (train.py:42): dim 1 of input 'tokens' 37 → 41  [0.40 s]
      recompiled (train.py:42): constant 0.001 → 0.0009 in _foreach_add; from now on it is an argument  [0.39 s]
    ```

    An input has the name of the variable or parameter that held it. The logger "torch_xla.recompiles" reports a reason
    when it comes for the 1st, 2nd, 4th, 8th … time, from the 4th on as a warning with advice.

    >>> import torch_xla
    >>> text = torch_xla.debug.explain_recompiles()
    """
    return diagnostics.recompile_report()


@contextmanager
def no_recompile() -> Iterator[None]:
    """Forbid compilation within a `with` block: for the steps after the first ones.

    Raises `torch_xla.debug.CompilationRefused` (a `RuntimeError`) where a program would be compiled, with what differs
    from the nearest program before it. It is raised before the program runs: what was recorded stays recorded, and all
    tensors can be used afterwards. A program that would be read from the cache on disk counts too. Other threads are
    held to it as well.

    >>> import torch, torch_xla
    >>> x = torch.ones(3, device="xla")
    >>> with torch_xla.debug.no_recompile():
    ...     (x.sin() - 5).tolist()
    Traceback (most recent call last):
    ...
    torch_xla._engine.errors.CompilationRefused: no_recompile() refuses to compile a program of 3 operations for ...
    """
    with diagnostics.refusing_recompiles():
        yield


def sync_costs() -> list[Cost]:
    """Return the cost of each line of the program that made the host wait for the device, the most expensive first.

    A line waits by looking at a value (`print`, `.item()`, `.cpu()`, `if tensor:`, `nonzero()`) or by asking for it
    (`sync(wait=True)`). A cost has the `line`, the number of values read (`reads`), how often recorded operations had
    to run first (`forced`), the `waits`, the `seconds` of the host and the part of them spent `compiling`.

    >>> import torch, torch_xla
    >>> torch_xla.debug.clear_history()
    >>> torch.ones(3, device="xla").sum().item()
    3.0
    >>> cost = torch_xla.debug.sync_costs()[0]
    >>> cost.reads, cost.forced
    (1, 1)
    """
    return diagnostics.wait_costs_so_far()


def sync_tax() -> str:
    """Return `sync_costs()` as a table.

    ```
    4 values brought to the host, 31.0 ms of the host in all
              ms   reads  forced  waits  compiling  line
            30.2       3       3      0       18.1  train.py:57 in train: if torch.equal(mask, previous):
             0.8       1       0      0        0.0  train.py:60 in train: print(loss)
    ```

    >>> import torch_xla
    >>> text = torch_xla.debug.sync_tax()
    """
    return diagnostics.wait_report()


@contextmanager
def no_transfer(to_device: bool = False) -> Iterator[None]:
    """Forbid reads by the host, and computations for them, within a `with` block: for the body of a step.

    With `to_device=True`, none may go to the device either. Raises `torch_xla.debug.TransferRefused` (a `RuntimeError`)
    at the line that would wait, before it does; all tensors stay usable. Operators that run on the CPU count too. Steps
    may end in the block: `sync()` sends values nowhere. Other threads are held to it too. A truth value that depends on
    no memory and no draw may be asked for: it is known to the host once it was computed.

    >>> import torch, torch_xla
    >>> loss = torch.rand(3, device="xla").sum() + 2
    >>> with torch_xla.debug.no_transfer():
    ...     if loss > 2:
    ...         print("large")
    Traceback (most recent call last):
    ...
    torch_xla._engine.errors.TransferRefused: no_transfer() refuses to bring a value of 1.00B to the host for ...
    """
    with diagnostics.refusing_waits(True, to_device):
        yield


@contextmanager
def host_profile() -> Iterator[HostProfile]:
    """Profile the host's time in a block: recording by module, starting and compiling programs, waiting, uploading.

    At the end of the block `print(profile)` shows all of it per step, and how long the device was busy and idle. If it
    idles while the host records, the host is slow: the table shows in which module. `profile.program` is the
    tree of parts, each with its `seconds`, its `operations` and its `calls`. It watches the thread that it is used in.
    A small program on a CPU runs while it is started, so there its time is that of starting.

    >>> import torch, torch_xla
    >>> model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU()).to("xla")
    >>> with torch_xla.debug.host_profile() as profile:
    ...     output = model(torch.ones(2, 4, device="xla"))
    ...     torch_xla.sync()
    >>> [part.name for part in profile.program.within()]
    ['outside of modules', 'Sequential', '0 (Linear)', '1 (ReLU)']
    """
    with diagnostics.profiling_host_time() as profile:
        yield profile


def report(path: str | Path | None = None) -> str:
    """Return all answers in one text; if a `path` is given they are written there too.

    It has versions, devices and settings; the steps and what their time went to; every compilation with its reason;
    the lines that waited; operators on the CPU; the memory of the living tensors by the line that made them; the
    metrics. A path that ends in `.html` gets a page with pictures, which needs no other file and opens in any browser:
    made to be attached to a bug report. It shows names of files and lines of your program, and variables of the
    environment that begin with XLA_, PT_XLA_, PJRT_, JAX_, TPU_ or LIBTPU_.

    >>> import torch_xla
    >>> print(torch_xla.debug.report().splitlines()[0])
    torch_xla report
    """
    found = diagnostics.collect_report()
    text = diagnostics.report_as_text(found)
    if path is not None:
        content = diagnostics.report_as_page(found) if str(path).endswith((".html", ".htm")) else text
        Path(path).write_text(content, encoding="utf-8")
    return text


def keep_history(yes: bool = True) -> None:
    """Turn the history on or off. It is on from the start unless `XLA_HISTORY=0`.

    The history takes bounded memory, and a microsecond or two for each step and each value that is read.

    >>> import torch_xla
    >>> torch_xla.debug.keep_history(True)
    """
    diagnostics.keep_history(yes)


def clear_history() -> None:
    """Forget the past: compilations, costs, fallbacks, steps. The counters of `torch_xla.debug.metrics` stay.

    >>> import torch_xla
    >>> torch_xla.debug.clear_history()
    >>> torch_xla.debug.compilations()
    []
    """
    diagnostics.clear_history()
