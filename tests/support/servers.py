"""Real S3 servers for tests: started on free ports, gone with the process that started them, however that ends."""

from __future__ import annotations

import functools
import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

from pulse_registry.demo.bucket import free_ports

ACCESS_KEY = "pulse-test-key"
SECRET_KEY = "pulse-test-secret"
REGION = "us-east-1"

_STARTS = 3
_READY_S = 60.0

# Asks the kernel to signal this process when its parent ends, then becomes the server.
_LAUNCHER = """
import ctypes, os, sys
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, int(sys.argv[2]))
    if os.getppid() != int(sys.argv[1]):
        sys.exit("the parent has ended")
os.execv(sys.argv[3], sys.argv[3:])
"""


@dataclass(frozen=True, slots=True)
class S3Server:
    """A running server: where it is, and the keys of its one identity, who may do everything."""

    name: str
    endpoint: str
    access_key: str = ACCESS_KEY
    secret_key: str = SECRET_KEY
    region: str = REGION
    pid: int | None = None

    @property
    def environment(self) -> Mapping[str, str]:
        """The credentials as the AWS SDKs take them, and nothing of the machine's own configuration."""
        return {
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": self.secret_key,
            "AWS_CONFIG_FILE": os.devnull,
            "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def client(self) -> Any:
        """Return a boto3 client, to look at the server past the store under test."""
        return _client(self)

    def new_bucket(self) -> S3Bucket:
        """Make an empty bucket with a name of its own."""
        bucket = S3Bucket(self, f"test-{uuid.uuid4().hex[:20]}")
        self.client().create_bucket(Bucket=bucket.name)
        return bucket


@dataclass(frozen=True, slots=True)
class S3Bucket:
    """A bucket of a server."""

    server: S3Server
    name: str

    def url(self, prefix: str = "") -> str:
        """Return the URL that `open_store` takes; the credentials are in ``server.environment``."""
        path = f"{self.name}/{prefix}" if prefix else self.name
        query = f"endpoint_url={self.server.endpoint}&region={self.server.region}&addressing_style=path"
        return f"s3://{path}?{query}"

    def remove(self) -> None:
        """Delete the bucket and all that is in it."""
        client = self.server.client()
        for page in client.get_paginator("list_objects_v2").paginate(Bucket=self.name):
            for entry in page.get("Contents", ()):
                client.delete_object(Bucket=self.name, Key=entry["Key"])
        client.delete_bucket(Bucket=self.name)


@contextmanager
def seaweedfs() -> Iterator[S3Server]:
    """Run SeaweedFS: a real distributed store that checks signatures, conditions and checksums."""
    with ExitStack() as stack:
        folder = _folder(stack, "weed")
        identity = {
            "name": "test",
            "credentials": [{"accessKey": ACCESS_KEY, "secretKey": SECRET_KEY}],
            "actions": ["Admin", "Read", "Write", "List", "Tagging"],
        }
        config = folder / "s3.json"
        config.write_text(json.dumps({"identities": [identity]}))

        def command(port: int) -> list[str]:
            others = free_ports(7)
            names = ("master.port", "master.port.grpc", "volume.port", "volume.port.grpc", "filer.port")
            ports = dict(zip((*names, "filer.port.grpc", "s3.port.grpc"), others, strict=True))
            return [
                _binary("weed"),
                "server",
                "-s3",
                f"-dir={folder}",
                "-ip=127.0.0.1",
                "-ip.bind=127.0.0.1",
                f"-s3.port={port}",
                *(f"-{name}={number}" for name, number in ports.items()),
                "-s3.port.iceberg=0",
                "-s3.port.lance=0",
                f"-s3.config={config}",
                "-s3.autoCreateBucket=false",
                "-master.telemetry=false",
                "-master.volumeSizeLimitMB=1024",
                "-volume.max=20000",  # a bucket takes several
            ]

        # A short folder: the server makes sockets under TMPDIR.
        # At a limit of 250 MiB its collector never rests, which takes five times the processor time.
        environment = {**os.environ, "GOMEMLIMIT": "700MiB", "TMPDIR": str(folder)}
        yield _started(stack, "seaweedfs", command, environment, folder / "log")


@contextmanager
def rclone() -> Iterator[S3Server]:
    """Run `rclone serve s3` over a folder: a store that ignores `If-None-Match`."""
    with ExitStack() as stack:
        folder = _folder(stack, "rclone")
        (folder / "data").mkdir()

        def command(port: int) -> list[str]:
            keys = f"--auth-key={ACCESS_KEY},{SECRET_KEY}"
            address = f"--addr=127.0.0.1:{port}"
            return [_binary("rclone"), "serve", "s3", address, keys, "--config=", str(folder / "data")]

        yield _started(stack, "rclone", command, dict(os.environ), folder / "log")


@contextmanager
def moto() -> Iterator[S3Server]:
    """Run moto in this process: S3's answers to the letter, but no signature or checksum is checked.

    Its writes of objects come one after the other: by itself it looks whether there is an object, and then makes it,
    and of two threads that create one both may be told that they did.
    """
    from moto.s3.responses import S3Response
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.WARNING)  # not a line for each request
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    with ExitStack() as stack:
        lock = threading.Lock()
        for name in ("_key_response_put", "_key_response_post"):
            stack.enter_context(patch.object(S3Response, name, _one_at_a_time(getattr(S3Response, name), lock)))
        server.start()
        stack.callback(server.stop)
        port = server.get_host_and_port()[1]
        yield S3Server("moto", f"http://127.0.0.1:{port}")


