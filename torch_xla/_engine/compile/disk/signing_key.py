"""The user's key that signs executables on disk: XLA loads only files that were signed with it.

A checksum shows damage, but not who wrote a file. Given a malicious executable, XLA ends the process or does what the
executable says. So each file is signed with a key outside the folder, which a person who adds files to the folder (from
an archive, an image, a download) does not have.
"""

import functools
import hmac
import os
import secrets
import stat
import tempfile
from pathlib import Path

from ... import config
from .executable_format import Foreign, Refused, Unreadable, contents, refuse_others

# Bytes; what SHA-256 takes whole.
_SIZE, _LONGEST = 32, 64


def path() -> Path:
    """Return the path of the key. Raises `Refused` if there is no home directory to keep it in."""
    place = config.persistent_cache_key()
    if not place:
        raise Refused(f"there is no home folder to keep the key of its signatures in ({_ADVICE})")
    return Path(place)


def signature(checksum: bytes) -> bytes:
    """Return the signature of a file with this checksum: 64 hexadecimal digits.

    Raises `Refused` if there is no key and none can be made, or if others can read it.
    """
    return hmac.digest(_key(path()), checksum, "sha256").hex().encode()


def verify(file: Path | str, checksum: bytes, signed: bytes) -> None:
    """Raise `Foreign` if `signed` is not the signature of a file with this checksum, `Refused` as above."""
    if not hmac.compare_digest(signature(checksum), signed):
        raise Foreign(f"{file} is not signed with the key {path()}")


@functools.cache
def _key(place: Path) -> bytes:
    try:
        if not place.exists():
            _make(place)
        status = place.stat()
        refuse_others(place, status)
        if hasattr(os, "geteuid") and status.st_mode & stat.S_IROTH:
            raise Refused(f"other users may read {place} (`chmod o-r` ends this)")
        key = contents(place)
    except (OSError, Unreadable) as error:
        raise Refused(f"there is no key to sign with: {error} ({_ADVICE})") from error
    if not _SIZE <= len(key) <= _LONGEST:
        raise Refused(f"{place} holds {len(key)} bytes, and a key has {_SIZE} to {_LONGEST}; delete it")
    return key


def _make(place: Path) -> None:
    place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    handle, aside = tempfile.mkstemp(dir=place.parent)  # for this user alone
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(secrets.token_bytes(_SIZE))
        os.link(aside, place)  # whole or not at all; of several processes, the first
    except FileExistsError:
        pass
    finally:
        os.unlink(aside)


_ADVICE = "XLA_PERSISTENT_CACHE_KEY names another file of 32 random bytes"
