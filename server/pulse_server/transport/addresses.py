"""Client addresses by which limits are kept: an IPv4 address, or the /64 of an IPv6 one."""

from __future__ import annotations

import ipaddress
from typing import Final

_LONGEST: Final = 64
"""Letters that are looked at: a proxy that hands on what its clients say of themselves may be told anything."""


def network(address: str) -> str:
    """Return whose an address is: of IPv6, the /64 that one host may choose from; of what is none, its beginning."""
    if ":" not in address:
        return address[:_LONGEST]
    try:
        found = ipaddress.IPv6Address(address)
    except ValueError:
        return address[:_LONGEST]
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return f"{ipaddress.IPv6Address(int(found) >> 64 << 64)}/64"
