"""Settings that cannot be what they are set to are named, with what they can be."""

import pytest

from torch_xla._engine import config


@pytest.mark.parametrize(
    "name, text, what",
    [
        ("CPU_NUM_DEVICES", "-3", "CPU_NUM_DEVICES is -3; it must be at least 0."),
        ("XLA_COMPILATION_CACHE_SIZE", "-1", "XLA_COMPILATION_CACHE_SIZE is -1; it must be at least 1."),
        ("XLA_STAGE_OPERATIONS", "1.5", "XLA_STAGE_OPERATIONS is '1.5'; it must be a whole number."),
        ("XLA_PERSISTENT_CACHE_SIZE", "lots", "XLA_PERSISTENT_CACHE_SIZE is 'lots'; it must be a number of MiB"),
        ("XLA_PERSISTENT_CACHE_SIZE", "-1", "XLA_PERSISTENT_CACHE_SIZE is '-1'; it must be a number of MiB"),
        ("XLA_PERSISTENT_CACHE_SIZE", "nan", "XLA_PERSISTENT_CACHE_SIZE is 'nan'; it must be a number of MiB"),
        ("RATE_TRACKER_SMOOTHING", "2", "RATE_TRACKER_SMOOTHING is 2; it must be between 0 and 1."),
        (
            "XLA_PERSISTENT_CACHE_PATH",
            "~no such user/x",
            "XLA_PERSISTENT_CACHE_PATH is '~no such user/x', and there is ",
        ),
    ],
)
def test_nonsense_is_refused(name: str, text: str, what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    config.refuse_nonsense()
    monkeypatch.setenv(name, text)
    with pytest.raises(ValueError) as refusal:  # noqa: PT011
        config.refuse_nonsense()
    assert str(refusal.value).startswith(what)


def test_programs_of_a_tpu_are_whole_unless_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XLA_STAGE_OPERATIONS", raising=False)
    assert (config.stage_operations(), config.stage_operations_on_tpu()) == (500, 0)
    monkeypatch.setenv("XLA_STAGE_OPERATIONS", "7")
    assert config.stage_operations() == config.stage_operations_on_tpu() == 7


def test_sizes_are_numbers_of_any_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XLA_PERSISTENT_CACHE_SIZE", "0.5")
    assert config.persistent_cache_bytes() == 1 << 19
    monkeypatch.setenv("XLA_PERSISTENT_CACHE_SIZE", "")
    assert config.persistent_cache_bytes() == 2048 << 20
    monkeypatch.setenv("XLA_PERSISTENT_CACHE_PATH", "")
    assert config.persistent_cache_path() == ""
