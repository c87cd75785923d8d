"""Output of training examples, to the terminal and to TensorBoard, and a decorator for tests."""

import functools
import importlib
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch.multiprocessing

from .._engine import processes
from ..core.collectives import is_master_ordinal
from ..debug import metrics


def mp_test(func: Callable[..., None]) -> Callable[..., None]:
    """Run a test method in a separate process, and fail if that process fails. This is a decorator.

    The process is spawned, so the test's module must be importable.
    """

    @functools.wraps(func)
    def run(self: Any, *args: object, **kwargs: object) -> None:
        context = torch.multiprocessing.get_context("spawn")
        process = context.Process(target=_call, args=(type(self), func.__name__, self._testMethodName, args, kwargs))
        process.start()
        process.join()
        if process.exitcode:
            raise AssertionError(f"{func.__qualname__} failed in its process: exit status {process.exitcode}")

    return run


def _call(kind: type, name: str, method: str, args: tuple[object, ...], kwargs: Mapping[str, object]) -> None:
    getattr(kind, name).__wrapped__(kind(method), *args, **kwargs)


def now(format: str = "%H:%M:%S") -> str:
    """Return the time of day in the format of `time.strftime`."""
    return time.strftime(format)


def get_summary_writer(logdir: str | None) -> Any:
    """Return TensorBoard's `SummaryWriter` for `logdir` in the first process; else, or without a `logdir`, `None`.

    Raises `ImportError` if tensorboard is not installed.
    """
    if not logdir or not is_master_ordinal():
        return None
    try:
        return importlib.import_module("torch.utils.tensorboard").SummaryWriter(logdir)
    except ImportError as error:
        raise ImportError(f"get_summary_writer({logdir!r}) needs TensorBoard: pip install tensorboard") from error


def close_summary_writer(summary_writer: Any) -> None:
    """Write the remaining data and close the writer, if there is one."""
    if summary_writer is not None:
        summary_writer.flush()
        summary_writer.close()


def write_to_summary(
    summary_writer: Any,
    global_step: int | None = None,
    dict_to_write: Mapping[str, float] = {},  # noqa: B006  (read only)
    write_xla_metrics: bool = False,
) -> None:
    """Write the numbers of `dict_to_write`, each under its name. Without a writer, do nothing.

    With `write_xla_metrics`, also write the number of compilations and the operators that ran on the CPU.
    """
    if summary_writer is None:
        return
    for name, value in dict_to_write.items():
        summary_writer.add_scalar(name, value, global_step)
    if write_xla_metrics:
        data = metrics.metric_data("CompileTime")
        summary_writer.add_scalar("CompileTime", data[0] if data else 0, global_step)
        for name in metrics.executed_fallback_ops():
            summary_writer.add_scalar(name, metrics.counter_value(name), global_step)


def print_training_update(
    device: object,
    step: int,
    loss: Any,
    rate: float,
    global_rate: float,
    epoch: int | None = None,
    summary_writer: object = None,
) -> None:
    """Print the progress of training in one line, and write both rates to the writer if there is one.

    >>> from torch_xla.test.test_utils import print_training_update
    >>> print_training_update("xla:0", 10, 0.25, 100.0, 90.0, epoch=1)  # doctest: +ELLIPSIS
    | Training Device=xla:0/0 Epoch=1 Step=10 Loss=0.25000 Rate=100.00 GlobalRate=90.00 Time=...
    """
    value = loss.item() if isinstance(loss, torch.Tensor) else float(loss)
    shown = [f"Device={device}/{processes.replica_index()}"]
    shown += [f"Epoch={epoch}"] if epoch is not None else []
    shown += [f"Step={step}", f"Loss={value:.5f}", f"Rate={rate:.2f}", f"GlobalRate={global_rate:.2f}"]
    print("| Training", *shown, f"Time={now()}", flush=True)
    write_to_summary(summary_writer, step, {"examples/sec": global_rate, "average_loss": value})


def print_test_update(
    device: object, accuracy: float | None, epoch: int | None = None, step: int | None = None
) -> None:
    """Print the result of a test in one line.

    >>> from torch_xla.test.test_utils import print_test_update
    >>> print_test_update("xla:0", 98.5, epoch=2)  # doctest: +ELLIPSIS
    | Test Device=xla:0 Epoch=2 Accuracy=98.50 Time=...
    """
    shown = [f"Device={device}"]
    shown += [f"{name}={value}" for name, value in (("Step", step), ("Epoch", epoch)) if value is not None]
    shown += [f"Accuracy={accuracy:.2f}"] if accuracy is not None else []
    print("| Test", *shown, f"Time={now()}", flush=True)
