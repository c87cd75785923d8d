"""Exporters of the numbers: Prometheus, OpenTelemetry, TensorBoard and JSON lines, each by the library of the field.

The libraries are optional, and imported where an exporter starts. An exporter reads the numbers when it is asked for
them or in a thread of its own, never in a step.
"""

import importlib
import json
import os
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from ...metrics import accounts
from ...processes import identity
from . import goodput, readings
from .readings import Reading

_PROMETHEUS_UNITS = {"s": "_seconds", "By": "_bytes"}


class Exporter:
    """An exporter that runs until `close()`, or the end of its `with` block."""

    def __init__(self, close: Callable[[], None], address: str = "", port: int = 0) -> None:
        self._close: Callable[[], None] | None = close
        self.address, self.port = address, port

    def close(self) -> None:
        """Write what is left, and end."""
        close, self._close = self._close, None
        if close is not None:
            close()

    def __enter__(self) -> "Exporter":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _library(name: str, extra: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ImportError(f"This exporter needs {name}: pip install 'torch_xla[{extra}]' ({error})") from error


def _of_period(every: float) -> float:
    if every <= 0:
        raise ValueError(f"every is {every}; it must be a number of seconds above 0")
    return every


def prometheus_name(reading: Reading) -> str:
    """Return the name by Prometheus' conventions: a prefix, base units, and `_total` for what only grows.

    >>> from torch_xla._engine.diagnostics.fleet.readings import Reading
    >>> prometheus_name(Reading("transfer", "", "By", True, {}, 0))
    'torch_xla_transfer_bytes_total'
    """
    name = "torch_xla_" + reading.name.replace(".", "_") + _PROMETHEUS_UNITS.get(reading.unit, "")
    return name + "_total" if reading.is_total else name


class _Collector:
    def __init__(self, library: Any) -> None:
        self._core = library

    def collect(self) -> Iterable[Any]:
        families: dict[str, Any] = {}
        own = readings.labels_of_process()
        for each in readings.read():
            labels = own | each.labels
            family = families.get(each.name)
            if family is None:
                kind = self._core.CounterMetricFamily if each.is_total else self._core.GaugeMetricFamily
                family = families[each.name] = kind(prometheus_name(each), each.help, labels=list(labels))
            family.add_metric(list(labels.values()), each.value)
        return families.values()


def serve_prometheus(port: int, address: str) -> Exporter:
    """Serve the numbers at `http://address:port/metrics`."""
    library = _library("prometheus_client", "prometheus")
    core = importlib.import_module("prometheus_client.core")
    registry = library.CollectorRegistry()
    registry.register(_Collector(core))
    chosen = port + identity.place().local_index if port else 0
    try:
        server, thread = library.start_http_server(chosen, address, registry)
    except OSError as error:
        raise OSError(error.errno, f"no Prometheus endpoint at {address}:{chosen}: {error.strerror}") from error

    def close() -> None:
        server.shutdown()
        server.server_close()
        thread.join()

    return Exporter(close, address, server.server_address[1])


def send_opentelemetry(endpoint: str | None, every: float, provider: Any) -> Exporter:
    """Register the numbers as observable instruments, and send them every `every` seconds to an OTLP receiver."""
    api = _library("opentelemetry.metrics", "opentelemetry")
    own = {f"torch_xla.{name}": value for name, value in readings.labels_of_process().items()}
    closes = None
    if provider is None:
        provider = _provider(endpoint, _of_period(every))
        closes = provider.shutdown
    elif endpoint is not None:
        raise ValueError("send_opentelemetry() takes an endpoint or a provider, not both: a provider has its exporters")
    meter = provider.get_meter("torch_xla")
    is_open = [True]

    def observe(name: str) -> Callable[[Any], Iterable[Any]]:
        def values(_: Any) -> Iterable[Any]:
            return [
                api.Observation(each.value, own | {f"torch_xla.{key}": label for key, label in each.labels.items()})
                for each in readings.read()
                if each.name == name and is_open[0]
            ]

        return values

    # A device may not be there yet, so the instruments of its memory are named here.
    known = {each.name: each for each in [*_memory(), *readings.read()]}
    for name, each in known.items():
        make = meter.create_observable_counter if each.is_total else meter.create_observable_gauge
        make(f"torch_xla.{name}", callbacks=[observe(name)], unit=each.unit, description=each.help)

    def close() -> None:
        if closes is not None:
            closes()
        is_open[0] = False

    return Exporter(close)


def _memory() -> list[Reading]:
    return [
        Reading(f"memory.{name}", f"Memory of the device: {name}.", "By", False, {}, 0) for name in ("used", "limit")
    ]


def _provider(endpoint: str | None, every: float) -> Any:
    sdk = _library("opentelemetry.sdk.metrics", "opentelemetry")
    export = _library("opentelemetry.sdk.metrics.export", "opentelemetry")
    otlp = _library("opentelemetry.exporter.otlp.proto.http.metric_exporter", "opentelemetry")
    resources = _library("opentelemetry.sdk.resources", "opentelemetry")
    about = {"service.instance.id": str(identity.process_index()), "process.pid": os.getpid()}
    # The library reads OTEL_SERVICE_NAME, OTEL_RESOURCE_ATTRIBUTES and OTEL_EXPORTER_OTLP_ENDPOINT.
    reader = export.PeriodicExportingMetricReader(otlp.OTLPMetricExporter(endpoint), export_interval_millis=1e3 * every)
    return sdk.MeterProvider([reader], resources.Resource.create(about))


def write_tensorboard(folder: str, every: float) -> Exporter:
    """Write scalars for TensorBoard into `folder`, in a folder for each process."""
    _of_period(every)
    library = _library("torch.utils.tensorboard", "tensorboard")
    writer = library.SummaryWriter(str(Path(folder) / f"rank_{identity.process_index()}"))

    def write() -> None:
        found = readings.read()
        step = int(next(each.value for each in found if each.name == "steps"))
        for each in found:
            parts = ["torch_xla", *each.name.split("."), *each.labels.values()]
            writer.add_scalar("/".join(parts), each.value, step)
        writer.flush()

    return _periodic(write, every, writer.close)


def write_json_lines(path: str, every: float) -> Exporter:
    """Append a JSON object a line to the file `path`; `{rank}` in it becomes the number of the process."""
    _of_period(every)
    file = open(path.replace("{rank}", str(identity.process_index())), "a", encoding="utf-8", buffering=1)
    last = [goodput.read()]

    def write() -> None:
        found = readings.read()
        minute = goodput.read()
        steps = (minute - last[0]).step_seconds
        last[0] = minute
        line = {"time": time.time(), **readings.labels_of_process()}
        line |= {"goodput": minute.fraction, "step_seconds": steps}
        line["seconds"] = {name: round(minute.seconds[name], 6) for name in accounts.NAMES}
        for each in found:
            if each.name != "time":
                line["_".join([prometheus_name(each).removeprefix("torch_xla_"), *each.labels.values()])] = each.value
        file.write(json.dumps(line) + "\n")

    return _periodic(write, every, file.close)


def _periodic(write: Callable[[], None], every: float, close: Callable[[], None]) -> Exporter:
    ends = threading.Event()

    def run() -> None:
        while not ends.wait(every):
            try:
                write()
            except Exception:  # a full disk ends no training; the next write may succeed
                goodput.logger.warning("the numbers could not be written", exc_info=True)

    thread = threading.Thread(target=run, name="torch_xla-exporter", daemon=True)
    thread.start()

    def stop() -> None:
        ends.set()
        thread.join()
        write()
        close()

    return Exporter(stop)
