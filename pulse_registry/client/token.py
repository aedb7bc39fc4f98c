"""A caller's token, and where it may go: over TLS, or to this very machine, unless the caller says otherwise."""

from __future__ import annotations

import re
from ipaddress import ip_address
from typing import Final
from urllib.parse import urlsplit

from pulse_registry.errors import InvalidArgument
from pulse_registry.process import environment

_LONGEST: Final = 1024
_TOKEN: Final = re.compile(rf"[A-Za-z0-9._~+/=-]{{1,{_LONGEST}}}")
_YES: Final = ("1", "true", "yes", "on")
_NO: Final = ("", "0", "false", "no", "off")


def check_token(url: str, token: str, *, allow_http: bool) -> None:
    """Check that a token is one, and that it may be sent to a service.

    Args:
        url: of the service, which is valid.
        token: of the caller.
        allow_http: it may go in clear to another machine.

    Raises:
        InvalidArgument: it has other characters than tokens have, or would go in clear; the message does not hold it.
    """
    if not _TOKEN.fullmatch(token):
        raise InvalidArgument(f"the token is not one that `pulse token new` makes: {_fault(token)}")
    if not (allow_http or url.startswith("https://") or is_loopback(url)):
        raise InvalidArgument(
            f"{url}: a token that goes over http:// can be read on its way: use https://, or, where nobody listens, "
            f"allow_http=True, --allow-http or {environment.ALLOW_HTTP.name}=1"
        )


def _fault(token: str) -> str:
    """Return what is wrong with a token that is none, and what to do; nothing of the token itself."""
    if not token.strip():
        return "it is empty"
    if token != token.strip():
        return "it begins or ends with a space or a newline, perhaps that of the file it comes from: take that away"
    if re.search(r"\s", token):
        return "it has a space or a newline within: give the token alone, without 'Bearer' and on one line"
    if token[0] in "\"'" or token[-1] in "\"'":
        return "it has quotation marks around it: take them away"
    if len(token) > _LONGEST:
        return f"it has more than {_LONGEST:,} characters"
    return "it has characters that no token has: letters of ASCII, digits and . _ ~ + / = - are in them"


def is_loopback(url: str) -> bool:
    """Tell whether a URL's host is this machine, by its name alone: nothing is looked up."""
    host = urlsplit(url).hostname or ""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def http_allowed(said: str) -> bool:
    """Return what PULSE_ALLOW_HTTP says.

    Raises:
        InvalidArgument: neither yes nor no.
    """
    if said.lower() in _YES:
        return True
    if said.lower() in _NO:
        return False
    raise InvalidArgument(f"{environment.ALLOW_HTTP.name} is 1 or 0, and not {said!r}")