def _one_at_a_time(call: Callable[..., Any], lock: threading.Lock) -> Callable[..., Any]:
    @functools.wraps(call)
    def locked(*args: Any, **kwargs: Any) -> Any:
        with lock:
            return call(*args, **kwargs)

    return locked


@contextmanager
def running(command: Sequence[str], environment: Mapping[str, str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run a server as a child that is killed at the end, also when this process is killed."""
    with log.open("ab") as out:
        child = subprocess.Popen(
            launched(command), env=dict(environment), stdin=subprocess.DEVNULL, stdout=out, stderr=out, cwd=log.parent
        )
    try:
        yield child
    finally:
        child.send_signal(signal.SIGKILL)
        child.wait()


def launched(command: Sequence[str], *, how: signal.Signals = signal.SIGKILL) -> list[str]:
    """Return a command that ends when the thread that started it does, however that ends; ``how``: by which signal."""
    return [sys.executable, "-I", "-S", "-c", _LAUNCHER, str(os.getpid()), str(int(how)), *command]


@functools.cache
def _client(server: S3Server) -> Any:
    """Return a server's client: one, as it takes a tenth of a second to make."""
    import boto3
    from botocore.config import Config

    return boto3.client(
        "s3",
        endpoint_url=server.endpoint,
        aws_access_key_id=server.access_key,
        aws_secret_access_key=server.secret_key,
        region_name=server.region,
        config=Config(signature_version="s3v4", s3={"addressing_style": "path"}, retries={"total_max_attempts": 1}),
    )


def _started(
    stack: ExitStack,
    name: str,
    command: Callable[[int], list[str]],
    environment: Mapping[str, str],
    log: Path,
) -> S3Server:
    """Start a server and wait until it answers; another set of ports if it ends at once."""
    for _ in range(_STARTS):
        with ExitStack() as attempt:
            port = free_ports(1)[0]
            child = attempt.enter_context(running(command(port), environment, log))
            server = S3Server(name, f"http://127.0.0.1:{port}", pid=child.pid)
            deadline = time.monotonic() + _READY_S
            while child.poll() is None and time.monotonic() < deadline:
                if _answers(server):
                    stack.push(attempt.pop_all())
                    return server
                time.sleep(0.05)
    tail = log.read_text(errors="replace")[-2000:]
    raise RuntimeError(f"{name} did not start in {_STARTS} attempts: {tail}")


def _answers(server: S3Server) -> bool:
    """Tell whether the server serves its identity alone: SeaweedFS lets all in until it has read its keys."""
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        urllib.request.urlopen(server.endpoint, timeout=2).close()
        return False
    except urllib.error.HTTPError as error:
        error.close()
    except OSError:
        return False
    try:
        server.client().list_buckets()
    except (BotoCoreError, ClientError):
        return False
    return True


def _folder(stack: ExitStack, name: str) -> Path:
    folder = tempfile.mkdtemp(prefix=f"pulse-{name}-")
    stack.callback(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


def _binary(name: str) -> str:
    """Return the path of a binary that is installed beside this Python."""
    found = shutil.which(name, path=os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]))
    if found is None:
        raise RuntimeError(f"{name} is not installed: pip install -e '.[dev]'")
    return found
