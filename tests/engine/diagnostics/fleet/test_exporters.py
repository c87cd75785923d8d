"""Each exporter is read by the software that it is for."""

import importlib
import json
import re
import shutil
import subprocess
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
import torch

import torch_xla
from torch_xla._engine.diagnostics.fleet import exporters, readings

ROOT = Path(__file__).parents[4]
DASHBOARD = json.loads((ROOT / "docs" / "dashboards" / "grafana.json").read_text())
QUERIES = [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]


@pytest.fixture(autouse=True)
def device_in_use() -> None:
    (torch.ones(3, device="xla") + 1).tolist()
    torch_xla.sync()


def get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=10) as answer:
        return str(answer.read().decode())


def names() -> set[str]:
    return {exporters.prometheus_name(each) for each in readings.read()}


def test_names_follow_the_conventions_of_prometheus() -> None:
    for each in readings.read():
        name = exporters.prometheus_name(each)
        assert re.fullmatch(r"torch_xla(_[a-z]+)+", name)
        assert name.endswith("_total") == each.is_total
        assert each.unit not in ("s", "By") or re.search(r"_(seconds|bytes)(_total)?$", name)


@pytest.mark.parametrize("query", QUERIES)
def test_the_dashboard_asks_for_what_is_exported(query: str) -> None:
    assert set(re.findall(r"torch_xla_\w+", query)) <= names()


@pytest.mark.parametrize(
    ("library", "begin"),
    [
        ("prometheus_client", lambda: torch_xla.debug.serve_prometheus(0)),
        ("opentelemetry.metrics", lambda: torch_xla.debug.send_opentelemetry("http://localhost:1")),
        ("torch.utils.tensorboard", lambda: torch_xla.debug.write_tensorboard("nowhere")),
    ],
)
def test_a_missing_library_is_named(library: str, begin: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> Any:
        raise ModuleNotFoundError(f"No module named {name!r}")

    monkeypatch.setattr(exporters.importlib, "import_module", absent)
    with pytest.raises(ImportError, match=rf"needs {library}: pip install 'torch_xla\["):
        begin()


def test_prometheus_endpoint_is_parsed_and_binds_to_localhost() -> None:
    parser = pytest.importorskip("prometheus_client.parser")
    with torch_xla.debug.serve_prometheus(port=0) as endpoint:
        assert endpoint.address == "127.0.0.1"
        text = get(f"http://127.0.0.1:{endpoint.port}/metrics")
        promtool = shutil.which("promtool")
        if promtool:
            checked = subprocess.run([promtool, "check", "metrics"], input=text, capture_output=True, text=True)
            assert checked.returncode == 0, checked.stdout + checked.stderr
    families = list(parser.text_string_to_metric_families(text))
    samples = [sample for family in families for sample in family.samples]
    assert {sample.name for sample in samples} == names()
    assert all(sample.labels["rank"] == "0" for sample in samples)
    assert all(family.documentation and family.type in ("counter", "gauge") for family in families)
    with pytest.raises(OSError):
        get(f"http://127.0.0.1:{endpoint.port}/metrics")


def test_a_port_in_use_is_named() -> None:
    pytest.importorskip("prometheus_client")
    with torch_xla.debug.serve_prometheus(port=0) as first, pytest.raises(OSError, match=f"127.0.0.1:{first.port}"):
        torch_xla.debug.serve_prometheus(port=first.port)


def test_a_prometheus_server_answers_each_query_of_the_dashboard(tmp_path: Path) -> None:
    pytest.importorskip("prometheus_client")
    server = shutil.which("prometheus")
    if server is None:
        pytest.skip("Debian's package prometheus is not installed")
    with torch_xla.debug.serve_prometheus(port=0) as endpoint, torch_xla.debug.serve_prometheus(port=0) as spare:
        port = spare.port
        spare.close()
        jobs = [{"job_name": "train", "static_configs": [{"targets": [f"127.0.0.1:{endpoint.port}"]}]}]
        config = tmp_path / "prometheus.yml"  # JSON is YAML
        config.write_text(json.dumps({"global": {"scrape_interval": "1s"}, "scrape_configs": jobs}))
        command = [server, f"--config.file={config}", f"--storage.tsdb.path={tmp_path}/data"]
        with subprocess.Popen(
            [*command, f"--web.listen-address=127.0.0.1:{port}"], stderr=subprocess.DEVNULL
        ) as process:
            try:
                missing = QUERIES
                end = time.monotonic() + 60
                while missing and time.monotonic() < end:
                    (torch.ones(3, device="xla") + 1).tolist()
                    torch_xla.sync()
                    time.sleep(0.5)
                    missing = [query for query in missing if not values(port, query)]
                assert not missing
            finally:
                process.terminate()


def values(port: int, query: str) -> list[Any]:
    for variable, value in (("$__rate_interval", "10s"), ("$job", ".*"), ("$rank", ".*")):
        query = query.replace(variable, value)
    try:
        found = get(f"http://127.0.0.1:{port}/api/v1/query?{urllib.parse.urlencode({'query': query})}")
    except (OSError, ConnectionError):
        return []
    result: list[Any] = json.loads(found)["data"]["result"]
    return result


@pytest.fixture
def receiver() -> Iterator[tuple[str, list[bytes]]]:
    bodies: list[bytes] = []

    class Receive(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            bodies.append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *args: Any) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Receive)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}/v1/metrics", bodies
    server.shutdown()
    server.server_close()


