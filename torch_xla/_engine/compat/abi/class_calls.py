"""Answer calls of `torch.Generator`, `torch.Event` and `torch.Stream`, which PyTorch makes for no backend in Python."""

import ctypes
from collections.abc import Callable
from typing import Any

from .supported_release import refuse

_keep: list[Any] = []


def answer_calls_of(made: Any, make: Callable[..., object]) -> None:
    """Let `make(*args, **kwargs)` say what a call of the class `made` returns; where it returns `None`, PyTorch does.

    The class must stay the one that it is: annotations, `isinstance` and TorchScript know it. So it gets a class of its
    own, as a class written in Python may have; Python does not let that be set for a class written in C. Subclasses are
    called as before. Raises `RuntimeError`, and leaves the class as it is, where the memory of a class differs from
    what is expected.
    """
    kind = type(made)
    place = _class_of(made)
    if place.value != id(kind):
        refuse("classes written in C", f"the head of torch.{made.__name__} does not end with its class")
    calling = _calling(kind, made, make)
    place.value = id(calling)
    if type(made) is not calling or not isinstance(made, type):
        place.value = id(kind)
        refuse("classes written in C", f"torch.{made.__name__} did not get its new class")
    _keep.append(calling)


def _class_of(thing: object) -> Any:
    """Return where an object keeps its class: at the end of its head."""
    word = ctypes.sizeof(ctypes.c_void_p)
    return ctypes.c_void_p.from_address(id(thing) + object.__basicsize__ - word)


def _calling(kind: Any, made: object, make: Callable[..., object]) -> type:
    class Calling(kind):  # type: ignore[misc, valid-type]
        __slots__ = ()
        # A class written in C has its module in its name, which this attribute of its class would hide.
        __module__ = type.__dict__["__module__"]

        def __call__(cls, *args: object, **kwargs: object) -> Any:
            if cls is made and (ours := make(*args, **kwargs)) is not None:
                return ours
            return super().__call__(*args, **kwargs)

    Calling.__name__ = Calling.__qualname__ = kind.__name__
    return Calling
