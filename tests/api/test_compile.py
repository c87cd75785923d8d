"""`torch_xla.compile`: what a region promises, and how it is written."""

from collections.abc import Callable, Iterator
from typing import Any

import jax
import pytest
import torch
from torch import nn

import torch_xla
import torch_xla.debug.metrics as met
from torch_xla._engine.compile.disk import cache_folder


@pytest.fixture(autouse=True)
def steps_end() -> Iterator[None]:
    torch_xla.sync()
    yield
    torch_xla.sync()


def ones(*size: int) -> torch.Tensor:
    return torch.ones(*size, device="xla")


def is_pending(tensor: torch.Tensor) -> bool:
    return torch_xla._XLAC._check_tensor_need_materialization([tensor])[0]


def test_a_call_is_one_graph_between_two_steps() -> None:
    before = ones(2) * 3
    inside = []

    @torch_xla.compile
    def double(x: torch.Tensor) -> torch.Tensor:
        """Doubles."""
        inside.append(is_pending(before))
        y = x + x
        inside.append(is_pending(y))
        return y

    result = double(before)
    assert inside == [False, True] and not is_pending(result)
    assert result.tolist() == [6.0, 6.0]
    assert double.__name__ == "double" and double.__doc__ == "Doubles."


def test_it_is_a_function_a_decorator_with_rules_and_a_block() -> None:
    assert torch_xla.compile(lambda x: x + 1)(ones(2)).tolist() == [2.0, 2.0]

    @torch_xla.compile(full_graph=True, name="add")
    def add(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x + y

    assert add(ones(2), y=ones(2)).tolist() == [2.0, 2.0]
    with torch_xla.compile():
        y = ones(2) * 5
        assert is_pending(y)
    assert not is_pending(y) and y.tolist() == [5.0, 5.0]


def test_a_module_can_be_compiled() -> None:
    model = nn.Linear(3, 2).to("xla")
    torch.testing.assert_close(torch_xla.compile(model)(ones(1, 3)), model(ones(1, 3)))


def test_a_whole_graph_refuses_to_be_cut_with_the_line() -> None:
    @torch_xla.compile(full_graph=True, name="step")
    def branch(x: torch.Tensor) -> torch.Tensor:
        if x.sum() > 0:
            return x
        return -x

    line = branch.__wrapped__.__code__.co_firstlineno + 2
    with pytest.raises(RuntimeError) as caught:
        branch(ones(2) + 1)
    assert str(caught.value) == (
        f"step: full_graph=True, and {__file__}:{line} in branch needs a value before the end of the function. Return "
        "the tensor and look at it after the call, or use `torch.where` in the place of `if`."
    )
    # Nothing is left of the rules.
    assert (ones(2) + 1).sum().item() == 4


def test_without_a_whole_graph_values_may_be_read() -> None:
    @torch_xla.compile
    def branch(x: torch.Tensor) -> torch.Tensor:
        return x if x.sum() > 0 else -x

    assert branch(ones(2) * -1).tolist() == [1.0, 1.0]


@pytest.mark.parametrize("spelling", ["num_different_graphs_allowed", "max_different_graphs"])
def test_more_graphs_than_allowed_are_refused(spelling: str) -> None:
    grow = torch_xla.compile(lambda x: x * 2, name="grow", **{spelling: 2})
    for size in (1, 2, 1, 2):
        grow(ones(size))
    with pytest.raises(
        RuntimeError, match=r"grow: 2 different graphs were allowed, and this call recorded graph number 3"
    ):
        grow(ones(3))
    assert grow(ones(2)).tolist() == [2.0, 2.0]


def test_a_region_inside_another_is_a_part_of_it() -> None:
    inner = torch_xla.compile(lambda x: x + 1)

    @torch_xla.compile(full_graph=True, num_different_graphs_allowed=1)
    def outer(x: torch.Tensor) -> torch.Tensor:
        return inner(x * 2) * 3

    met.clear_all()
    for _ in range(3):
        assert outer(ones(2)).tolist() == [9.0, 9.0]


def test_an_error_inside_passes_and_the_next_call_works() -> None:
    fails = True

    @torch_xla.compile(full_graph=True)
    def step(x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        if fails:
            raise KeyError("no")
        return y

    with pytest.raises(KeyError):
        step(ones(2))
    fails = False
    assert step(ones(2)).tolist() == [2.0, 2.0]


def test_a_block_cannot_be_replayed() -> None:
    with pytest.raises(RuntimeError, match="replay=True needs a function"), torch_xla.compile(replay=True):
        pass


FAST = {"xla_cpu_enable_fast_math": True}


def test_options_of_the_compiler_make_a_program_another(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    original = jax.jit

    def jit(*args: Any, **kwargs: Any) -> Any:
        seen.append(kwargs.get("compiler_options"))
        return original(*args, **kwargs)

    monkeypatch.setattr(jax, "jit", jit)
    x = torch.rand(7, 3).to("xla")

    def compiled(run: Callable[[], object]) -> int:
        before = met.counter_value("UncachedCompile") or 0
        run()
        return (met.counter_value("UncachedCompile") or 0) - before

    fast = torch_xla.compile(lambda: (x.sin() * 17.25).tolist(), custom_compile_options=FAST)
    plain = torch_xla.compile(lambda: (x.sin() * 17.25).tolist())
    with monkeypatch.context() as patch:
        patch.setattr(cache_folder, "folder", lambda: None)
        assert compiled(plain) == 1 and not any(options and FAST.items() <= options.items() for options in seen)
        assert compiled(fast) == 1 and FAST.items() <= seen[-1].items()
        assert compiled(plain) == compiled(fast) == 0
        torch_xla.set_custom_compile_options({"--xla_cpu_enable_fast_math": True})
        assert compiled(plain) == 0  # the same options again
        torch_xla.set_custom_compile_options({})
    assert fast() == plain()


@pytest.mark.parametrize("options", [{"xla_flag": [1]}, {3: True}])
def test_what_is_no_option_is_refused(options: Any) -> None:
    with pytest.raises(TypeError, match="custom compile options are names of XLA's flags"):
        torch_xla.set_custom_compile_options(options)


def test_a_replay_takes_no_options_of_its_own() -> None:
    with pytest.raises(ValueError, match="replay=True with custom_compile_options.*set_custom_compile_options"):
        torch_xla.compile(lambda: None, custom_compile_options=FAST, replay=True)
