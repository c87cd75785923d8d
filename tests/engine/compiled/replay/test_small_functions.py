"""Whatever a function sees, changes and returns: compiled in any way it does what it does on the CPU."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import torch_xla
import torch_xla.debug.metrics as met
from torch_xla._engine.compiled.replay import small_tensor_packing

from .small_functions import CASES, Compiled, as_at_first

# Functions that are replayed at least once; the others are recorded, for a reason.
REPLAYED = {
    "new_trainers", "new_named_tuples", "new_ranges", "new_floats", "returned_gradients",
    "kept_views_of_gradients", "gradients_saved_for_backward", "accumulated_gradients", "gradients_given_by_others",
    "gradients_taken_away", "adversaries", "adversaries_that_clear_last", "versions_of_arguments",
    "versions_of_what_shares_memory", "hooks_of_tensors", "hooks_of_modules", "global_forward_hooks",
    "global_optimizer_hooks", "attributes_of_tensors", "returns_a_list_it_sees", "returns_a_tensor_it_sees",
    "returns_one_tensor_twice", "returns_a_tensor_and_its_alias", "returns_a_defaultdict", "returns_an_ordered_dict",
    "returns_a_named_tuple", "returns_a_return_type", "returns_views", "sees_a_simple_namespace", "sees_a_user_list",
    "sees_a_dict", "sees_a_default", "sees_a_global", "sees_a_module", "sees_a_dataclass", "sees_a_bound_reader",
    "sees_a_cell",
    "sees_a_computed_name", "sees_a_host_tensor", "sees_what_an_autograd_function_reads", "under_no_grad",
    "is_what_it_sees", "decorated_by_a_context_manager", "looks_at_signatures", "asks_for_captures", "has_a_logger",
    "names_its_parts", "copies_its_settings", "under_inference_mode", "writes_in_inference_mode", "under_vmap",
    "errors_after_a_while",
}  # fmt: skip


# Where `torch.compile` does something else than PyTorch without it, on every device: ours does what it does on the CPU.
UNLIKE_EAGER = {
    "new_ranges": "Dynamo cannot take the length of a range that changes",
    "new_floats": "Dynamo does not tell the zeros apart",
    "new_complex": "Dynamo does not tell the zeros apart",
    "adversaries": "AOTAutograd makes one graph of both networks, and one backward uses it up",
    "adversaries_that_clear_last": "AOTAutograd makes one graph of both networks, and one backward uses it up",
    "versions_of_what_shares_memory": "AOTAutograd writes the result of all writes, past the version counters",
    "hooks_of_modules": "Dynamo does not look for hooks of modules that come later",
    "sees_all_attributes": "Dynamo does not look at how many attributes there are",
    "sees_an_attribute_of_a_metaclass": "Dynamo does not look at metaclasses",
    "sees_a_zero_of_another_sign": "Dynamo does not tell the zeros apart",
    "reads_a_version": "Dynamo does not look at version counters",
    "reads_a_base": "Dynamo does not look at what a view is one of",
    "asks_for_captures": "Dynamo lets PyTorch's error through, which the function catches",
    "effect_of_own_random": "Dynamo makes a number of a kind of its own of what is drawn",
}
UNLIKE_OURS = {
    "global_forward_hooks": "Dynamo does not look for global hooks: what they see depends on what was compiled before",
    "returns_views": "the results of a graph have memory of their own, as those of Inductor have",
}


@pytest.fixture(autouse=True)
def steps_end() -> Iterator[None]:
    torch_xla.sync()
    yield
    torch_xla.sync()


def as_it_is(function: Callable[..., Any]) -> Callable[..., Any]:
    return function


def replayed(function: Callable[..., Any]) -> Callable[..., Any]:
    return torch_xla.compile(function, replay=True)  # type: ignore[no-any-return]


def run(name: str, device: str, compiled: Compiled) -> list[Any]:
    as_at_first()
    return CASES[name](device, compiled)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", CASES)
def test_a_replayed_function_does_what_it_does_on_the_cpu(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(small_tensor_packing, "_AFTER", 2)
    expected = run(name, "cpu", as_it_is)
    before = met.counter_value("ReplayedStep") or 0
    assert run(name, "xla", replayed) == expected
    if name in REPLAYED:
        assert (met.counter_value("ReplayedStep") or 0) > before


def outcome(name: str, device: str, compiled: Compiled) -> Any:
    torch._dynamo.reset()
    try:
        return run(name, device, compiled)
    except Exception as error:  # whatever PyTorch raises
        return type(error)


def in_turn(first: int, *besides: str) -> list[Any]:
    """Every second function is slow, as are those `besides`; all others are exhaustive."""
    chosen = {*list(CASES)[first::2], *besides}
    return [pytest.param(name, marks=pytest.mark.slow if name in chosen else pytest.mark.exhaustive) for name in CASES]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", in_turn(0))
def test_a_compiled_function_does_too(name: str) -> None:
    expected = run(name, "cpu", as_it_is)
    assert run(name, "xla", torch_xla.compile) == expected


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", in_turn(1))
def test_so_does_one_in_eager_mode(name: str) -> None:
    expected = run(name, "cpu", as_it_is)
    with torch_xla.experimental.eager_mode_context(True):
        assert run(name, "xla", as_it_is) == expected


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", in_turn(0, *UNLIKE_EAGER, *UNLIKE_OURS))
def test_so_does_openxla_or_what_torch_compile_does(name: str, request: pytest.FixtureRequest) -> None:
    if name in UNLIKE_OURS:
        request.applymarker(pytest.mark.xfail(strict=True, reason=UNLIKE_OURS[name]))
    expected = outcome(name, "cpu", as_it_is)
    if name in UNLIKE_EAGER:
        without, expected = (
            expected,
            outcome(name, "cpu", lambda function: torch.compile(function, backend="aot_eager")),
        )
        assert expected != without, "PyTorch does better than it did: take it off the list"
    assert outcome(name, "xla", lambda function: torch.compile(function, backend="openxla")) == expected
