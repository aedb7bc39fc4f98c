"""Tokens are kept as hashes in a file that changes atomically, and made, listed and revoked from the command line."""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
import threading
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulse_registry.cli import main
from pulse_registry.errors import InvalidArgument, NotFound, StoreUnavailable
from pulse_server.tokens import TokenEntry, TokenFile, TokenIndex, TokenSet, new_token, split_token
from tests.support.others import give_away

NOW = datetime(2030, 1, 1, tzinfo=UTC)


def made(name: str = "trainer", scope: str = "read", runs: tuple[str, ...] = ("*",)) -> tuple[str, TokenEntry]:
    return new_token(name, scope, runs, now=NOW)


def test_a_token_has_its_form_and_256_random_bits() -> None:
    token, entry = made()
    match = re.fullmatch(r"pulse_([0-9a-f]{12})_([A-Za-z0-9_-]{43})", token)
    assert match is not None
    assert match[1] == entry.id
    assert entry.sha256 == hashlib.sha256(match[2].encode()).hexdigest()
    assert made()[0] != token


def test_what_is_kept_does_not_hold_the_secret(tmp_path: Path) -> None:
    token, entry = made()
    TokenFile(tmp_path / "tokens.json").add(entry)
    assert token.split("_", 2)[2] not in (tmp_path / "tokens.json").read_text()
    assert token[-43:] not in repr(entry)


def test_a_token_is_found_by_its_secret_alone() -> None:
    (token, entry), (other, _) = made(), made()
    index = TokenIndex(TokenSet(tokens=(entry,)))
    assert index.find(token) == entry
    assert index.find(token[:-1] + ("A" if token[-1] != "A" else "B")) is None
    assert index.find(token[:19] + other[19:]) is None
    assert index.find(other) is None


@given(st.text(max_size=80) | st.from_regex(r"pulse_[0-9a-f]{12}_[A-Za-z0-9_-]{43}", fullmatch=True))
def test_no_other_text_is_a_token(text: str) -> None:
    index = TokenIndex(TokenSet(tokens=(made()[1],)))
    assert index.find(text) is None
    parts = split_token(text)
    assert parts is None or f"pulse_{parts[0]}_{parts[1]}" == text


@pytest.mark.parametrize(
    ("name", "scope", "runs"),
    [("", "read", ("*",)), ("a b", "read", ("*",)), ("x", "root", ("*",)), ("x", "read", ()), ("x", "read", ("[a]",))],
)
def test_what_makes_no_token_is_refused(name: str, scope: str, runs: tuple[str, ...]) -> None:
    with pytest.raises(InvalidArgument, match="no such token can be made"):
        made(name, scope, runs)


def test_the_file_is_its_owners_alone_and_nothing_is_left_beside_it(tmp_path: Path) -> None:
    file = TokenFile(tmp_path / "tokens.json")
    file.add(made()[1])
    file.add(made()[1])
    assert stat.S_IMODE(file.path.stat().st_mode) == 0o600
    assert {path.name for path in tmp_path.iterdir()} <= {"tokens.json", ".tokens.json.lock"}


