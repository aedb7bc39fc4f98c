"""``pulse serve``: one process of the service, from its arguments to a clean end.

A stop (SIGTERM, SIGINT) releases those who wait at once, lets what was accepted finish, and takes less than ten
seconds.
"""

from __future__ import annotations

import asyncio
import gc
import ipaddress
import json
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

import uvicorn
from fastapi import FastAPI
from starlette.middleware.trustedhost import TrustedHostMiddleware

from pulse_registry.errors import InvalidArgument
from pulse_registry.process.environment import PREFIX, READ, names, strays
from pulse_server.app import create_app
from pulse_server.settings import Settings
from pulse_server.telemetry import logs
from pulse_server.transport.connection import bounded

_BACKLOG: Final = 4096
_GRACE_S: Final = 1.5
_OPEN_FILES: Final = 1 << 17
_ONE_ADDRESS: Final = 0.75
"""Of the files that may be open: the connections that one client address may have, so that others get in."""
_KEEP_ALIVE_S: Final = 75
"""Longer than proxies and clients keep an idle connection, so that none sends a request into one that is being shut."""
logger = logging.getLogger(__name__)


def serve(*, host: str, port: int, json_output: bool = False, **given: object) -> int:
    """Serve until a signal says to stop; return the process's exit code.

    Args:
        host: the address to listen on.
        port: the port; 0 for any free one.
        json_output: print where it listens as a JSON document.
        **given: settings that the environment does not decide; None leaves one to it.

    Raises:
        InvalidArgument: a setting is not valid, the address is taken or not of this machine, or the service is open to
            all and the address is not this machine's own.
    """
    settings = Settings.read(**{name: value for name, value in given.items() if value is not None})
    if settings.insecure_open and not is_loopback(host):
        raise InvalidArgument(
            f"--insecure-open lets whoever reaches {host} do everything: give it tokens, or --host 127.0.0.1"
        )
    app = create_app(settings)
    if settings.insecure_open:
        # A page of another site whose name leads to 127.0.0.1 must not get in. ("[": how starlette reads "[::1]:8080".)
        app.add_middleware(TrustedHostMiddleware, allowed_hosts=["localhost", "127.0.0.1", "[", host])
    with _listen(host, port) as listener:
        logs.configure(settings)
        _tell_strays()
        files = _allow_many_connections()
        # Behind a proxy all come from its address: to share them out is its part.
        most = sys.maxsize if settings.trusted_proxies else max(1, int(files * _ONE_ADDRESS))
        server = Server(app, settings, where=_where(listener), json_output=json_output, max_connections=most)
        try:
            server.run(sockets=[listener])
        except SystemExit:  # it did not start, and has logged why; its code means something else here
            return 1
        return 0


def is_loopback(host: str) -> bool:
    """Tell whether an address is reached from this machine alone; a name other than localhost may be any machine's."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class Server(uvicorn.Server):
    """uvicorn, but that a stop first releases those who wait, ends in bounded time, and is no failure."""

    def __init__(
        self, app: FastAPI, settings: Settings, *, where: str, json_output: bool, max_connections: int = sys.maxsize
    ) -> None:
        """Make a server; ``where`` is its address as it is printed, ``max_connections`` those of one client address."""
        super().__init__(
            uvicorn.Config(
                app,
                http=bounded(
                    max_header_bytes=settings.max_header_bytes,
                    pace_s=settings.body_seconds,
                    max_connections=max_connections,
                    max_unsent_bytes=settings.max_buffered_bytes,
                ),
                loop="uvloop",
                ws="none",
                lifespan="on",
                access_log=False,  # ours has no query strings in it
                log_config=None,
                server_header=False,
                timeout_keep_alive=_KEEP_ALIVE_S,
                proxy_headers=bool(settings.trusted_proxies),
                forwarded_allow_ips=settings.trusted_proxies or None,
                timeout_graceful_shutdown=max(1, int(settings.stop_seconds)),
            )
        )
        self._app, self._settings = app, settings
        self._where, self._json_output = where, json_output
        self._loop: asyncio.AbstractEventLoop | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, and then say where."""
        self._loop = asyncio.get_running_loop()
        await super().startup(sockets)
        _collect_less()
        _yield_sooner()
        if not self.should_exit:
            document = json.dumps({"url": self._where, "pid": os.getpid()})
            print(document if self._json_output else f"serving at {self._where}", flush=True)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Begin to stop; a second Ctrl-C does not wait for anybody."""
        if self.should_exit:
            self.force_exit = self.force_exit or sig == signal.SIGINT
            return
        self.should_exit = True
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._app.state.service.stop_waiting)
        watchdog = threading.Timer(self._settings.stop_seconds + _GRACE_S, self._give_up)
        watchdog.daemon = True
        watchdog.start()

    def _give_up(self) -> None:
        # A call of the store that never returns keeps its thread, and Python waits for threads.
        logger.error("stopped by force: something was still under way after %g s", self._settings.stop_seconds)
        logs.flush()
        os._exit(1)


@contextmanager
def _listen(host: str, port: int) -> Iterator[socket.socket]:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family, backlog=_BACKLOG)
    except (OSError, OverflowError) as error:
        raise InvalidArgument(f"can't listen on {host} port {port}: {error}; choose others") from None
    with listener:
        yield listener


def _tell_strays() -> None:
    known = READ | {f"{PREFIX}{name.upper()}" for name in Settings.model_fields}
    for name, near in strays(names(), known).items():
        hint = f"is it {near}?" if near else "docs/how-to/deploy-the-service.md lists the settings"
        logger.warning("%s in the environment is no setting: %s", name, hint)


def _where(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _collect_less() -> None:
    """Keep Python's garbage collector out of the way of thousands of waiters.

    With its defaults, parking and waking 4,000 of them takes over 2 s of collections, single ones over half a second
    long; so, under 0.2 s in all. What was loaded by now is never garbage.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)


def _yield_sooner() -> None:
    """Let the event loop have its turn sooner, where threads of ours reckon: Python's 5 ms add up with their number."""
    sys.setswitchinterval(0.001)


def _allow_many_connections() -> int:
    """Raise the bound on open files, as far as the system allows: each worker that waits is one. Return what it is."""
    try:
        import resource
    except ImportError:  # no POSIX
        return _OPEN_FILES
    now, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = max(now, _OPEN_FILES if most == resource.RLIM_INFINITY else min(most, _OPEN_FILES))
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))
    return wanted
