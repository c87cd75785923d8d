"""Find which names the program's code has accessed, from the instructions that it executed."""

import dis
import functools
import types
from collections import defaultdict
from dataclasses import dataclass, field

from . import pure_allowlist

_GLOBALS = frozenset(
    ("LOAD_GLOBAL", "LOAD_NAME", "STORE_GLOBAL", "DELETE_GLOBAL", "STORE_NAME", "LOAD_FROM_DICT_OR_GLOBALS")
)
_ATTRIBUTES = frozenset((
    "LOAD_ATTR", "LOAD_METHOD", "STORE_ATTR", "DELETE_ATTR", "IMPORT_FROM", "LOAD_SUPER_ATTR", "LOAD_SUPER_METHOD",
))  # fmt: skip


# Instructions that only push one value. Python 3.14 added one for small numbers, and one for arguments.
_LOADS_ONE = frozenset(
    ("LOAD_CONST", "LOAD_SMALL_INT", "LOAD_FAST", "LOAD_FAST_BORROW", "LOAD_FAST_CHECK", "LOAD_GLOBAL", "LOAD_DEREF")
)

# Names that reveal the type of an object.
_TYPES = frozenset(("type", "__class__", "SymFloat"))


@dataclass
class Reads:
    """The instructions and names that watched calls have executed."""

    codes: dict[types.CodeType, frozenset[str]] = field(default_factory=dict)  # code of the program → its globals
    names: frozenset[str] = frozenset()  # attributes
    imports: frozenset[str] = frozenset()
    everything: bool = False  # attributes were looked at whose names are not in the code
    compiled: bool = False  # code ran that `torch.compile` made of the program's: which parts of that is not known

    def looks_at(self, name: str) -> bool:
        """Return whether the program may have looked at something of this name: a global, an attribute or an entry."""
        return self.everything or name in self.names or any(name in names for names in self.codes.values())

    def asks_for_types(self) -> bool:
        """Return whether the program may have asked for the very type of something, as `isinstance` does not."""
        return not _TYPES.isdisjoint(self.names) or not all(map(_TYPES.isdisjoint, self.codes.values()))

    def covers(self, other: "Reads") -> bool:
        """Return whether `other` looked at nothing else."""
        return (
            all(code in self.codes and names <= self.codes[code] for code, names in other.codes.items())
            and other.names <= self.names
            and other.imports <= self.imports
            and (self.everything or not other.everything)
            and (self.compiled or not other.compiled)
        )

    def with_those_of(self, other: "Reads") -> "Reads":
        """Return the union of both."""
        codes = dict(self.codes)
        for code, names in other.codes.items():
            codes[code] = codes.get(code, frozenset()) | names
        return Reads(
            codes,
            self.names | other.names,
            self.imports | other.imports,
            self.everything or other.everything,
            self.compiled or other.compiled,
        )


class Executed:
    """Collects the instructions of the program's code that are executed."""

    def __init__(self) -> None:
        self.offsets: dict[types.CodeType, set[int]] = defaultdict(set)
        self.whole: set[types.CodeType] = set()  # every instruction of these counts as executed
        self.everything = False

    def reads(self) -> Reads:
        """Return the names in what was executed."""
        codes: dict[types.CodeType, frozenset[str]] = {}
        names: set[str] = set()
        imports: set[str] = set()
        for code in {*self.offsets, *self.whole}:
            offsets = None if code in self.whole else self.offsets[code]
            found, attributes, imported = _names(code, offsets)
            codes[code] = frozenset(found)
            names |= attributes
            imports |= imported
        everything = self.everything or bool(names & pure_allowlist.ANY_NAME)
        return Reads(codes, frozenset(names), frozenset(imports), everything)


@functools.lru_cache(4096)
def _instructions(code: types.CodeType) -> tuple[dis.Instruction, ...]:
    return tuple(each for each in dis.get_instructions(code) if each.opname not in ("CACHE", "EXTENDED_ARG", "PRECALL"))


def _names(code: types.CodeType, offsets: set[int] | None) -> tuple[set[str], set[str], set[str]]:
    names: set[str] = set()
    attributes: set[str] = set()
    imports: set[str] = set()
    for each in _instructions(code):
        if offsets is not None and each.offset not in offsets:
            continue
        if each.opname in _GLOBALS:
            names.add(each.argval)
        elif each.opname in _ATTRIBUTES:
            attributes.add(each.argval)
        elif each.opname == "IMPORT_NAME":
            imports.add(each.argval)
        elif isinstance(each.argval, str) and each.opname in ("LOAD_CONST", "KW_NAMES"):
            attributes.update(part for part in each.argval.split(".") if part.isidentifier())  # `getattr(self, "rate")`
        elif isinstance(each.argval, tuple) and each.opname == "LOAD_CONST":
            attributes.update(part for part in each.argval if isinstance(part, str) and part.isidentifier())
    return names, attributes, imports


def name_is_constant(frame: types.FrameType) -> bool:
    """Return whether the call of `getattr` or the like at `frame` has the attribute's name in the code."""
    instructions = _instructions(frame.f_code)
    at = next((index for index, each in enumerate(instructions) if each.offset >= frame.f_lasti), len(instructions))
    if at == len(instructions) or not instructions[at].opname.startswith("CALL"):
        return False
    count = instructions[at].arg
    name = at - 1 if count == 2 else at - 2
    return (
        count in (2, 3)
        and name >= 0
        and isinstance(instructions[name].argval, str)
        and instructions[name].opname == "LOAD_CONST"
        and (count == 2 or instructions[at - 1].opname in _LOADS_ONE)
    )
