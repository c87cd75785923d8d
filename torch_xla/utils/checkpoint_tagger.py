"""Tags for checkpoints: several tags may refer to one file, and a file without a tag is removed."""

import json
import os
from collections.abc import Callable


class CheckpointTagger:
    """The checkpoint that each tag, such as "best" or "latest", refers to.

    When the last tag of a checkpoint moves to another checkpoint, `remover(path)` is called; by default it deletes the
    file if the file exists.

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
        """Let the tag `name` refer to the checkpoint at `path`."""
        before = self._paths.get(name)
        self._paths[name] = path
        if before is not None and before not in self._paths.values():
            self._remover(before)

    @property
    def tags(self) -> dict[str, str]:
        """Return the path that each tag refers to."""
        return dict(self._paths)

    def save_to_json(self) -> str:
        """Return the tags as JSON."""
        return json.dumps(self._paths)

    @classmethod
    def load_from_json(cls, str_json: str, remover: Callable[[str], object] | None = None) -> "CheckpointTagger":
        """Return the tagger that `save_to_json` wrote.

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
