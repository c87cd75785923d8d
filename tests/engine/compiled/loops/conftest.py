"""Every test of traced loops begins as one of `torch.compile` does."""

from tests.engine.compiled.dynamo.conftest import compilations_start_anew as compilations_start_anew
