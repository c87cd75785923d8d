"""Replace an attribute of PyTorch or JAX under each of its names, and list what was replaced."""

import sys
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from functools import reduce
from typing import Any

ALL: list["Patch"] = []


class Patch:
    """One function, or another attribute, under every name it is called by.

    `why` says why it is replaced, `until` what PyTorch or JAX would have to offer for the patch to go, and `test` which
    test fails without it, below `tests/`. `since` is for what older releases lack.
    """

    def __init__(self, *names: str, why: str, until: str, test: str, since: str = "") -> None:
        self.names = names
        self.why = why
        self.until = until
        self.test = test
        self.since = since
        self.in_force = False
        ALL.append(self)

    def wrap(self, wrapper: Callable[[Any], Any]) -> None:
        """Replace it by what `wrapper` makes of it."""
        try:
            owner, name = owner_of(self.names[0])
            original = getattr(owner, name)
        except AttributeError:
            if not self.since:
                raise
            return
        self.put(wrapper(original))

    @contextmanager
    def wrapped(self, wrapper: Callable[[Any], Any]) -> Iterator[None]:
        """Replace it by what `wrapper` makes of it, inside the block only."""
        owner, name = owner_of(self.names[0])
        original = getattr(owner, name)
        try:
            self._set(wrapper(original))
            yield
        finally:
            self._set(original)
            self.in_force = False

    def put(self, value: Any) -> None:
        """Replace it by `value`, for which Dynamo's rules of the original apply."""
        owner, name = owner_of(self.names[0])
        original = getattr(owner, name, None)
        self._set(value)
        _hand_over_rules(original, getattr(owner, name))

    def _set(self, value: object) -> None:
        for owner, name in map(owner_of, self.names):
            setattr(owner, name, value)
        self.in_force = True

    def take_back(self) -> None:
        """Delete the replacement, so that a class has again what it inherits."""
        for owner, name in map(owner_of, self.names):
            delattr(owner, name)
        self.in_force = False


def _hand_over_rules(original: object, replacement: object) -> None:
    """Apply the rule that Dynamo has for `original` to `replacement` too.

    Dynamo finds the functions of its rules by their names at its first compilation, and knows them by identity from
    then on.
    """
    trace_rules: Any = sys.modules.get("torch._dynamo.trace_rules")
    if trace_rules is None or not isinstance(original, Hashable) or not isinstance(replacement, Hashable):
        return
    if trace_rules.get_torch_obj_rule_map.cache_info().currsize:
        rules = trace_rules.get_torch_obj_rule_map()
        if original in rules:
            rules[replacement] = rules[original]


def each(owner: str, *, why: str, until: str, tests: dict[str, str]) -> dict[str, Patch]:
    """Return patches of several attributes of one owner, by their names without the underscores around them.

    `tests` has the attributes, with spaces between them, by the test that fails without each.
    """
    return {
        name.removeprefix("_accelerator_").strip("_"): Patch(f"{owner}.{name}", why=why, until=until, test=test)
        for test, names in tests.items()
        for name in names.split()
    }


def owner_of(path: str) -> tuple[object, str]:
    """Return the owner of an attribute, and the attribute's name. A function may have the name of its module."""
    *owners, name = path.split(".")
    depth = max(count for count in range(1, len(owners) + 1) if ".".join(owners[:count]) in sys.modules)
    return reduce(getattr, owners[depth:], sys.modules[".".join(owners[:depth])]), name
