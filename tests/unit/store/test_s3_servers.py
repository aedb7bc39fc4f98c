"""The S3 servers of the tests: what they promise to the other tests."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from botocore.exceptions import ClientError

from tests.support.servers import S3Server
from tests.support.waiting import until

_STARTER = """
import time
from tests.support import servers
with servers.rclone() as server:
    print(server.pid, flush=True)
    time.sleep(600)
"""


@pytest.mark.parametrize("name", ["seaweedfs", "rclone"])
def test_a_server_knows_its_own_keys_only(name: str, request: pytest.FixtureRequest) -> None:
    server: S3Server = request.getfixturevalue(name)
    bucket = server.new_bucket()
    server.client().put_object(Bucket=bucket.name, Key="key", Body=b"data")
    stranger = S3Server(name, server.endpoint, secret_key="another")
    with pytest.raises(ClientError, match="SignatureDoesNotMatch"):
        stranger.client().get_object(Bucket=bucket.name, Key="key")
    bucket.remove()


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="asks the Linux kernel to do it")
def test_a_server_ends_with_a_process_that_is_killed() -> None:
    root = Path(__file__).parents[3]
    with subprocess.Popen([sys.executable, "-c", _STARTER], stdout=subprocess.PIPE, text=True, cwd=root) as starter:
        assert starter.stdout is not None
        server = int(starter.stdout.readline())
        os.kill(server, 0)
        starter.kill()
    until(lambda: not _runs(server))


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
