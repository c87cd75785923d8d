"""PyTorch's private names behave as expected, and replacements can be undone."""

import threading
from typing import Any

import pytest
import torch
import torch.autograd.forward_ad as forward_ad
from torch.utils._python_dispatch import TorchDispatchMode

from torch_xla._engine.compat.names import torch as private


class Seeing(TorchDispatchMode):
    """Sees calls of operators."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(str(function))
        return function(*args, **(kwargs or {}))


def test_modes_are_known_and_passed_by() -> None:
    assert private.modes_of_calls() == () and not private.calls_are_watched()
    with Seeing() as mode:
        assert private.modes_of_calls() == (mode,) and private.calls_are_watched()
        with private.without_modes():
            torch.ones(2) + 1
            assert private.modes_of_calls() == ()
        torch.ones(3)
    assert mode.seen == ["aten.ones.default"] and not private.calls_are_watched()
    with torch.autograd.graph.save_on_cpu():
        assert len(private.modes_of_calls()) == 1 and private.saved_tensors_hooks_in_force() is not None
    assert private.saved_tensors_hooks_in_force() is None


def test_a_level_of_tangents_is_passed_by_too() -> None:
    with forward_ad.dual_level():
        assert private.calls_are_watched()
        with private.without_modes():
            assert not private.calls_are_watched()
        assert private.calls_are_watched()


def test_meta_kernels_describe_the_cpu_where_they_are_asked_to_and_nested() -> None:
    device_hint = torch._meta_registrations.device_hint
    meta, host = torch.empty(1, device="meta"), torch.empty(1)
    usual = device_hint(meta)
    with private.meta_kernels_for_the_cpu(True):
        assert device_hint(meta) == "cpu" != usual
        with private.meta_kernels_for_the_cpu(False):
            assert device_hint(meta) == usual
        assert device_hint(meta) == "cpu"
        others: list[str] = []
        thread = threading.Thread(target=lambda: others.append(device_hint(meta)))
        thread.start()
        thread.join()
        assert others == [usual]
    assert device_hint(meta) == usual and device_hint(host) == "cpu"


def test_a_tensor_behind_a_python_object_is_exchanged_with_its_hooks() -> None:
    kept, other = torch.ones(2, requires_grad=True), torch.zeros(3, requires_grad=True)
    seen: list[torch.Tensor] = []
    kept.register_hook(seen.append)
    kept.register_post_accumulate_grad_hook(seen.append)
    kept.note = "mine"  # type: ignore[attr-defined]
    private.exchange(kept, other)
    assert kept.tolist() == [0, 0, 0] and other.tolist() == [1, 1] and kept.note == "mine"  # type: ignore[attr-defined]
    (kept * 2).sum().backward()
    assert len(seen) == 2 and seen[0].tolist() == [2, 2, 2] and seen[1] is kept


def test_uses_of_tensors_and_storages_are_counted() -> None:
    x = torch.ones(2)
    address = x.untyped_storage()._cdata
    before = private.storage_use_count(address)
    view = x[1:]
    assert private.storage_use_count(address) == before + 1
    del view
    assert private.storage_use_count(address) == before


def test_a_change_of_a_dictionary_is_seen() -> None:
    settings = {"a": 1}
    first = private.dict_version(settings)
    assert private.dict_version(settings) == first
    settings["a"] = 2
    assert private.dict_version(settings) != first


@pytest.mark.skipif(not private.DICT_VERSIONS_TELL, reason="versions are not relied on")
def test_a_change_of_an_attribute_is_seen_where_versions_tell() -> None:
    class Settings:
        pass

    settings = Settings()
    settings.rate = 1  # type: ignore[attr-defined]
    first = private.dict_version(vars(settings))
    settings.rate = 2  # type: ignore[attr-defined]
    assert private.dict_version(vars(settings)) != first


def test_a_conjugate_is_marked_in_place() -> None:
    z = torch.tensor([1 + 2j])
    private.mark_conjugate(z)
    assert z.is_conj() and z.tolist() == [1 - 2j]


def test_operators_are_known_without_their_python_objects() -> None:
    assert "aten::add.Tensor" in set(private.all_operator_names())
    assert private.has_kernel("aten::add.Tensor", "CPU") and not private.has_kernel("aten::add.Tensor", "XPU")
    assert [argument.name for argument in private.schema_named("aten::add", "Tensor").arguments] == [
        "self",
        "other",
        "alpha",
    ]


def test_a_registered_kernel_is_taken_back_with_its_library() -> None:
    with torch.library._scoped_library("test_private", "DEF") as define:
        define.define("twice(Tensor x) -> Tensor")
        library = private.raw_library("test_private")
        private.register_kernel(library, "twice", lambda x: x + x)
        assert private.has_kernel("test_private::twice", "PrivateUse1")
        private.unregister(library)
        assert not private.has_kernel("test_private::twice", "PrivateUse1")


def test_the_order_of_memory_is_that_which_strides_suggest() -> None:
    x = torch.empty(2, 3, 4, 5)
    assert private.suggest_memory_format(x) is torch.contiguous_format
    assert private.suggest_memory_format(x.to(memory_format=torch.channels_last)) is torch.channels_last


def test_attention_is_composed_where_only_mathematics_is_allowed() -> None:
    assert private.fused_attention_enabled()
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        assert not private.fused_attention_enabled()


def test_something_is_called_when_the_backward_pass_has_ended() -> None:
    told: list[str] = []
    x = torch.ones(1, requires_grad=True)
    x.register_hook(lambda _: private.at_end_of_backward(lambda: told.append("end")))
    x.register_post_accumulate_grad_hook(lambda _: told.append("gradient"))
    x.backward()
    assert told == ["gradient", "end"]
    with pytest.raises(RuntimeError):
        private.at_end_of_backward(lambda: None)


def test_generators_stay_what_they_are_for_annotations_and_tests_of_class() -> None:
    for device in ("cpu", "xla"):
        made = torch.Generator(device=device)
        assert isinstance(made, torch.Generator) and made.device.type == device
    assert torch.Generator().device.type == "cpu"
    assert issubclass(type(torch.Generator), type) and torch.Generator.__module__ == "torch._C"
