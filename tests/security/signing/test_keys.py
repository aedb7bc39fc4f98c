"""Keys in files and as text, and what pins may say."""

from __future__ import annotations

import os
import re
import stat
import sys

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key

from pulse_registry.errors import InvalidArgument
from pulse_registry.signing import Pin, SigningKey, Trust, signer_of, state_folder, trust_of
from pulse_registry.signing.keys import PublicKey, parse_key
from pulse_registry.signing.pinned_keys import KINDS
from tests.security.signing.actors import COMPACTOR, LIMITED, STRANGER, TRAINER
from tests.support.others import give_away


def test_a_saved_key_is_its_owners_alone_and_signs_the_same(tmp_path):
    made, file = SigningKey.generate(), tmp_path / "key.pem"
    made.save(file)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    read = SigningKey.load(file)
    assert read.public == made.public
    assert read.sign(b"{}") == made.sign(b"{}")


@pytest.mark.parametrize(
    ("mode", "told"), [(0o600, False), (0o400, False), (0o640, True), (0o604, True), (0o644, True)]
)
def test_a_key_that_others_may_read_is_told(tmp_path, caplog, mode, told):
    file = tmp_path / "key.pem"
    TRAINER.save(file)
    file.chmod(mode)
    assert SigningKey.load(file).public == TRAINER.public
    assert caplog.messages == (
        [
            f"the signing key {file} is open to others than its owner (mode {mode:04o}): whoever reads it can sign as "
            "you do; chmod 600 it"
        ]
        if told
        else []
    )


def test_a_key_of_another_user_is_told(tmp_path, caplog, monkeypatch):
    file = tmp_path / "key.pem"
    TRAINER.save(file)
    give_away(file, monkeypatch)
    assert SigningKey.load(file).public == TRAINER.public
    (message,) = caplog.messages
    assert re.fullmatch(rf"the signing key {file} is of user \d+, who can sign as you do", message)


def test_a_key_file_is_never_overwritten(tmp_path):
    file = tmp_path / "key.pem"
    TRAINER.save(file)
    with pytest.raises(InvalidArgument, match="exists already"):
        STRANGER.save(file)
    assert SigningKey.load(file).public == TRAINER.public


def test_two_keys_differ():
    assert SigningKey.generate().public != SigningKey.generate().public


def test_a_key_shows_its_public_half_alone():
    assert repr(TRAINER) == f"SigningKey('{TRAINER.public}')"
    assert TRAINER.to_pem().decode().split("\n")[1] not in repr(TRAINER)


