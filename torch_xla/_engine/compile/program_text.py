"""A program as StableHLO or HLO text for people. With `XLA_HLO_DEBUG` it names the user's lines."""

from typing import Any

from .. import config


def stablehlo(lowered: Any) -> str:
    """Return a lowered graph (JAX's `Lowered`) as StableHLO text."""
    return str(lowered.as_text(debug_info=config.hlo_debug()))


def hlo(lowered: Any) -> str:
    """Return the same as HLO, before XLA optimises it."""
    return str(lowered.as_text("hlo", debug_info=config.hlo_debug()))
