"""Named scopes and the user's lines reach the metadata of programs, and are no part of their key."""

import concurrent.futures
import contextlib
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch

import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.debug.profiler as xp
from tests.support.pending import prolonged
from torch_xla import _XLAC
from torch_xla._engine.compat.names import jax_source_lines as private
from torch_xla._engine.compile.source_metadata import scopes_at
from torch_xla._engine.step import pending_graph
from torch_xla._engine.step.named_scopes import close_scope, open_scope, open_scopes
from torch_xla._engine.step.pending_graph import graph_of
from torch_xla.debug import metrics as met
from torch_xla.distributed.parallel_loader import MpDeviceLoader


@contextmanager
def scope(name: str) -> Iterator[None]:
    open_scope(name)
    try:
        yield
    finally:
        close_scope()


def names_of(*tensors: torch.Tensor) -> set[str]:
    """The names in a program's metadata, without the function that JAX traced and the JAX primitive."""
    found = re.findall(r'op_name="jit\(\w+\)/([^"]+)/[^"/]+"', debug_text(*tensors))
    return {name for name in found if "::" in name}


def debug_text(*tensors: torch.Tensor) -> str:
    return str(graph_of(tensors).lowered().as_text("hlo", debug_info=True))


def lines_of(text: str) -> set[int]:
    """The lines of this file that a program mentions."""
    assert f'"{__file__}"' in text
    return {int(line) for line in re.findall(r"file_name_id=\d+ function_name_id=\d+ line=(\d+)", text)}


def test_operations_carry_the_scopes_open_around_them() -> None:
    x = torch.ones(3, 4).to("xla")
    with scope("outer"):
        y = x.sin()
        with scope("inner"):
            y = y.cos()
        y = y.tanh()
    assert names_of(y.exp()) >= {"outer/aten::sin", "outer/inner/aten::cos", "outer/aten::tanh", "aten::exp"}
    assert open_scopes() == ()


def test_a_scope_goes_on_behind_a_sync_and_behind_a_value_that_is_read() -> None:
    x = torch.ones(3, 5).to("xla")
    with scope("around"):
        (x + 1).cos().tolist()
        read = x.tanh()
        torch_xla.sync(reset_scope=False)
        z = x.exp()
    assert read.shape == z.shape
    assert names_of(z) == {"around/aten::exp"}


def test_what_a_read_leaves_on_the_tape_keeps_its_scopes() -> None:
    torch_xla.sync()
    x, other = torch.ones(2, 7).to("xla"), torch.ones(2, 9).to("xla")
    with scope("kept"):
        left = prolonged(x.sin())
    with scope("open"):
        other.cos().tolist()
        right = left.exp()
    assert names_of(right) - {"kept/aten::add"} == {"kept/aten::sin", "open/aten::exp"}


def test_a_program_is_found_again_whatever_scopes_are_open() -> None:
    def step() -> None:
        torch.ones(6, device="xla").sin().cos().tolist()

    step()
    met.clear_all()
    with scope("new"):
        step()
    assert met.counter_value("UncachedCompile") is None and met.counter_value("CachedCompile") == 1


def test_recording_without_scopes_leaves_no_marks() -> None:
    torch_xla.sync()
    x = torch.ones(2, 2, device="xla").sin()
    assert torch_xla._engine.tensor.device.device_at(0).tape.scopes == []
    assert x.shape == (2, 2)


def test_programs_name_the_users_lines() -> None:
    x = torch.rand(4, 4).to("xla")
    first = x.sin().sum()
    second = x.cos().sum()
    start = test_programs_name_the_users_lines.__code__.co_firstlineno
    assert lines_of(debug_text(first, second)) == {start + 2, start + 3}
    assert debug_text(first).count(".py") == 1, "only the user's file is named"


def test_each_use_of_a_function_that_jax_traced_before_has_its_own_line() -> None:
    x = torch.rand(5, 5).to("xla")
    y = torch.where(x > 0.5, x, 0.0)
    z = torch.where(y > 0.7, y, 0.0)
    torch_xla.sync()
    w = torch.where(z > 0.9, z, 0.0).sum()
    compiled = graph_of([w]).lowered().compile().as_text()
    start = test_each_use_of_a_function_that_jax_traced_before_has_its_own_line.__code__.co_firstlineno
    assert lines_of(compiled) == {start + 5}


