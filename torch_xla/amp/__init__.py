"""Mixed precision: `autocast` for the forward pass, `GradScaler`, and optimizers that skip bad steps without a wait."""

from . import syncfree as syncfree
from .autocast_mode import autocast as autocast
from .grad_scaler import GradScaler as GradScaler
