"""An artifact that is recorded is saved once, and loaded by its own kind."""

import dataclasses

import torch

from torch_xla._engine.compat.names import torch_caches

populated: list[tuple[str, bytes]] = []


@dataclasses.dataclass(frozen=True)
class Note(torch_caches.CacheArtifact):
    """An artifact whose cache is a list."""

    def populate_cache(self) -> None:
        populated.append((self.key, self.content))

    @staticmethod
    def type() -> str:
        return "note_of_a_test"


def test_what_is_recorded_is_saved_once_and_loaded() -> None:
    torch_caches.register(Note)
    with torch_caches.CacheArtifactManager.with_fresh_cache():
        torch_caches.record(Note, "first")
        torch_caches.record(Note, "first")
        torch_caches.record(Note, "second")
        found = torch.compiler.save_cache_artifacts()
    assert found is not None
    loaded = torch.compiler.load_cache_artifacts(found[0])
    assert loaded is not None and loaded.artifacts == {"note_of_a_test": ["first", "second"]}
    assert populated == [("first", b""), ("second", b"")]