def test_lines_of_libraries_in_the_folder_of_python_count_too() -> None:
    file = private.threading.__file__
    frames = private.traceback_at((file, 33, "run"))
    assert str(frames).startswith(f"{file}:33 (run)")
    assert private.source_info_util.user_frame(frames).start_line == 33


def test_the_scopes_at_positions() -> None:
    marks = [(3, ("a",)), (7, ("a", "b")), (9, ())]
    assert scopes_at([1, 3, 6, 7, 8, 12], marks) == [(), ("a",), ("a",), ("a", "b"), ("a", "b"), ()]
    assert scopes_at([1, 2], []) == []


def test_the_text_of_the_extension_shows_names() -> None:
    with scope("here"):
        y = torch.ones(2).to("xla").sin()
    assert "sine" in _XLAC._get_xla_tensors_hlo([y])


def test_lines_are_known_behind_a_read_too() -> None:
    x = torch.ones(3, device="xla")
    start = test_lines_are_known_behind_a_read_too.__code__.co_firstlineno
    for _ in range(3):
        y = x * 2.5
        later = prolonged(x)
        x.sum().item()
        z = (y + 1).exp()
        found = [line[1] - start for line in pending_graph.graph_of([z]).lines if line is not None]
        assert found == [4, 7, 7] and later.shape == y.shape
        torch_xla.sync()


def a_step() -> None:
    with xp.StepTrace("step"):
        pass


def test_a_step_does_not_end_inside_of_a_block() -> None:
    x = torch.ones(3, 11).to("xla")
    ways: list[Callable[[], object]] = [
        torch_xla.sync,
        lambda: torch_xla.sync(wait=True),
        xm.mark_step,
        lambda: _XLAC._xla_step_marker("", [], wait=False),
        lambda: torch_xla.step().__enter__(),
        lambda: next(iter(MpDeviceLoader([torch.ones(2)], "xla"))),
        a_step,
    ]
    for way in ways:
        for names, said in (("conv1",), "conv1.1"), (("outer", "inner"), "outer.1/inner.2"):
            marks = met.counter_value("MarkStep")
            with contextlib.ExitStack() as blocks:
                for name in names:
                    blocks.enter_context(xp.Trace(name))
                y = x.cos()
                with pytest.raises(
                    RuntimeError, match=f"Expecting scope to be empty but it is {said}: a step ends here"
                ):
                    way()
            assert open_scopes() == () and met.counter_value("MarkStep") == marks
            assert _XLAC._check_tensor_need_materialization([y]) == [True]
    torch_xla.sync()


def test_a_block_stays_open_where_a_step_may_end_in_it() -> None:
    x = torch.ones(3, 13).to("xla")
    compiled = torch_xla.compile(torch.cos)
    with xp.Trace("kept"):
        y = x.sin()
        torch_xla.sync(reset_scope=False)
        assert _XLAC._check_tensor_need_materialization([y]) == [False]
        xm.mark_step(reset_scope=False)
        _XLAC._xla_step_marker("", [], wait=False, reset_scope=False)
        for _ in range(4):
            z = compiled(x)
        with xp.Trace("inside"):
            pass
        assert open_scopes() == ("kept",)
    torch_xla.sync()
    torch.testing.assert_close(z.cpu(), torch.ones(3, 13).cos())


def test_a_block_of_another_thread_is_not_this_ones() -> None:
    with xp.Trace("here"):
        thread = threading.Thread(target=torch_xla.sync)
        thread.start()
        thread.join()
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            pool.submit(torch_xla.sync).result()


def test_a_decorated_function_does_not_end_a_step() -> None:
    @xp.trace_me("conv2")
    def function() -> None:
        torch_xla.sync()

    with pytest.raises(RuntimeError, match=r"Expecting scope to be empty but it is conv2\.1"):
        function()
    torch_xla.sync()
