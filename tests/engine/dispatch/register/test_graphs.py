"""`torch.accelerator.Graph`, and the graphs of `torch.xla`, as they are written for CUDA."""

from pathlib import Path
from typing import Any

import pytest
import torch

import torch_xla  # noqa: F401
from torch_xla._engine.dispatch.register import graphs

xla: Any = torch.xla  # type: ignore[attr-defined]


@pytest.mark.skipif(not hasattr(torch.accelerator, "Graph"), reason="this PyTorch has no torch.accelerator.Graph")
def test_a_graph_of_the_accelerator() -> None:
    x = torch.zeros(20, device="xla")
    stream = torch.Stream()
    graph = torch.accelerator.Graph()
    with stream, graph:
        assert torch.accelerator.current_stream().is_capturing() and xla.is_current_stream_capturing()
        x += 1
    assert not torch.accelerator.current_stream().is_capturing() and not xla.is_current_stream_capturing()
    graph.replay()
    graph.replay()
    assert x.tolist() == [2.0] * 20
    other = torch.accelerator.Graph(keep_graph=True, pool=graph.pool(), capture_error_mode="relaxed")
    assert other.pool() == graph.pool()
    other.capture_begin()
    x *= 2
    other.capture_end()
    other.instantiate()
    other.replay()
    assert x.tolist() == [4.0] * 20
    other.reset()
    with pytest.raises(RuntimeError, match="replay: there is no captured graph"):
        other.replay()
    with other:
        x -= 1
    other.replay()
    assert x.tolist() == [3.0] * 20


@pytest.mark.skipif(not hasattr(torch.accelerator, "Graph"), reason="this PyTorch has no torch.accelerator.Graph")
def test_a_graph_of_another_accelerator_is_pytorchs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphs, "is_ours", lambda: False)
    with pytest.raises(RuntimeError, match="(?i)graph"):  # this build of PyTorch has none
        torch.accelerator.Graph()


def test_an_event_in_a_capture_marks_a_point_and_waits_for_nothing() -> None:
    x = torch.ones(2, device="xla")
    graph = xla.XLAGraph()
    with xla.graph(graph, stream=xla.Stream()):
        event = xla.current_stream().record_event()
        xla.current_stream().wait_event(event)
        x.add_(1)
    graph.replay()
    assert x.tolist() == [2.0, 2.0]


def test_graphs_share_a_pool() -> None:
    pool = xla.graph_pool_handle()
    assert pool != xla.graph_pool_handle()
    x = torch.ones(2, device="xla")
    first, second = xla.XLAGraph(), xla.XLAGraph()
    with xla.graph(first, pool=pool):
        y = x + 1
    with xla.graph(second, pool=first.pool()):
        z = y * 2
    x.fill_(4)
    first.replay()
    second.replay()
    assert first.pool() == second.pool() == pool and z.tolist() == [10.0, 10.0]


def test_wrong_calls_say_what_to_do(tmp_path: Path) -> None:
    graph = xla.XLAGraph()
    with pytest.raises(RuntimeError, match="capture_end: no capture was begun"):
        graph.capture_end()
    with pytest.raises(RuntimeError, match=r"replay: there is no captured graph. Capture one by `with torch.xla.graph"):
        graph.replay()
    with pytest.raises(RuntimeError, match="capture_error_mode='often': expected one of 'default', 'global'"):
        graph.capture_begin(capture_error_mode="often")
    with pytest.raises(RuntimeError, match="expected a generator of xla, got one of cpu"):
        graph.register_generator_state(torch.Generator())
    with pytest.warns(UserWarning, match="The XLA graph is empty"), xla.graph(graph):
        pass
    with pytest.warns(UserWarning, match="debug_dump writes nothing: call enable_debug_mode"):
        graph.debug_dump(str(tmp_path / "graph"))
    assert not (tmp_path / "graph").exists()


def test_a_graph_is_dumped_as_stablehlo(tmp_path: Path) -> None:
    x = torch.ones(2, device="xla")
    graph = xla.XLAGraph()
    graph.enable_debug_mode()
    with xla.graph(graph):
        x.mul_(3)
    graph.debug_dump(str(tmp_path / "graph"))
    assert "stablehlo.multiply" in (tmp_path / "graph").read_text()


@pytest.mark.skipif(not hasattr(torch.accelerator, "Graph"), reason="this PyTorch has no torch.accelerator.Graph")
def test_a_graph_before_the_first_use_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphs, "is_ours", lambda: False)
    with pytest.raises(RuntimeError, match="Make a tensor on it first"):
        torch.accelerator.Graph()
