"""The settings in force that change how something is lowered: ours, and those of JAX in this thread."""

from dataclasses import dataclass
from typing import Any

from .. import compiler_options, dtypes, precision
from ..compat.names import jax as private


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings in force at one time."""

    dtypes: str  # the mode of dtypes: what `dtypes.on_device` does
    precision: str  # of products of 32-bit floats
    options: str  # of the compiler, the user's
    jax: tuple[tuple[str, Any], ...]  # JAX's settings by name: all that change what JAX traces, and have a value

    def __hash__(self) -> int:
        # JAX's are many, and seldom differ.
        return hash((self.dtypes, self.precision, self.options))

    def texts(self) -> dict[str, str]:
        """Each setting by its name, in words that another process would use too."""
        ours = {"dtypes": self.dtypes, "precision": self.precision, "options": self.options}
        return ours | {name: str(value) for name, value in self.jax}


def _read() -> tuple[Any, ...]:
    return dtypes.mode(), precision.chosen(), compiler_options.text(), private.trace_context()


def _settings(read: tuple[Any, ...]) -> Settings:
    mode, products, options, context = read
    return Settings(mode, products, options, private.trace_settings(context))


_before = _read()
_latest = _before, _settings(_before)


def now() -> Settings:
    """The settings in force in this thread."""
    global _latest
    read = _read()
    before, settings = _latest
    if read != before:
        settings = _settings(read)
        _latest = read, settings
    return settings
