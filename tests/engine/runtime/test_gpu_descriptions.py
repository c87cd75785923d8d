"""A card is described by what its maker publishes of it."""

import re

import pytest

from torch_xla._engine.runtime.gpu_descriptions import TEXTS


@pytest.mark.parametrize("name", TEXTS)
def test_each_description_is_complete(name: str) -> None:
    fields = dict(re.findall(r"(\w+): (\S+)", TEXTS[name]))
    assert len(fields) >= 20 and all(value != "0" for field, value in fields.items() if field not in ("minor", "patch"))
    assert int(fields["shared_memory_per_block_optin"]) == int(fields["shared_memory_per_core"]) - 1024
    assert 70e9 < int(fields["device_memory_size"]) < 160e9


def test_cards_differ() -> None:
    assert len(set(TEXTS.values())) == len(TEXTS) and "major: 8" in TEXTS["a100"] and "major: 9" in TEXTS["h100"]
