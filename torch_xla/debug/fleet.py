"""Watch a job: where its time goes, and the same numbers for Prometheus, OpenTelemetry, TensorBoard or a file."""

from contextlib import AbstractContextManager

from .._engine import diagnostics as _diagnostics
from .._engine import metrics as _metrics
from .._engine.diagnostics import Exporter as Exporter
from .._engine.diagnostics import Goodput as Goodput


def goodput() -> Goodput:
    """Return where the time of this process went since the import of `torch_xla`.

    Each second is in one account of `seconds`: `compile`, `input` (waiting for a batch of `MpDeviceLoader`), `step`,
    `communication` (the host waits for other processes), `checkpoint`, `recovery` (a process that was started again,
    until its first step has ended; restoring a checkpoint), `idle`. `fraction` is the share of `step`. Time that no
    account names is `step` if operations were recorded or the device worked in that second, and else `idle`; name other
    work with `account`. A process that `torchrun` started again counts from the last second of the process before it.
    The logger "torch_xla.goodput" writes a line a minute, at level INFO.

    >>> import torch_xla
    >>> before = torch_xla.debug.goodput()
    >>> with torch_xla.debug.account("input"):
    ...     batch = list(range(10))
    >>> spent = torch_xla.debug.goodput() - before
    >>> abs(spent.total - sum(spent.seconds.values())) < 1e-6
    True
    """
    return _diagnostics.read_goodput()


def account(name: str) -> AbstractContextManager[None]:
    """Return a `with` block whose time is in the account `name`: one of those of `goodput`.

    Blocks of the main thread are counted. In nested blocks the time is in the account of the inner one.

    >>> import torch_xla
    >>> with torch_xla.debug.account("checkpoint"):
    ...     pass
    """
    return _metrics.seconds_spent(name)


def serve_prometheus(port: int = 9464, address: str = "127.0.0.1") -> Exporter:
    """Serve the numbers of this process to Prometheus, at `http://address:port/metrics`, until `close()`.

    Of several processes of a machine each takes `port` plus its local rank; port 0 takes a free one, and `port` of the
    result has it. Other machines reach the endpoint only if `address` is one of this machine's, such as "0.0.0.0": it
    asks for no password. Needs `prometheus_client`.
    """
    return _diagnostics.serve_prometheus(port, address)


def send_opentelemetry(endpoint: str | None = None, every: float = 60.0, provider: object = None) -> Exporter:
    """Send the numbers of this process to an OTLP receiver every `every` seconds, until `close()`.

    `endpoint` is a URL such as `http://collector:4318/v1/metrics`; without it the library's environment variables
    (`OTEL_EXPORTER_OTLP_ENDPOINT`) count. With a `provider` (a `MeterProvider` of yours), the instruments are made
    there. Needs `opentelemetry-sdk` and `opentelemetry-exporter-otlp-proto-http`.
    """
    return _diagnostics.send_opentelemetry(endpoint, every, provider)


def write_tensorboard(folder: str, every: float = 60.0) -> Exporter:
    """Write the numbers of this process as scalars for TensorBoard every `every` seconds, until `close()`.

    Each process writes into a folder of its own below `folder`. Needs `tensorboard`.
    """
    return _diagnostics.write_tensorboard(folder, every)


def write_json_lines(path: str, every: float = 60.0) -> Exporter:
    """Append the numbers of this process to the file `path` every `every` seconds, a JSON object a line.

    Write `{rank}` in `path` where several processes write, so that each has a file of its own.

    >>> import json, pathlib, tempfile, torch_xla
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> torch_xla.debug.write_json_lines(f"{folder}/job.{{rank}}.jsonl").close()
    >>> sorted(json.loads((folder / "job.0.jsonl").read_text())["seconds"])
    ['checkpoint', 'communication', 'compile', 'idle', 'input', 'recovery', 'step']
    """
    return _diagnostics.write_json_lines(path, every)


def dump_flight_recorder(prefix: str | None = None) -> str:
    """Write the last 1,000 collectives of this process to the file `prefix` + its rank, and return the path.

    PyTorch's analyser compares the files of all processes: `torchfrtrace FOLDER` says which process did not come to
    which collective, or came with other sizes. Without `prefix` it is that of `TORCH_FR_DUMP_TEMP_FILE`, or a folder of
    yours in the temporary folder. The same file is written by each process when one declares a fault (a timeout, other
    collectives, the end of a process), and at SIGQUIT.

    >>> import pathlib, tempfile, torch_xla
    >>> path = torch_xla.debug.dump_flight_recorder(f"{tempfile.mkdtemp()}/rank_")
    >>> pathlib.Path(path).name
    'rank_0'
    """
    return _diagnostics.dump_flight_record(prefix)
