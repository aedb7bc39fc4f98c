"""Keys: a private one signs what its owner writes, its public half, as text, is what readers pin.

The library that computes comes in with the extra `trust`, and not before a key is used.
"""

from __future__ import annotations

import logging
import os
import re
import stat
from typing import TYPE_CHECKING, Final

from pulse_registry.errors import InvalidArgument
from pulse_schemas import Signature

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

_DOMAIN: Final = b"pulse-signed/1\n"
_PUBLIC: Final = re.compile(r"ed25519:([0-9a-f]{64})", re.ASCII)
_MAX_FILE: Final = 64 << 10
_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO
_MISSING: Final = "signatures need the package cryptography: pip install 'pulse-registry[trust]'"

_logger = logging.getLogger(__name__)


class SigningKey:
    """An Ed25519 private key. It signs documents, and shows nothing of itself but its public half."""

    def __init__(self, private: Ed25519PrivateKey) -> None:
        self._private = private
        self._public = private.public_key().public_bytes_raw()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.public!r})"

    @property
    def public(self) -> str:
        """The public key, as readers pin it: ``ed25519:<64 hex digits>``."""
        return key_text(self._public)

    @classmethod
    def generate(cls) -> SigningKey:
        """Make a new key.

        Raises:
            InvalidArgument: the extra `trust` is not installed.
        """
        try:
            from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
        except ModuleNotFoundError as error:
            raise InvalidArgument(_MISSING) from error
        return cls(Ed25519PrivateKey.generate())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> SigningKey:
        """Read a key from a file that holds it as PEM (PKCS 8, not encrypted), as ``save`` writes it.

        A file that others than its owner may read or write, or that another user owns, is taken, and a warning is
        logged.

        Raises:
            InvalidArgument: there is no such file, it holds no such key, or the extra `trust` is not installed.
        """
        try:
            from cryptography.exceptions import UnsupportedAlgorithm
            from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
            from cryptography.hazmat.primitives.serialization import load_pem_private_key
        except ModuleNotFoundError as error:
            raise InvalidArgument(_MISSING) from error
        try:
            with open(path, "rb") as file:
                private = load_pem_private_key(file.read(_MAX_FILE), password=None)
                found = os.fstat(file.fileno())
        except OSError as error:
            raise InvalidArgument(f"the signing key {path} can't be read: {error.strerror or error}") from error
        except (ValueError, TypeError, UnsupportedAlgorithm):
            # Without the cause: it may say what the file holds.
            raise InvalidArgument(f"{path} holds no signing key that `pulse key new` makes") from None
        if not isinstance(private, Ed25519PrivateKey):
            raise InvalidArgument(f"{path} holds a key of another kind; `pulse key new` makes one")
        if found.st_mode & _OTHERS:
            _logger.warning(
                "the signing key %s is open to others than its owner (mode %04o): whoever reads it can sign as you do; "
                "chmod 600 it",
                path,
                stat.S_IMODE(found.st_mode),
            )
        if found.st_uid not in (0, os.geteuid()):
            _logger.warning("the signing key %s is of user %d, who can sign as you do", path, found.st_uid)
        return cls(private)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the key to a new file that its owner alone may read.

        Raises:
            InvalidArgument: there is a file already, or it can't be written.
        """
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with open(descriptor, "wb") as file:
                file.write(self.to_pem())
        except FileExistsError:
            raise InvalidArgument(f"{path} exists already; a key is never overwritten") from None
        except OSError as error:
            raise InvalidArgument(f"the key can't be written to {path}: {error.strerror or error}") from error

    def to_pem(self) -> bytes:
        """Return the private key as PEM: a secret."""
        from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

        return self._private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())

    def sign(self, body: bytes) -> Signature:
        """Return the signature of a document's canonical body."""
        return Signature(self._public, self._private.sign(_DOMAIN + body))


def key_text(public: bytes) -> str:
    """Return a public key as text."""
    return f"ed25519:{public.hex()}"


def parse_key(text: str) -> bytes:
    """Return the raw bytes of a public key.

    Raises:
        InvalidArgument: the text is no public key.
    """
    found = _PUBLIC.fullmatch(text)
    if found is None:
        raise InvalidArgument(
            f"{text[:100]!r} is no public key: it is ed25519: and 64 hex digits, as `pulse key show` prints"
        )
    return bytes.fromhex(found[1])


class PublicKey:
    """An Ed25519 public key that verifies."""

    def __init__(self, raw: bytes) -> None:
        """Take the raw 32 bytes.

        Raises:
            InvalidArgument: the extra `trust` is not installed.
        """
        try:
            from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
        except ModuleNotFoundError as error:
            raise InvalidArgument(_MISSING) from error
        self._key: Ed25519PublicKey = Ed25519PublicKey.from_public_bytes(raw)

    def verifies(self, body: bytes, value: bytes) -> bool:
        """Tell whether ``value`` is this key's signature of a document's canonical body."""
        from cryptography.exceptions import InvalidSignature

        try:
            self._key.verify(value, _DOMAIN + body)
        except InvalidSignature:
            return False
        return True
