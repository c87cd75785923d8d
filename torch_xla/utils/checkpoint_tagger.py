"""Names for checkpoints: several may mean one file, and a file that none means any more is removed."""

import json
import os
from collections.abc import Callable


class CheckpointTagger:
    """Which checkpoint each tag, such as "best" or "latest", means.

    When a tag moves on and was the last one of its checkpoint, `remover(path)` is called; by default the file is
    deleted if it is there.

    >>> from torch_xla.utils.checkpoint_tagger import CheckpointTagger
    >>> tagger = CheckpointTagger(remover=lambda path: print("remove", path))
    >>> tagger.tag("latest", "step1.pt")
    >>> tagger.tag("best", "step1.pt")
    >>> tagger.tag("latest", "step2.pt")
    >>> tagger.tag("best", "step2.pt")
    remove step1.pt
    >>> tagger.tags
    {'latest': 'step2.pt', 'best': 'step2.pt'}
    """

    def __init__(self, remover: Callable[[str], object] | None = None) -> None:
        self._remover = _delete if remover is None else remover
        self._paths: dict[str, str] = {}

    def tag(self, name: str, path: str) -> None:
        """Makes the tag `name` mean the checkpoint at `path`."""
        before = self._paths.get(name)
        self._paths[name] = path
        if before is not None and before not in self._paths.values():
            self._remover(before)

    @property
    def tags(self) -> dict[str, str]:
        """The path that each tag means."""
        return dict(self._paths)

    def save_to_json(self) -> str:
        """The tags as JSON."""
        return json.dumps(self._paths)

    @classmethod
    def load_from_json(cls, str_json: str, remover: Callable[[str], object] | None = None) -> "CheckpointTagger":
        """The tagger that `save_to_json` wrote down.

        >>> from torch_xla.utils.checkpoint_tagger import CheckpointTagger
        >>> CheckpointTagger.load_from_json('{"best": "step1.pt"}').tags
        {'best': 'step1.pt'}
        """
        tagger = cls(remover)
        tagger._paths = {str(name): str(path) for name, path in json.loads(str_json).items()}
        return tagger


def _delete(path: str) -> None:
    if os.path.isfile(path):
        os.remove(path)