def test_an_otlp_receiver_reads_the_numbers(receiver: tuple[str, list[bytes]]) -> None:
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http.metric_exporter")
    pb2 = importlib.import_module("opentelemetry.proto.collector.metrics.v1.metrics_service_pb2")
    url, bodies = receiver
    torch_xla.debug.send_opentelemetry(url, every=600).close()
    request = pb2.ExportMetricsServiceRequest.FromString(bodies[-1])
    [resource] = request.resource_metrics
    assert {each.key: each.value.string_value for each in resource.resource.attributes}["service.instance.id"] == "0"
    found = {metric.name: metric for scope in resource.scope_metrics for metric in scope.metrics}
    assert set(found) == {f"torch_xla.{each.name}" for each in readings.read()}
    for each in readings.read():
        metric = found[f"torch_xla.{each.name}"]
        assert metric.unit == each.unit and metric.WhichOneof("data") == ("sum" if each.is_total else "gauge")
        assert not each.is_total or metric.sum.is_monotonic
    keys = {each.key for point in found["torch_xla.time"].sum.data_points for each in point.attributes}
    assert keys == {"torch_xla.rank", "torch_xla.account"}


def test_a_provider_of_the_user_gets_the_instruments() -> None:
    sdk = pytest.importorskip("opentelemetry.sdk.metrics")
    reader = importlib.import_module("opentelemetry.sdk.metrics.export").InMemoryMetricReader()
    with pytest.raises(ValueError, match="not both"):
        torch_xla.debug.send_opentelemetry("http://localhost:1", provider=sdk.MeterProvider())
    with torch_xla.debug.send_opentelemetry(provider=sdk.MeterProvider([reader])):
        metrics = reader.get_metrics_data().resource_metrics[0].scope_metrics[0].metrics
    assert "torch_xla.steps" in {metric.name for metric in metrics}


def test_tensorboard_reads_the_scalars(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    torch_xla.debug.write_tensorboard(str(tmp_path)).close()
    module = importlib.import_module("tensorboard.backend.event_processing.event_accumulator")
    events = module.EventAccumulator(str(tmp_path / "rank_0"))
    events.Reload()
    tags = events.Tags()["scalars"]
    assert "torch_xla/time/compile" in tags and "torch_xla/steps" in tags
    assert len(events.Scalars("torch_xla/steps")) == 1


def test_json_lines_are_appended_while_it_runs_and_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "job.{rank}.jsonl"
    with torch_xla.debug.write_json_lines(str(path), every=0.05):
        time.sleep(0.3)
    lines = [json.loads(line) for line in (tmp_path / "job.0.jsonl").read_text().splitlines()]
    assert len(lines) >= 2
    assert {"time", "rank", "goodput", "seconds", "steps_total", "transfer_bytes_total_to_device"} <= lines[-1].keys()
    assert lines[-1]["time"] > lines[0]["time"]


def test_a_period_is_positive(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="every is 0"):
        torch_xla.debug.write_json_lines(str(tmp_path / "x"), every=0)
