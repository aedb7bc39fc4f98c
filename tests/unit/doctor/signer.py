"""A small object server whose URLs are signed, and which can leave out one part of the checking at a time."""

from __future__ import annotations

import base64
import hashlib
import hmac
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Literal
from urllib.parse import parse_qs, unquote, urlsplit

from pulse_registry.errors import AlreadyExists, NotFound
from pulse_registry.store import Presigner, SignedPut, Store, UploadedPart, WrapperStore

Leak = Literal["none", "unreadable", "range", "signature", "key", "expiry", "taken", "bytes", "checksum", "condition"]
_SECRET = b"a test's secret"
_SIGNED = ("content-length", "if-none-match", "x-amz-checksum-sha256")


def _signature(method: str, path: str, expires: str, headers: dict[str, str], leak: Leak) -> str:
    parts = [method, "" if leak == "key" else path, expires]
    if method == "PUT":
        left_out = {"checksum": ("content-length", "x-amz-checksum-sha256"), "condition": ("if-none-match",)}.get(
            leak, ()
        )
        parts += [f"{name}:{headers.get(name, '')}" for name in _SIGNED if name not in left_out]
    return hmac.new(_SECRET, "\n".join(parts).encode(), hashlib.sha256).hexdigest()


class SigningStore(WrapperStore):
    """A store that signs URLs for a server at `base`."""

    def __init__(self, store: Store, base: str, leak: Leak, now: Callable[[], float]) -> None:
        super().__init__(store)
        self._base = base
        self._leak: Leak = leak
        self._now = now

    def presigner(self) -> Presigner:
        return self

    def presign(self, key: str, expires_s: int) -> str:
        return self._url("GET", key, expires_s, {})

    def presign_put(self, key: str, size: int, sha256: str, expires_s: int) -> SignedPut:
        checksum = base64.b64encode(bytes.fromhex(sha256)).decode()
        headers = {"content-length": str(size), "if-none-match": "*", "x-amz-checksum-sha256": checksum}
        return SignedPut(self._url("PUT", key, expires_s, headers), headers)

    def begin_parts(self, key: str) -> str:
        raise NotImplementedError

    def presign_part(self, key: str, upload_id: str, number: int, size: int, sha256: str, expires_s: int) -> SignedPut:
        raise NotImplementedError

    def finish_parts(self, key: str, upload_id: str, parts: Sequence[UploadedPart]) -> None:
        raise NotImplementedError

    def abort_parts(self, key: str, upload_id: str) -> None:
        raise NotImplementedError

    def _url(self, method: str, key: str, expires_s: int, headers: dict[str, str]) -> str:
        expires = str(self._now() + expires_s)
        signature = _signature(method, f"/{key}", expires, headers, self._leak)
        return f"{self._base}/{key}?expires={expires}&X-Amz-Signature={signature}"


def _handler(store: Store, leak: Leak, now: Callable[[], float]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: object) -> None:
            pass

        def do_GET(self) -> None:
            key = self._allowed()
            if key is None:
                return
            try:
                data = store.get(key)
            except NotFound:
                self._answer(404)
                return
            if leak == "unreadable":
                data = data[1:]
            span = self.headers.get("Range")
            if span and leak != "range":
                start, _, stop = span.removeprefix("bytes=").partition("-")
                self._answer(206, data[int(start) : int(stop) + 1])
            else:
                self._answer(200, data)

        def do_PUT(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            key = self._allowed()
            if key is None:
                return
            digest = base64.b64encode(hashlib.sha256(body).digest()).decode()
            if leak != "bytes" and digest != self.headers.get("x-amz-checksum-sha256"):
                self._answer(400)
                return
            conditional = self.headers.get("If-None-Match") == "*" and leak != "taken"
            try:
                store.put(key, body, if_absent=conditional)
            except AlreadyExists:
                self._answer(412)
                return
            self._answer(200)

        def _allowed(self) -> str | None:
            url = urlsplit(self.path)
            query = {name: values[0] for name, values in parse_qs(url.query).items()}
            headers = {name.lower(): value for name, value in self.headers.items()}
            signature = _signature(self.command, url.path, query["expires"], headers, leak)
            good = leak == "signature" or hmac.compare_digest(signature, query["X-Amz-Signature"])
            if good and (leak == "expiry" or now() <= float(query["expires"])):
                return unquote(url.path[1:])
            self._answer(403)
            return None

        def _answer(self, status: int, body: bytes = b"") -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    return Handler


@contextmanager
def signing_store(store: Store, leak: Leak, now: Callable[[], float] = time.time) -> Iterator[SigningStore]:
    """Serve a store's objects by signed URLs; `leak` says what the server does not check."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(store, leak, now))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield SigningStore(store, f"http://127.0.0.1:{server.server_address[1]}", leak, now)
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