@pytest.mark.parametrize("whose", ["another's", "all may write it"])
def test_a_file_that_others_may_write_is_told(
    tmp_path: Path, whose: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    file = TokenFile(tmp_path / "tokens.json")
    file.add(made()[1])
    assert len(file.read().tokens) == 1
    assert caplog.messages == []
    if whose == "another's":
        give_away(file.path, monkeypatch)
    else:
        file.path.chmod(0o602)
    assert len(file.read().tokens) == 1
    (message,) = caplog.messages
    assert message.startswith(f"the tokens' file {file.path} may be written by others than this user (owner ")


def test_a_lock_that_is_a_link_is_refused_and_cuts_no_other_file(tmp_path: Path) -> None:
    (tmp_path / "mine").write_bytes(b"precious")
    (tmp_path / ".tokens.json.lock").symlink_to(tmp_path / "mine")
    with pytest.raises(InvalidArgument, match=r"\.tokens\.json\.lock: it is a link"):
        TokenFile(tmp_path / "tokens.json").add(made()[1])
    assert (tmp_path / "mine").read_bytes() == b"precious"


def test_tokens_that_are_made_at_the_same_time_are_all_kept(tmp_path: Path) -> None:
    entries = [made(f"t{number}")[1] for number in range(16)]
    threads = [threading.Thread(target=TokenFile(tmp_path / "t.json").add, args=(entry,)) for entry in entries]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {entry.name for entry in TokenFile(tmp_path / "t.json").read().tokens} == {e.name for e in entries}


def test_a_token_that_is_removed_leaves_the_others(tmp_path: Path) -> None:
    file, (_, one), (_, two) = TokenFile(tmp_path / "t.json"), made("one"), made("two")
    file.add(one)
    file.add(two)
    assert file.remove(one.id) == one
    assert file.read().tokens == (two,)
    with pytest.raises(NotFound, match=one.id):
        file.remove(one.id)


@pytest.mark.parametrize(
    "content", ["", "{", "[]", '{"format": "pulse-tokens/2"}', '{"token": []}', '{"tokens": [{"id": "x"}]}', "\x00\xff"]
)
def test_a_damaged_file_is_refused_and_left_alone(tmp_path: Path, content: str) -> None:
    file = TokenFile(tmp_path / "t.json")
    file.path.write_text(content)
    with pytest.raises(InvalidArgument, match=r"t\.json is no tokens' file"):
        file.read()
    with pytest.raises(InvalidArgument):
        file.add(made()[1])
    assert file.path.read_text() == content


def test_a_file_that_is_none_keeps_nobody_waiting_and_a_large_one_is_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(StoreUnavailable, match="pipe can't be read: it is no regular file"):
        TokenFile(tmp_path / "pipe").read()
    with (tmp_path / "large").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(InvalidArgument, match="it has 1099511627776 bytes"):
        TokenFile(tmp_path / "large").read()


def test_two_entries_with_one_id_are_refused() -> None:
    _, entry = made()
    document = json.dumps({"tokens": [entry.model_dump(mode="json")] * 2}).encode()
    with pytest.raises(InvalidArgument, match="same id"):
        TokenSet.parse(document, "t.json")


def test_there_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="pulse token new"):
        TokenFile(tmp_path / "none.json").read()


def test_the_command_line_makes_lists_and_revokes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = str(tmp_path / "tokens.json")
    new = ["token", "new", "--name", "trainer", "--scope", "publish", "--run", "math-*", "--run", "code"]
    assert main([*new, "--expires", "30d", "--file", file]) == 0
    token = capsys.readouterr().out.strip()
    entry = TokenIndex(TokenFile(Path(file)).read()).find(token)
    assert entry is not None
    assert (entry.name, entry.scopes(), entry.runs) == ("trainer", ("read", "publish"), ("math-*", "code"))
    assert entry.expires_at is not None
    assert (entry.expires_at - entry.created_at).days == 30
    assert main(["token", "list", "--file", file]) == 0
    listed = capsys.readouterr().out
    assert entry.id in listed
    assert entry.sha256 not in listed
    assert main(["token", "revoke", entry.id, "--file", file, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["name"] == "trainer"
    assert main(["token", "list", "--file", file, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == []


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["new", "--name", "x", "--scope", "read", "--expires", "soon"], 2),
        (["new", "--name", "x", "--scope", "read", "--expires", "99999w"], 2),
        (["new", "--name", "x", "--scope", "root"], 2),
        (["new", "--name", "x y", "--scope", "read"], 2),
        (["list"], 3),
        (["revoke", "0" * 12], 3),
    ],
)
def test_what_goes_wrong_has_its_exit_code(tmp_path: Path, arguments: list[str], code: int) -> None:
    assert main(["token", *arguments, "--file", str(tmp_path / "tokens.json")]) == code
    assert not (tmp_path / "tokens.json").exists()
