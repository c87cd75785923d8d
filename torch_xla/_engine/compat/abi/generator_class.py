"""`torch.Generator`, which PyTorch makes for no backend in Python, called by way of a class of ours."""

import ctypes
from collections.abc import Callable
from typing import Any

import torch

from .supported_release import refuse

_keep: list[Any] = []


def wrap_generator_class(make: Callable[[Any], Any]) -> None:
    """Let `make(device)` say what `torch.Generator(device)` is; where it returns `None`, PyTorch does.

    `torch.Generator` must stay the class that it is: annotations, `isinstance` and TorchScript know it. So it gets a
    class of its own, as a class written in Python may have; Python does not let that be set for a class written in C.
    Raises `RuntimeError`, and leaves the class as it is, where the memory of a class differs from what is expected.
    """
    kind = type(torch.Generator)
    place = _class_of(torch.Generator)
    if place.value != id(kind):
        refuse("classes written in C", "the head of torch.Generator does not end with its class")
    calling = _calling(kind, make)
    place.value = id(calling)
    if not _works(calling):
        place.value = id(kind)
        refuse("classes written in C", "torch.Generator did not get its new class")
    _keep.append(calling)


def _class_of(thing: Any) -> Any:
    """Where an object keeps its class: at the end of its head."""
    word = ctypes.sizeof(ctypes.c_void_p)
    return ctypes.c_void_p.from_address(id(thing) + object.__basicsize__ - word)


def _works(calling: type) -> bool:
    return (
        type(torch.Generator) is calling
        and isinstance(torch.Generator(), torch.Generator)
        and torch.Generator("cpu").device.type == "cpu"
    )


def _calling(kind: Any, make: Callable[[Any], Any]) -> type:
    class Calling(kind):  # type: ignore[misc, valid-type]
        __slots__ = ()
        # A class written in C has its module in its name, which this attribute of its class would hide.
        __module__ = type.__dict__["__module__"]

        def __call__(cls, *args: Any, **kwargs: Any) -> Any:
            if cls is torch.Generator and (args or "device" in kwargs):
                made = make(args[0] if args else kwargs["device"])
                if made is not None:
                    return made
            return super().__call__(*args, **kwargs)

    Calling.__name__ = Calling.__qualname__ = kind.__name__
    return Calling
