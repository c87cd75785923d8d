"""Private names of PyTorch by which a cache takes part in `torch.compiler.save_cache_artifacts`, and why."""

from torch.compiler._cache import CacheArtifact as CacheArtifact
from torch.compiler._cache import CacheArtifactFactory, CacheArtifactManager


def register(kind: type[CacheArtifact]) -> None:
    """Let `load_cache_artifacts` give artifacts of this kind to their cache."""
    CacheArtifactFactory.register(kind)


def record(kind: type[CacheArtifact], key: str) -> None:
    """Have the next `save_cache_artifacts` save the artifact `key`; saved once, however often it is recorded."""
    CacheArtifactManager.record_artifact(kind.type(), key, b"")
