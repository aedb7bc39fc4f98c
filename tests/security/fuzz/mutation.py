"""Changes that know the structure of what they change: bytes, integers in binary data, and JSON."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

from pulse_schemas import canonical_json

INTERESTING = (0, 1, 2, 3, 4, 7, 8, 15, 16, 31, 32, 63, 64, 127, 128, 255, 256, 4095, 4096, 65535, 65536)
HUGE = (2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**42, 2**53, 2**62, 2**63 - 1, 2**63, 2**64 - 1, 2**64, 10**100)
STRANGE: tuple[Any, ...] = (
    None,
    True,
    False,
    "",
    "latest",
    "0",
    "\x00",
    "é" * 300,
    "../x",
    [],
    {},
    0.5,
    -0.0,
    1e308,
    -1,
)


def mutate_bytes(data: bytes, rng: random.Random) -> bytes:
    """Flip, set, remove, insert, repeat or move a few bytes."""
    out = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        at = rng.randrange(len(out) + 1)
        match rng.randrange(7):
            case 0 if at < len(out):
                out[at] ^= 1 << rng.randrange(8)
            case 1 if at < len(out):
                out[at] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))
            case 2:
                del out[at : at + rng.choice((1, 2, 4, 8, 80))]
            case 3:
                out[at:at] = rng.randbytes(rng.choice((1, 2, 4, 8)))
            case 4:
                out[at:at] = out[at : at + rng.choice((1, 2, 4, 8, 80))]
            case 5 if len(out) >= at + 8:
                size = rng.choice((1, 2, 4, 8))
                value = rng.choice((*INTERESTING, *HUGE)) % 256**size
                out[at : at + size] = value.to_bytes(size, "little")
            case _:
                other = rng.randrange(len(out) + 1)
                size = rng.choice((1, 2, 4, 16))
                part = out[other : other + size]
                out[at : at + len(part)] = part
    return bytes(out)


def mutate_document(data: bytes, rng: random.Random) -> bytes:
    """Change JSON as a value, and mostly write it in canonical form again; now and then change its text."""
    if rng.randrange(8) == 0:
        return mutate_bytes(data, rng)
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return mutate_bytes(data, rng)
    for _ in range(rng.choice((1, 1, 2, 3))):
        value = mutate_value(value, rng)
    try:
        return canonical_json(value)
    except (ValueError, RecursionError):
        return data


def mutate_value(value: Any, rng: random.Random) -> Any:
    """Return JSON in which one node is another one."""
    nodes = _nodes(value)
    if not nodes or rng.randrange(40) == 0:
        return _other(value, rng, [value])
    holder, key = rng.choice(nodes)
    found = [holder[key] for holder, key in nodes]
    match rng.randrange(8):
        case 0:
            del holder[key]
        case 1 if isinstance(holder, dict):
            holder[rng.choice(("format", "kind", "extra", key + "x", key[:-1]))] = holder.pop(key)
        case 1:
            holder.insert(key, holder[key])
        case 2 if isinstance(holder, list):
            rng.shuffle(holder)
        case 2:
            holder[rng.choice(("extra", "", "tied", "tags", "metadata"))] = rng.choice(found)
        case _:
            holder[key] = _other(holder[key], rng, found)
    return value


def _nodes(value: Any) -> list[tuple[Any, Any]]:
    """Return (container, key) of every node below the root."""
    found: list[tuple[Any, Any]] = []
    waiting = [value]
    while waiting and len(found) < 10_000:
        node = waiting.pop()
        items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
        for key, item in items:
            found.append((node, key))
            waiting.append(item)
    return found


def _other(value: Any, rng: random.Random, found: list[Any]) -> Any:
    if rng.randrange(6) == 0:
        return rng.choice((*STRANGE, *HUGE, *INTERESTING))
    if rng.randrange(6) == 0:
        return rng.choice(found)  # shared nodes are written twice: canonical JSON knows no references
    match value:
        case bool() | None:
            return rng.choice((None, True, False, 0))
        case int():
            return rng.choice((value + 1, value - 1, -value, value * 2, value ^ 1 << rng.randrange(64), value + 2**32))
        case float():
            return rng.choice((value + 1, int(value) if abs(value) < 1e18 else 0, -value))
        case str():
            return _text(value, rng)
        case list():
            return value[: rng.randrange(len(value) + 1)] * rng.choice((1, 1, 2, 50))
        case dict():
            return dict(list(value.items())[: rng.randrange(len(value) + 1)])
    return nested(rng.choice((2, 33, 200)), rng)


def _text(text: str, rng: random.Random) -> str:
    at = rng.randrange(len(text) + 1)
    changed: tuple[Callable[[], str], ...] = (
        lambda: text[:at] + rng.choice("0aA/.é\x7f\n\u2028٣") + text[at + 1 :],
        lambda: text[:at],
        lambda: text[at:],
        lambda: text + text,
        lambda: text.upper(),
        lambda: text + rng.choice(("\n", " ", "/", "/..", "\u0000")),
        lambda: text[:at] + str(rng.choice(INTERESTING)) + text[at:],
    )
    return rng.choice(changed)()


def nested(depth: int, rng: random.Random) -> Any:
    """Return so many lists or objects inside one another."""
    value: Any = 1
    for _ in range(depth):
        value = [value] if rng.randrange(2) else {"a": value}
    return value
