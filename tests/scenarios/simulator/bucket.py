"""The bucket in memory, and each process' way to it, on which all goes wrong that can."""

from __future__ import annotations

import functools
from bisect import bisect_right, insort
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, TypeVar

from pulse_registry.errors import AlreadyExists, CorruptObject, NotFound, PulseError, StoreUnavailable
from pulse_registry.store import Body, body_views
from pulse_registry.store.base import MOST_WHOLE_BYTES, Store, Verb
from pulse_registry.store.checks import ByteRange, check_whole
from tests.scenarios.simulator.weather import Weather
from tests.scenarios.simulator.world import Crash, World

if TYPE_CHECKING:
    from tests.scenarios.simulator.truth import Truth

T = TypeVar("T")
_PAGE = 24
_OLD_HINTS = 6


@dataclass(slots=True)
class Stored:
    """An object and when it was written, by the store's clock."""

    data: bytes
    modified: float


class Bucket:
    """Objects by key. Each verb takes effect at once; ``truth`` looks at every effect as it happens.

    Attributes:
        life: grows when all processes and requests die that work with it.
        away: whether it answers nobody but who takes care of it.
    """

    def __init__(self, world: World, truth: Truth, url: str = "sim://bucket") -> None:
        self.world, self.url = world, url
        self.life, self.away = 0, False
        self.objects: dict[str, Stored] = {}
        self.hints: list[bytes] = []
        self._keys: list[str] = []
        self._truth = truth

    def get(self, key: str, byte_range: ByteRange | None, max_bytes: int = MOST_WHOLE_BYTES) -> bytes:
        """Return an object's bytes, or some of them."""
        found = self.objects.get(key)
        if found is None:
            self._truth.missed(key)
            raise NotFound(f"there is no {key!r}")
        if byte_range is None:
            check_whole(key, "sim://bucket", len(found.data), max_bytes)
            return found.data
        start, stop = byte_range
        if stop > len(found.data):
            raise CorruptObject(f"{key!r} ends before {stop}")
        return found.data[start:stop]

    def put(self, who: str, key: str, data: bytes, if_absent: bool) -> None:
        """Write an object."""
        if if_absent and key in self.objects:
            raise AlreadyExists(f"{key!r} is taken")
        self._truth.put(who, key, data)
        if key not in self.objects:
            insort(self._keys, key)
        self.objects[key] = Stored(data, self.world.now)
        if key.endswith("/head"):
            self.hints = [*self.hints[1 - _OLD_HINTS :], data]

    def plant(self, key: str, data: bytes) -> None:
        """Write an object as somebody does who keeps to no rule: the truth does not hear of it."""
        if key not in self.objects:
            insort(self._keys, key)
        self.objects[key] = Stored(data, self.world.now)

    def close(self) -> None:
        """Lose it: all who work with it die, and what they have under way."""
        self.life, self.away = self.life + 1, True

    def wipe(self) -> None:
        """Remove everything, as an operator does: the truth does not hear of it."""
        self.objects.clear()
        self._keys.clear()

    def delete(self, who: str, key: str) -> None:
        """Remove an object."""
        if key in self.objects:
            self._truth.deleted(who, key)
            del self.objects[key]
            del self._keys[bisect_right(self._keys, key) - 1]

    def page(self, prefix: str, after: str) -> list[str]:
        """Return the next keys, a page of them."""
        at = bisect_right(self._keys, after)
        if prefix > after:
            at = bisect_right(self._keys, prefix)
            if at and self._keys[at - 1] == prefix:
                at -= 1
        page = self._keys[at : at + _PAGE]
        return [key for key in page if key.startswith(prefix)]


