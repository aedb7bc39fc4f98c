"""The page at `/`: static files and the headers that keep them to themselves.

The page holds no data: its scripts ask the API, with the token that the reader types in. Every address in it is
relative, so that it works below a proxy's path prefix, and nothing comes from elsewhere: no internet is needed.
"""

from __future__ import annotations

import gzip
import hashlib
import re
from dataclasses import dataclass
from functools import lru_cache
from http import HTTPStatus
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from fastapi import APIRouter, Request
from fastapi.responses import Response

from pulse_registry.errors import NotFound

FOLDER: Final = Path(__file__).parent / "assets"
PLOTLY: Final = "plotly.min.js"

GZIP: Final = re.compile(r"(?:^|[,\s])gzip(?!\s*;\s*q=0(?:\.0*)?\s*(?:,|$))", re.ASCII)
"""Finds gzip among the codings that a client takes, unless it refuses just that with ``q=0``."""

MEDIA_TYPES: Final = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}

HEADERS: Final = {
    "Content-Security-Policy": "; ".join(
        (
            "default-src 'none'",
            "script-src 'self'",
            "style-src 'self' 'unsafe-inline'",  # plotly brings its own; scripts stay strict
            "img-src 'self'",
            "connect-src 'self'",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
        )
    ),
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
"""What each file is served with. A string from a trainer or a worker that gets past the scripts still can't run."""

router = APIRouter(include_in_schema=False)


@dataclass(frozen=True, slots=True)
class Asset:
    """A file of the page, as it is sent: plain, and compressed once for all."""

    content: bytes
    compressed: bytes
    etag: str
    media_type: str

    @classmethod
    def of(cls, content: bytes, media_type: str) -> Asset:
        """Return the asset that ``content`` makes; its ETag is its hash."""
        etag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
        return cls(content, gzip.compress(content, mtime=0), etag, media_type)


@router.api_route("/", methods=["GET", "HEAD"])
def index(request: Request) -> Response:
    """Serve the page."""
    return _answer(request, _index(), "no-cache")


@router.api_route("/assets/{name}", methods=["GET", "HEAD"])
def asset(name: str, request: Request) -> Response:
    """Serve one of the page's files; plotly's script, whose address names its content, for a year."""
    if name == PLOTLY:
        return _answer(request, _plotly(), "public, max-age=31536000, immutable")
    if name not in _names():
        raise NotFound(f"the page has no file {name!r}")
    return _answer(request, _file(name), "no-cache")


def _answer(request: Request, asset: Asset, cache_control: str) -> Response:
    headers = {**HEADERS, "Cache-Control": cache_control, "ETag": asset.etag, "Vary": "Accept-Encoding"}
    known = {tag.strip().removeprefix("W/") for tag in request.headers.get("if-none-match", "").split(",")}
    if asset.etag in known:
        return Response(status_code=HTTPStatus.NOT_MODIFIED, headers=headers)
    if not GZIP.search(request.headers.get("accept-encoding", "")):
        return Response(asset.content, headers=headers, media_type=asset.media_type)
    return Response(asset.compressed, headers=headers | {"Content-Encoding": "gzip"}, media_type=asset.media_type)


@lru_cache(maxsize=1)
def _names() -> frozenset[str]:
    return frozenset(path.name for path in FOLDER.iterdir() if path.suffix in MEDIA_TYPES and path.suffix != ".html")


@lru_cache(maxsize=64)
def _file(name: str) -> Asset:
    path = FOLDER / name
    return Asset.of(path.read_bytes(), MEDIA_TYPES[path.suffix])


@lru_cache(maxsize=1)
def _index() -> Asset:
    try:
        address = f"assets/{PLOTLY}?v={_plotly().etag.strip(chr(34))}"
    except NotFound:
        address = ""  # the page says so in the plots' place
    text = (FOLDER / "index.html").read_text(encoding="utf-8")
    return Asset.of(text.replace("{plotly}", address).encode(), MEDIA_TYPES[".html"])


@lru_cache(maxsize=1)
def _plotly() -> Asset:
    # Found, not imported: the package's Python takes a second to load and is not needed.
    spec = find_spec("plotly")
    if spec is None or spec.origin is None:
        raise NotFound("the plots' script is not installed; pip install 'pulse-registry[server]'")
    path = Path(spec.origin).parent / "package_data" / PLOTLY
    if not path.is_file():
        raise NotFound(f"the installed plotly has no {PLOTLY}; pip install 'plotly>=6'")
    return Asset.of(path.read_bytes(), MEDIA_TYPES[".js"])
