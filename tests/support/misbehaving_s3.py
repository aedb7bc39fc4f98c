"""An S3 server that answers as a test says, and tells what it was asked."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ssl import SSLContext
from xml.sax.saxutils import escape

from tests.support.waiting import HANG_S


@dataclass(slots=True)
class Request:
    """A request as it came in; `answer` and `raw` send something back, `hold` waits until the test is over."""

    verb: str
    path: str
    headers: dict[str, str]
    body: bytes
    _handler: BaseHTTPRequestHandler
    _over: threading.Event

    @property
    def connection(self) -> int:
        """The client's port, which tells its connections apart."""
        return self._handler.client_address[1]

    def answer(self, status: int, body: bytes = b"", length: int | None = None, **headers: str) -> None:
        """Answer; `length` is what is said about the body, if that is not so."""
        self._handler.send_response(status)
        self._handler.send_header("Content-Length", str(len(body) if length is None else length))
        for name, value in headers.items():
            self._handler.send_header(name.replace("_", "-"), value)
        self._handler.end_headers()
        if self.verb != "HEAD":
            self.raw(body)

    def error(self, status: int, code: str, **headers: str) -> None:
        """Answer as S3 does when something is wrong."""
        self.answer(status, f"<Error><Code>{escape(code)}</Code><Message>why</Message></Error>".encode(), **headers)

    def begin(self, status: int) -> None:
        """Answer with a body of no known length, which ``raw`` sends, and the connection's end ends."""
        self._handler.send_response(status)
        self._handler.send_header("Connection", "close")
        self._handler.end_headers()
        self.drop()

    def raw(self, data: bytes) -> bool:
        """Send bytes as they are; tell whether somebody is there to take them."""
        try:
            self._handler.wfile.write(data)
            self._handler.wfile.flush()
        except OSError:
            return False
        return True

    def drop(self) -> None:
        """Close the connection."""
        self._handler.close_connection = True

    def hold(self, seconds: float | None = None) -> bool:
        """Wait, at most until the test is over; tell whether it is. Who held on for too long closes the connection."""
        over = self._over.wait(HANG_S if seconds is None else seconds)
        if seconds is None:
            self.drop()
        return over


@dataclass(slots=True)
class Misbehaving:
    """The server: each request gets the next answer of the script, the last one again and again."""

    url: str
    script: list[Callable[[Request], None]]
    seen: list[Request] = field(default_factory=list)


@contextmanager
def misbehaving(
    *script: Callable[[Request], None], reads_bodies: bool = True, tls: SSLContext | None = None
) -> Iterator[Misbehaving]:
    """Run a server for the time of a test, for ``https`` if it is given the means."""
    over, lock = threading.Event(), threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle_one_request(self) -> None:
            with suppress(ConnectionError):
                super().handle_one_request()

        def do_GET(self) -> None:
            length = int(self.headers.get("Content-Length", 0)) if reads_bodies else 0
            body = self.rfile.read(length)
            request = Request(self.command, self.path, dict(self.headers.items()), body, self, over)
            with lock:
                server.seen.append(request)
                step = server.script[min(len(server.seen), len(server.script)) - 1]
            step(request)

        do_PUT = do_HEAD = do_POST = do_DELETE = do_GET  # noqa: N815

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as listener:
        listener.daemon_threads = True
        if tls is not None:
            listener.socket = tls.wrap_socket(listener.socket, server_side=True)
        server = Misbehaving(f"{'http' if tls is None else 'https'}://127.0.0.1:{listener.server_port}", [*script])
        thread = threading.Thread(target=listener.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server
        finally:
            over.set()
            listener.shutdown()
            thread.join()