@dataclass(slots=True)
class Link(Store):
    """A store as one process sees it. Every call is a turn; what goes wrong with it is drawn.

    Attributes:
        who: the process, for the trace.
        dead: it crashed: its remains reach nothing any more.
        damaged: how many answers were damaged on their way.
        cares: whether it reaches a bucket that is away.
    """

    bucket: Bucket
    who: str
    weather: Weather
    url: str = "sim://bucket"
    dead: bool = False
    damaged: int = 0
    cares: bool = False
    _flip: bool = field(default=False, init=False)
    _life: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self._life = self.bucket.life

    def get(self, key: str, byte_range: ByteRange | None = None, *, max_bytes: int = MOST_WHOLE_BYTES) -> bytes:
        """See Store.get."""
        data = self._turn("get", key, lambda: self.bucket.get(key, byte_range, max_bytes))
        if key.endswith("/head"):
            data = self._hint(data)
        if self._flip and data:
            self.damaged += 1
            at = self.bucket.world.rng.randrange(8 * len(data))
            changed = bytearray(data)
            changed[at // 8] ^= 1 << at % 8
            data = bytes(changed)
        return data

    def put(self, key: str, data: Body, *, if_absent: bool = False) -> None:
        """See Store.put."""
        whole = b"".join(body_views(data))
        self._turn("put", key, lambda: self.bucket.put(self.who, key, whole, if_absent))

    def exists(self, key: str) -> bool:
        """See Store.exists."""
        return self._turn("exists", key, lambda: key in self.bucket.objects)

    def size(self, key: str) -> int:
        """See Store.size."""
        return self._turn("size", key, lambda: len(self.bucket.get(key, None)))

    def list(self, prefix: str, after: str | None = None) -> Iterator[str]:
        """See Store.list: page by page, each as the bucket is then."""
        last = after or ""
        while True:
            page = self._turn("list", prefix, functools.partial(self.bucket.page, prefix, last))
            yield from page
            if not page:
                return
            last = page[-1]

    def delete(self, key: str) -> None:
        """See Store.delete."""
        self._turn("delete", key, lambda: self.bucket.delete(self.who, key))

    def modified(self, key: str) -> datetime:
        """Return when the object was written, by the store's clock."""

        def look() -> datetime:
            self.bucket.get(key, None)
            world = self.bucket.world
            return world.moment(self.bucket.objects[key].modified - world.now).replace(microsecond=0)

        return self._turn("size", key, look)

    def _turn(self, verb: Verb, key: str, act: Callable[[], T]) -> T:
        """Let time pass, act, and let time pass, with whatever goes wrong on the way."""
        world, weather = self.bucket.world, self.weather
        if self.dead or world.over:
            raise Crash
        world.operations += 1
        drawn = world.rng.random()
        self._flip = False
        world.pause(drawn * weather.latency)
        if self.bucket.away and not self.cares:
            raise StoreUnavailable(f"{verb} of {key!r}: nobody answers")
        if drawn > weather.trouble:
            try:
                result = self._act(act)
            except PulseError as error:
                world.note(f"{self.who} {verb} {key} {type(error).__name__}")
                raise
            world.note(f"{self.who} {verb} {key}")
            return result
        return self._trouble(drawn, verb, key, act)

    def _trouble(self, drawn: float, verb: Verb, key: str, act: Callable[[], T]) -> T:
        world, weather = self.bucket.world, self.weather
        early = world.rng.random() < 0.5
        kinds = (weather.crash, weather.fail, weather.lose, weather.straggle, weather.stall, weather.flip)
        kind = 0
        while kind < len(kinds) - 1 and drawn > kinds[kind]:
            drawn -= kinds[kind]
            kind += 1
        name = ("crash", "fail", "lose", "straggle", "stall", "flip")[kind]
        world.note(f"{self.who} {verb} {key} {name}{' early' if early else ''}")
        if name == "crash" and early:
            self._die()
        if name == "fail" or (name == "straggle" and verb not in ("put", "delete")):
            raise StoreUnavailable(f"{verb} of {key!r}: not done")
        if name == "straggle":
            world.later(world.rng.choice((1.0, 60.0, 3600.0)) * world.rng.random(), lambda: self._straggle(key, act))
            raise StoreUnavailable(f"{verb} of {key!r}: no answer yet")
        stalls = name == "stall" and weather.stalled in (None, verb)
        if stalls and early:
            self._stall()
        result = self._act(act)
        if name == "crash":
            self._die()
        if name == "lose":
            raise StoreUnavailable(f"{verb} of {key!r}: its answer was lost")
        if stalls and not early:
            self._stall()
        self._flip = name == "flip" and verb == "get"
        return result

    def _act(self, act: Callable[[], T]) -> T:
        if self._life != self.bucket.life:
            raise Crash
        return act()

    def _straggle(self, key: str, act: Callable[[], object]) -> None:
        if self._life != self.bucket.life:
            return
        try:
            act()
        except PulseError as error:
            self.bucket.world.note(f"{self.who} late {key} {type(error).__name__}")
        else:
            self.bucket.world.note(f"{self.who} late {key}")

    def _stall(self) -> None:
        world = self.bucket.world
        world.pause(world.rng.choice((60.0, 600.0, 7200.0)) * (0.5 + world.rng.random()))

    def _die(self) -> None:
        self.dead = True
        raise Crash

    def _hint(self, data: bytes) -> bytes:
        world = self.bucket.world
        if world.rng.random() >= self.weather.stale:
            return data
        drawn = world.rng.random()
        if drawn < 0.1:
            raise NotFound("there is no hint")
        return b"nonsense" if drawn < 0.2 else world.rng.choice(self.bucket.hints)
