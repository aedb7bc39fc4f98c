from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from botocore.loaders import JSONFileLoader

from pulse_registry.errors import InvalidArgument
from pulse_registry.store import S3Location, open_store
from pulse_registry.store.s3.location import parse_s3_url
from tests.support.waiting import HANG_S


def test_a_url_names_bucket_prefix_and_options() -> None:
    place, prefix = parse_s3_url(
        "bucket/a/b?endpoint_url=http://host:8333&region=eu-1&addressing_style=path&profile=me"
    )
    assert place == S3Location("bucket", "http://host:8333", "eu-1", "path", "me")
    assert prefix == "a/b"


def test_what_a_url_does_not_say_is_left_to_the_sdk() -> None:
    assert parse_s3_url("my.bucket_1/") == (S3Location("my.bucket_1"), "")
    assert parse_s3_url("bucket?") == (S3Location("bucket"), "")


def test_a_prefix_is_percent_encoded() -> None:
    assert parse_s3_url("bucket/a%20b%3F/%25")[1] == "a b?/%"


def test_a_store_of_a_url_is_below_its_prefix_and_names_no_options() -> None:
    store = open_store("s3://bucket/a/b/?endpoint_url=http://host:1&region=eu-1")
    assert store.url == "s3://bucket/a/b"
    assert open_store("s3://bucket?region=eu-1").url == "s3://bucket"


def test_how_long_a_bucket_may_be_silent_is_checked() -> None:
    assert open_store("s3://bucket?region=eu-1", answer_s=0.5).url == "s3://bucket"
    with pytest.raises(InvalidArgument, match="answer_s"):
        open_store("s3://bucket?region=eu-1", answer_s=0)


@pytest.mark.parametrize(
    "rest",
    [
        "",
        "/a",
        "a",  # too short for a bucket
        "b cket",
        "bucket/../a",
        "bucket//a",
        "bucket/a%00b",
        "bucket?region",
        "bucket?region=",
        "bucket?region=a/b",
        "bucket?region=a&region=b",
        "bucket?colour=red",
        "bucket?profile=",
        "bucket?addressing_style=scenic",
        "bucket?endpoint_url=host:8333",
        "bucket?endpoint_url=ftp://host",
        "bucket?endpoint_url=http://",
        "bucket?endpoint_url=http://host:port",
        "bucket?endpoint_url=http://host/%3Fa=b",
    ],
)
def test_a_url_that_is_not_valid_is_refused(rest: str) -> None:
    with pytest.raises(InvalidArgument):
        parse_s3_url(rest)


@pytest.mark.parametrize(
    "rest",
    [
        "AKIA123:geheim@bucket/a",
        "bucket?access_key=geheim",
        "bucket?aws_secret_access_key=geheim",
        "bucket?session_token=geheim",
        "bucket?endpoint_url=http://user:geheim@host",
    ],
)
def test_credentials_in_a_url_are_refused_and_not_repeated(rest: str) -> None:
    with pytest.raises(InvalidArgument, match="AWS_ACCESS_KEY_ID") as caught:
        open_store(f"s3://{rest}")
    assert "geheim" not in str(caught.value)


def test_an_unknown_profile_is_refused_when_the_store_is_opened(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    with pytest.raises(InvalidArgument, match="nobody"):
        open_store("s3://bucket?profile=nobody")


def test_a_profile_gives_keys_region_and_endpoint(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name, raising=False)
    config = tmp_path / "config"
    config.write_text(
        "[profile lab]\nregion = lab-1\nendpoint_url = http://lab:9000\n"
        "aws_access_key_id = labkey\naws_secret_access_key = secret\n"
    )
    monkeypatch.setenv("AWS_CONFIG_FILE", str(config))
    store = open_store("s3://bucket?profile=lab&addressing_style=path")
    url = store.presigner().presign("key", 60)  # type: ignore[attr-defined]
    assert url.startswith("http://lab:9000/bucket/key?")
    assert "labkey%2F" in url
    assert "%2Flab-1%2Fs3%2F" in url


@pytest.mark.parametrize("proxy", ["socks5://host:1080", "http://host:port", "http://[::1", "http://", "http://a b:1"])
def test_a_proxy_that_can_not_be_used_is_refused_when_the_store_is_opened(
    monkeypatch: pytest.MonkeyPatch, proxy: str
) -> None:
    monkeypatch.setenv("HTTP_PROXY", proxy)
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    with pytest.raises(InvalidArgument, match=r"the proxy .*\(HTTP_PROXY\)"):
        open_store("s3://bucket?endpoint_url=http://store.example:9000&region=x")
    monkeypatch.setenv("NO_PROXY", "store.example")
    open_store("s3://bucket?endpoint_url=http://store.example:9000&region=x")


def test_what_describes_s3_is_read_for_the_first_store_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    open_store("s3://bucket?region=eu-1")
    read: list[str] = []
    load = JSONFileLoader.load_file
    monkeypatch.setattr(JSONFileLoader, "load_file", lambda loader, path: (read.append(path), load(loader, path))[1])
    open_store("s3://other?region=eu-1")
    assert read == []


@pytest.mark.slow
def test_without_boto3_the_error_says_what_to_install() -> None:
    script = (
        "import sys; sys.modules['boto3'] = None\n"
        "from pulse_registry.errors import InvalidArgument\n"
        "from pulse_registry.store import open_store\n"
        "try: open_store('s3://bucket')\n"
        "except InvalidArgument as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=HANG_S, check=True)
    assert "pip install 'pulse-registry[s3]'" in done.stdout
