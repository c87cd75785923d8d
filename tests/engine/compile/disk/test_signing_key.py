"""The key with which a user's executables are signed: made once, for this user alone."""

import hashlib
import hmac
import os
from pathlib import Path

import pytest

from torch_xla._engine.compile.disk import signing_key
from torch_xla._engine.compile.disk.executable_format import Foreign, Refused


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XLA_PERSISTENT_CACHE_KEY", str(tmp_path / "below" / "a.key"))
    return tmp_path / "below" / "a.key"


def test_a_signature_is_that_of_the_key(place: Path) -> None:
    place.parent.mkdir()
    place.write_bytes(b"k" * 32)
    place.chmod(0o600)
    expected = hmac.new(b"k" * 32, b"checksum", hashlib.sha256).hexdigest().encode()
    assert signing_key.signature(b"checksum") == expected
    signing_key.verify(place, b"checksum", expected)
    for signed in (b"", expected[:-1], expected.upper(), hashlib.sha256(b"checksum").hexdigest().encode()):
        with pytest.raises(Foreign, match=f"is not signed with the key {place}"):
            signing_key.verify(place, b"checksum", signed)


def test_each_place_has_its_own_key(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = signing_key.signature(b"1")
    monkeypatch.setenv("XLA_PERSISTENT_CACHE_KEY", str(place.with_name("b.key")))
    assert signing_key.signature(b"1") != first


def test_a_key_is_made_once_for_its_user_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XLA_PERSISTENT_CACHE_KEY")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    signed = signing_key.signature(b"1")
    assert signing_key.path() == tmp_path / "torch_xla" / "cache.key"
    assert signing_key.path().stat().st_mode & 0o777 == 0o600 and len(signing_key.path().read_bytes()) == 32
    signing_key._key.cache_clear()
    assert signing_key.signature(b"1") == signed != signing_key.signature(b"2")
    signing_key._make(signing_key.path())  # another process that saw none either
    signing_key._key.cache_clear()
    assert signing_key.signature(b"1") == signed
    assert list(signing_key.path().parent.iterdir()) == [signing_key.path()]
    monkeypatch.delenv("XDG_CONFIG_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert signing_key.path() == tmp_path / "home" / ".config" / "torch_xla" / "cache.key"


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="users are POSIX's")
@pytest.mark.parametrize(
    ("key", "mode", "message"),
    [
        (b"k" * 32, 0o604, r"other users may read .* \(`chmod o-r` ends this\)"),
        (b"k" * 32, 0o620, "other users may write to"),
        (b"k" * 31, 0o600, "holds 31 bytes, and a key has 32 to 64; delete it"),
        (b"k" * 65, 0o600, "holds 65 bytes"),
        (b"", 0o600, "holds 0 bytes"),
    ],
)
def test_a_key_that_others_know_or_that_is_none_is_refused(place: Path, key: bytes, mode: int, message: str) -> None:
    place.parent.mkdir()
    place.write_bytes(key)
    place.chmod(mode)
    with pytest.raises(Refused, match=message):
        signing_key.signature(b"1")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="pipes are POSIX's")
def test_what_is_no_file_holds_no_key(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place.mkdir(0o700, parents=True)
    os.mkfifo(place / "pipe", 0o600)
    for each in (place, place / "pipe"):
        monkeypatch.setenv("XLA_PERSISTENT_CACHE_KEY", str(each))
        with pytest.raises(Refused, match="no key to sign with: it is no regular file"):
            signing_key.signature(b"1")


def test_a_place_where_none_can_be_made_is_told(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place.parent.write_bytes(b"a file")
    with pytest.raises(
        Refused, match="no key to sign with: .*XLA_PERSISTENT_CACHE_KEY names another file of 32 random"
    ):
        signing_key.signature(b"1")
    monkeypatch.setattr(signing_key.config, "persistent_cache_key", lambda: "")
    with pytest.raises(Refused, match="there is no home folder to keep the key"):
        signing_key.path()
