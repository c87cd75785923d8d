"""Dispatch keys choose the kernels of a call, and fake tensors are recognized."""

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import Parameter

from torch_xla._engine.compat.names import torch_dispatch_keys as keys


def test_fake_and_wrapped_tensors_stand_for_others() -> None:
    x = torch.ones(3)
    assert not keys.stands_for_another(x, keys.PRIVATEUSE1_KEYS)
    assert not keys.stands_for_another(Parameter(x), keys.PRIVATEUSE1_KEYS)
    with FakeTensorMode():
        assert keys.stands_for_another(torch.ones(3), keys.PRIVATEUSE1_KEYS)
    seen = []
    torch.vmap(lambda each: seen.append(keys.stands_for_another(each, keys.PRIVATEUSE1_KEYS)) or each)(x)
    assert seen == [True]
    functional = keys.PRIVATEUSE1_KEYS | keys.DispatchKeySet(torch._C.DispatchKey.Functionalize)
    assert keys.stands_for_another(x, functional)


def test_a_call_with_meta_is_served_by_pytorch_and_not_begun_anew() -> None:
    given = keys.PRIVATEUSE1_KEYS | keys.DispatchKeySet(torch._C.DispatchKey.PythonDispatcher)
    found = keys.with_meta(given)
    assert found.has(torch._C.DispatchKey.Meta) and found.has(torch._C.DispatchKey.PrivateUse1)
    assert not found.has(torch._C.DispatchKey.PythonDispatcher)


def test_a_kernel_above_autograd_is_given_the_keys_of_the_call() -> None:
    library = torch.library.Library("torch_xla_test_dispatch_keys", "FRAGMENT")
    try:
        library.define("asked(Tensor self) -> Tensor")
        seen = list[keys.DispatchKeySet]()

        def kernel(given: keys.DispatchKeySet, tensor: torch.Tensor) -> torch.Tensor:
            seen.append(given)
            return tensor

        keys.register_above_autograd(library, "asked", kernel)
        x = torch.ones(3, device="xla")
        assert torch.ops.torch_xla_test_dispatch_keys.asked(x) is x
        assert seen[0].has(torch._C.DispatchKey.PrivateUse1)
    finally:
        library._destroy()
