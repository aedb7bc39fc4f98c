"""A bucket of a local SeaweedFS: a real S3 server, with keys of its own, on the loopback."""

from __future__ import annotations

import json
import os
import secrets
import socket
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pulse_registry.demo.program import Start
from pulse_registry.process.private_files import new_file

NAME: Final = "policies"
_PORTS: Final = (
    "s3.port",
    "s3.port.grpc",
    "master.port",
    "master.port.grpc",
    "volume.port",
    "volume.port.grpc",
    "filer.port",
    "filer.port.grpc",
)


@dataclass(frozen=True, slots=True)
class Bucket:
    """Where the registry is.

    Attributes:
        endpoint: of the server.
        environment: the keys, as all S3 clients read them.
    """

    endpoint: str
    environment: Mapping[str, str]

    @property
    def url(self) -> str:
        """Return the registry's root."""
        return f"s3://{NAME}?endpoint_url={self.endpoint}&region=us-east-1&addressing_style=path"

    def ready(self) -> bool:
        """Make the bucket if the server answers by now, and lets no one in without the keys; tell whether it is."""
        import boto3  # type: ignore[import-untyped]
        from botocore import UNSIGNED  # type: ignore[import-untyped]
        from botocore.config import Config  # type: ignore[import-untyped]
        from botocore.exceptions import BotoCoreError, ClientError  # type: ignore[import-untyped]

        def client(**config: Any) -> Any:
            once = Config(retries={"total_max_attempts": 1}, s3={"addressing_style": "path"}, **config)
            return boto3.client(
                "s3",
                endpoint_url=self.endpoint,
                region_name="us-east-1",
                aws_access_key_id=self.environment["AWS_ACCESS_KEY_ID"],
                aws_secret_access_key=self.environment["AWS_SECRET_ACCESS_KEY"],
                config=once,
            )

        try:
            client(signature_version=UNSIGNED).list_buckets()
            return False  # it has not read its keys yet
        except ClientError:
            pass
        except BotoCoreError:
            return False
        try:
            client().create_bucket(Bucket=NAME)
        except (BotoCoreError, ClientError):
            return False
        return True


def start_bucket(start: Start, folder: Path, short: str) -> Bucket:
    """Start the server over a folder; it is not ready yet.

    Args:
        start: starts its program.
        folder: for what is stored; it is made.
        short: a folder with a short path, for sockets.
    """
    folder.mkdir()
    keys = {"accessKey": secrets.token_hex(8), "secretKey": secrets.token_hex(20)}
    identity = {"name": "demo", "credentials": [keys], "actions": ["Admin", "Read", "Write", "List", "Tagging"]}
    config = folder / "s3.json"
    with open(new_file(config), "w", encoding="utf-8") as file:
        json.dump({"identities": [identity]}, file)
    ports = dict(zip(_PORTS, free_ports(len(_PORTS)), strict=True))
    command = [
        Path(sys.executable).with_name("weed"),
        "server",
        "-s3",
        f"-dir={folder}",
        "-ip=127.0.0.1",
        "-ip.bind=127.0.0.1",
        *(f"-{name}={port}" for name, port in ports.items()),
        "-s3.port.iceberg=0",
        "-s3.port.lance=0",
        f"-s3.config={config}",
        "-master.telemetry=false",
        "-master.volumeSizeLimitMB=1024",
    ]
    start("bucket", command, {"GOMEMLIMIT": "700MiB", "TMPDIR": short})  # sockets go to TMPDIR
    environment = {
        "AWS_ACCESS_KEY_ID": keys["accessKey"],
        "AWS_SECRET_ACCESS_KEY": keys["secretKey"],
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
        "AWS_EC2_METADATA_DISABLED": "true",
    }
    return Bucket(f"http://127.0.0.1:{ports['s3.port']}", environment)


def free_ports(number: int) -> list[int]:
    """Return ports of the loopback that are free now; another process may take one before it is used."""
    with ExitStack() as stack:
        found = []
        for _ in range(number):
            listener = stack.enter_context(socket.socket())
            listener.bind(("127.0.0.1", 0))
            found.append(int(listener.getsockname()[1]))
        return found