@pytest.mark.parametrize("content", [b"", b"no key", b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"])
def test_a_file_that_holds_no_key_is_refused_without_a_word_of_what_it_holds(tmp_path, content):
    file = tmp_path / "key.pem"
    file.write_bytes(content)
    with pytest.raises(InvalidArgument, match=r"key\.pem holds no signing key") as caught:
        SigningKey.load(file)
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__


def test_a_key_of_another_kind_is_refused(tmp_path):
    file = tmp_path / "rsa.pem"
    private = rsa.generate_private_key(65537, 1024)  # small: it is refused
    file.write_bytes(private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    with pytest.raises(InvalidArgument, match="another kind"):
        SigningKey.load(file)


def test_a_key_that_is_not_there_or_can_not_be_written_is_named(tmp_path):
    with pytest.raises(InvalidArgument, match=r"nowhere\.pem can't be read"):
        SigningKey.load(tmp_path / "nowhere.pem")
    with pytest.raises(InvalidArgument, match="can't be written"):
        TRAINER.save(tmp_path / "no folder" / "key.pem")


def test_a_signature_covers_the_whole_body_and_fits_one_key():
    raw = parse_key(TRAINER.public)
    body = b'{"a":1}'
    value = TRAINER.sign(body).value
    assert PublicKey(raw).verifies(body, value)
    assert not PublicKey(raw).verifies(b'{"a":2}', value)
    assert not PublicKey(parse_key(STRANGER.public)).verifies(body, value)
    for bit in range(8 * len(value)):
        flipped = bytearray(value)
        flipped[bit // 8] ^= 1 << bit % 8
        assert not PublicKey(raw).verifies(body, bytes(flipped))


def test_a_signature_of_the_bare_body_by_the_same_key_does_not_count(tmp_path):
    body = b"{}"
    TRAINER.save(tmp_path / "key.pem")
    bare = load_pem_private_key((tmp_path / "key.pem").read_bytes(), None).sign(body)
    assert not PublicKey(parse_key(TRAINER.public)).verifies(body, bare)


@pytest.mark.parametrize(
    "text", ["", "ed25519:", "ed25519:" + "A" * 64, "a" * 64, "ed25519:" + "a" * 65, "rsa:" + "a" * 64]
)
def test_what_is_no_public_key_is_refused(text):
    with pytest.raises(InvalidArgument, match="is no public key"):
        Trust([text])


def test_a_pin_may_do_all_or_what_it_is_limited_to():
    assert Pin.parse(TRAINER.public).kinds == KINDS
    assert Pin.parse(LIMITED).kinds == {"attach"}
    assert [str(pin) for pin in Trust([TRAINER.public, LIMITED]).pins] == [TRAINER.public, LIMITED]


@pytest.mark.parametrize("kinds", ["", "push", "attach,", "attach, retire"])
def test_kinds_that_are_none_are_refused(kinds):
    with pytest.raises(InvalidArgument, match="can't be pinned"):
        Trust([f"{COMPACTOR.public}={kinds}"])


def test_a_trust_that_can_not_be_meant_is_refused():
    with pytest.raises(InvalidArgument, match="no key at all"):
        Trust([])
    with pytest.raises(InvalidArgument, match="pinned twice"):
        Trust([COMPACTOR.public, LIMITED])
    with pytest.raises(InvalidArgument, match="a list of keys"):
        Trust(TRAINER.public)
    with pytest.raises(InvalidArgument, match="over 0"):
        Trust([TRAINER.public], max_age_s=0)


def test_keys_and_pins_come_from_the_environment_unless_they_are_given(monkeypatch, tmp_path):
    monkeypatch.delenv("PULSE_TRUST", raising=False)
    monkeypatch.delenv("PULSE_SIGNING_KEY", raising=False)
    assert trust_of(None) is None
    assert signer_of(None) is None
    TRAINER.save(tmp_path / "key.pem")
    monkeypatch.setenv("PULSE_SIGNING_KEY", str(tmp_path / "key.pem"))
    monkeypatch.setenv("PULSE_TRUST", f"{TRAINER.public}  {LIMITED}")
    assert signer_of(None).public == TRAINER.public
    assert signer_of(STRANGER) is STRANGER
    assert [str(pin) for pin in trust_of(None).pins] == [TRAINER.public, LIMITED]
    assert [str(pin) for pin in trust_of([STRANGER.public]).pins] == [STRANGER.public]


def test_what_was_seen_is_kept_where_the_user_says(monkeypatch, tmp_path):
    monkeypatch.delenv("PULSE_STATE_DIR", raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "xdg"))
    assert state_folder(None, "s3://b") == tmp_path / "xdg" / "pulse-registry"
    assert state_folder(None, "memory://m") is None
    assert state_folder(tmp_path, "memory://m") == tmp_path
    monkeypatch.setenv("PULSE_STATE_DIR", str(tmp_path / "given"))
    assert state_folder(None, "s3://b") == tmp_path / "given"
    monkeypatch.delenv("PULSE_STATE_DIR")
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert state_folder(None, "s3://b") == tmp_path / ".local" / "state" / "pulse-registry"


def test_without_the_extra_the_error_says_what_to_install(monkeypatch, tmp_path):
    name = "cryptography.hazmat.primitives.asymmetric.ed25519"
    monkeypatch.setitem(sys.modules, name, None)
    for call in (SigningKey.generate, lambda: SigningKey.load(os.devnull), lambda: Trust([TRAINER.public])):
        with pytest.raises(InvalidArgument, match=r"pip install 'pulse-registry\[trust\]'"):
            call()
