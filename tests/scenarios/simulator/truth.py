"""The truth: what the run must hold, told from the bucket's own changes and from what the actors did.

It shares no code with the library's log: it reads the JSON of each record as it lands, and keeps its own account.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from blake3 import blake3

from pulse_registry.format import patch_parts
from tests.scenarios.simulator.world import World

RUN = "run"
_KNOWN = re.compile(
    r"run/(?:head|home|mirror|log/[0-9]{12}\.json|log/snapshots/[0-9]{12}\.json|log/segments/[0-9]{12}-[0-9a-f]{64}\.safetensors"
    r"|layouts/[0-9a-f]{64}\.json|leases/[^/]+\.json"
    r"|clock"
    r"|outer/(?:head|log/[0-9]{12}\.json|log/snapshots/[0-9]{12}\.json|objects/(?:contribution|merged)/[^/]+\.safetensors"
    r"|objects/checkpoint/[0-9]{12}-[0-9a-f]{32}/(?:checkpoint-head|[0-9]{7}))"
    r"|objects/patch/[0-9]{12}-[0-9]{12}-[0-9a-f]{32}(?:\.safetensors|/patch-head|/[0-9]{5})"
    r"|objects/files/[0-9a-f]{64}"
    r"|objects/keyframe/[0-9]{12}-[0-9a-f]{32}/model(?:-[0-9]{5}-of-[0-9]{5}\.safetensors|\.safetensors\.index\.json))"
)
_RECORD = re.compile(r"run/log/([0-9]{12})\.json")
_FOREVER = re.compile(r"run/(?:(?:outer/)?(?:head|log/[0-9]{12}\.json)|layouts/.*)")
_MUTABLE = re.compile(r"run/(?:(?:outer/)?head|home|leases/.*|clock)")
_ENTRY = struct.Struct("<I4xI4x32s32x")
"""Of the directory in a patch's head: number, bytes and BLAKE3 of a group."""
_ROUNDED_S = 1.0
"""The store's clock tells whole seconds."""
Json = dict[str, Any]


@dataclass(slots=True)
class Pushed:
    """A state that a trainer handed over: its cells, and which layout they have."""

    kind: int
    bits: bytes


@dataclass(slots=True)
class Version:
    """A version that counts."""

    number: int
    record: Json
    state: Pushed
    write_id: str
    retired_at: float | None = None


@dataclass(slots=True)
class Named:
    """An object that a record which counts has named."""

    ref: Json
    owner: str
    live: bool = True
    retired_at: float = 0.0


@dataclass(slots=True)
class RouteGraph:
    """Live patches and keyframes, by the keys that name them: a keyframe by its index, a patch in parts by its head."""

    patches: dict[str, Json] = field(default_factory=dict)
    keyframes: dict[str, Json] = field(default_factory=dict)


class Truth:
    """The harness' own fold of the log, with every invariant that can be seen from the bucket.

    Attributes:
        grace: seconds for which what was retired stays, by the store's clock.
        versions: those that count, in order.
        records: how many there are.
        epoch: the newest term.
    """

    def __init__(self, world: World, grace: float) -> None:
        self.world = world
        self.grace = grace
        self.versions: list[Version] = []
        self.records = 0
        self.epoch = 0
        self.tags: dict[str, int] = {}
        self.edges = RouteGraph()
        self.check: Callable[[Json, bool], None] | None = None
        self.counts: dict[str, int] = {}
        self.leases: Callable[[], Iterator[tuple[Json, float]]] = lambda: iter(())
        self.get: Callable[[str], bytes | None] = lambda key: None
        self._pushed: list[tuple[Pushed, str]] = []
        self._landed_as: dict[int, int] = {}
        self._began: dict[str, float] = {}
        self._last: str | None = None
        self._named: dict[str, Named] = {}
        self._banned: set[str] = set()
        self._write_ids: set[str] = set()

    # -- what the actors tell --------------------------------------------------------------------------------------

    def pushed(self, state: Pushed, digest: str) -> int:
        """Take note of a state that is about to be pushed; return the number under which it must be."""
        self._pushed.append((state, digest))
        return len(self._pushed) - 1

    def acknowledged(self, number: int, version: int) -> None:
        """A push said that it is version ``version``."""
        if self._landed_as.get(number) != version:
            self.world.fail(f"push {number} was acknowledged as version {version}, and the log has it not so")

    def coalesced(self, number: int, version: int) -> None:
        """A push said that a later one took its place, as version ``version``."""
        self.count("coalesced")
        if number in self._landed_as or number >= max(
            (n for n, v in self._landed_as.items() if v == version), default=0
        ):
            self.world.fail(f"push {number} was acknowledged as a part of version {version}, and the log has it not so")

    def refused(self, number: int, why: str) -> None:
        """A push said that it has failed for good."""
        if number in self._landed_as:
            self.world.fail(f"push {number} was refused ({why}), and is version {self._landed_as[number]}")

    def missed(self, key: str) -> None:
        """A reader asked for an object that is not there."""
        named = self._named.get(key)
        if named is not None and (named.live or self.world.now - named.retired_at < self.grace - _ROUNDED_S):
            self.world.fail(f"{key} is gone, and readers may be on their way to it")

    def collecting(self, who: str) -> None:
        """A collector begins: what leases say now, it will see."""
        self._began[who] = self.world.now

    def count(self, what: str) -> None:
        """Count something that happened."""
        self.counts[what] = self.counts.get(what, 0) + 1

    # -- what happens in the bucket --------------------------------------------------------------------------------

    def put(self, who: str, key: str, data: bytes) -> None:
        """Look at a write before it takes effect."""
        if not _KNOWN.fullmatch(key):
            self.world.fail(f"{who} writes {key}, which is of no known kind")
        there = self.get(key)
        if there is not None and there != data and not _MUTABLE.fullmatch(key):
            self.world.fail(f"{who} overwrites {key}")
        if there is None and (found := _RECORD.fullmatch(key)):
            self._landed(who, int(found[1]), data)

    def deleted(self, who: str, key: str) -> None:
        """Look at a deletion before it takes effect."""
        self.count("deleted")
        if _FOREVER.fullmatch(key):
            self.world.fail(f"{who} deletes {key}")
        named = self._named.get(key)
        if named is None:
            return
        if named.live:
            self.world.fail(f"{who} deletes {key}, which is live: record names it for {named.owner}")
        if self.world.now - named.retired_at < self.grace - _ROUNDED_S:
            self.world.fail(f"{who} deletes {key} {self.world.now - named.retired_at:.1f} s after it was retired")

    def _landed(self, who: str, seq: int, data: bytes) -> None:
        """Fold a record that is about to be created."""
        document = json.loads(data)
        body = document["body"]
        if seq != self.records or body["seq"] != seq or body["previous"] != self._last:
            self.world.fail(f"{who} writes record {seq}, which does not follow record {self.records - 1}")
        if body["write_id"] in self._write_ids:
            self.world.fail(f"{who} writes record {seq}, whose write landed before")
        self._write_ids.add(body["write_id"])
        self.records, self._last = seq + 1, blake3(data).hexdigest()
        kind = body["kind"]
        self.count(kind)
        getattr(self, f"_fold_{kind}")(who, body)

    def _fold_epoch(self, who: str, body: Json) -> None:
        if body["epoch"] <= self.epoch:
            self.world.fail(f"{who} begins epoch {body['epoch']} after epoch {self.epoch}")
        self.epoch = body["epoch"]

    def _fold_commit(self, who: str, body: Json) -> None:
        if body["epoch"] < self.epoch:
            self.count("void")
            return
        number = body["version"]
        if number != len(self.versions):
            self.world.fail(f"{who} commits version {number} after version {len(self.versions) - 1}")
        push = body["metadata"]["push"]
        state, digest = self._pushed[push]
        if push in self._landed_as:
            self.world.fail(f"{who} commits push {push} twice, as versions {self._landed_as[push]} and {number}")
        if digest != body["digest"]:
            self.world.fail(f"{who} commits version {number} with a digest that is not that of its cells, {digest}")
        self._landed_as[push] = number
        self.versions.append(Version(number, body, state, body["write_id"]))
        self._name(who, body, [body["patch"]] if body["patch"] else [], [body["keyframe"]] if body["keyframe"] else [])

    def _fold_attach(self, who: str, body: Json) -> None:
        self._name(who, body, body["patches"], body["keyframes"])

    def _fold_tag(self, who: str, body: Json) -> None:
        if body["version"] is None:
            self.tags.pop(body["name"], None)
        else:
            self.tags[body["name"]] = body["version"]

    def _fold_retire(self, who: str, body: Json) -> None:
        for number in body["versions"]:
            if number == len(self.versions) - 1 or number in self.tags.values():
                self.world.fail(f"{who} retires version {number}, which is the newest or has a tag")
            if self.versions[number].retired_at is None:
                self.versions[number].retired_at = self.world.now
                self.count("retired")
        self._spare_leased(who, set(body["versions"]))
        for key in body["keys"]:
            self._ban(f"{RUN}/{key}")
        lost = sorted(self.live() - self._reachable())
        if lost:
            self.world.fail(f"{who} retires what leads to versions {lost[:5]}")

    def _spare_leased(self, who: str, versions: set[int]) -> None:
        """See that no version goes that a reader held before the collector began, and holds yet."""
        for lease, written in self.leases():
            alive = written < self._began.get(who, 0.0) - 1.0 and self.world.now < written + lease["seconds"]
            if alive and lease["version"] in versions and self.versions[lease["version"]].retired_at == self.world.now:
                self.world.fail(f"{who} retires version {lease['version']}, which {lease['reader']} holds")

    def _fold_delete(self, who: str, body: Json) -> None:
        pass

    def _fold_move(self, who: str, body: Json) -> None:
        self._fold_epoch(who, body)

    def _ban(self, key: str) -> None:
        """Retire an object, a keyframe as a whole; of an orphan, only its key."""
        named = self._named.get(key)
        if named is None:
            self.count("orphans")
            self._banned.add(key)
            return
        self.edges.patches.pop(named.owner, None)
        self.edges.keyframes.pop(named.owner, None)
        for part in self._named.values():
            if part.owner == named.owner and part.live:
                part.live, part.retired_at = False, self.world.now

    # -- what is named ---------------------------------------------------------------------------------------------

    def _name(self, who: str, body: Json, patches: list[Json], keyframes: list[Json]) -> None:
        for patch in patches:
            self._object(who, body, patch["object"], patch["object"]["key"])
            if "parts" in patch:
                self._parts(who, body, patch)
            self.edges.patches[patch["object"]["key"]] = patch
        for keyframe in keyframes:
            for ref in (keyframe["index"], *keyframe["shards"]):
                self._object(who, body, ref, keyframe["index"]["key"])
            self.edges.keyframes[keyframe["index"]["key"]] = keyframe
        ends = {patch[end] for patch in patches for end in ("base", "target")}
        for number in sorted(ends | {keyframe["version"] for keyframe in keyframes}):
            if self.versions[number].retired_at is not None:
                self.world.fail(f"{who} attaches an object to version {number}, which is retired")
        if self.check is not None:
            for made in patches:
                self.check(made, body["kind"] == "attach")
            for made in keyframes:
                self.check(made, body["kind"] == "attach")

    def _object(self, who: str, body: Json, ref: Json, owner: str) -> None:
        key = f"{RUN}/{ref['key']}"
        if key in self._named or key in self._banned:
            self.world.fail(f"{who}'s record {body['seq']} names {key}, which was named or retired before")
        data = self.get(key)
        if data is None:
            self.world.fail(f"{who}'s record {body['seq']} names {key}, which is not there")
        if len(data) != ref["size"] or blake3(data).hexdigest() != ref["blake3"]:
            self.world.fail(f"{who}'s record {body['seq']} names {key}, whose bytes are others")
        self._named[key] = Named(ref, owner)

    def _parts(self, who: str, body: Json, patch: Json) -> None:
        """See that all parts which the head of a patch names are there, group by group."""
        head = patch["object"]["key"]
        data = self.get(f"{RUN}/{head}") or b""
        at: dict[str, int] = {}
        for group, size, digest in _ENTRY.iter_unpack(data[8 + int.from_bytes(data[:8], "little") :]):
            key = f"{RUN}/{head.removesuffix('patch-head')}{group // patch_parts.PART_GROUPS:05d}"
            begin = at.setdefault(key, 0)
            at[key] += size
            if blake3((self.get(key) or b"")[begin : at[key]]).digest() != digest:
                self.world.fail(f"{who}'s record {body['seq']} names {key}, of which group {group} is another")
        for key, size in at.items():
            if len(self.get(key) or b"") != size:
                self.world.fail(f"{who}'s record {body['seq']} names {key}, which has not {size} bytes")
            self._named[key] = Named(patch["object"], head)
        if sum(at.values()) != patch["parts"]:
            self.world.fail(f"{who}'s record {body['seq']} names parts of {patch['parts']} bytes, {at}")

    # -- what follows ----------------------------------------------------------------------------------------------

    def live(self) -> set[int]:
        """Return the versions that can be asked for."""
        return {version.number for version in self.versions if version.retired_at is None}

    def state(self, number: int) -> Pushed:
        """Return what a version holds."""
        return self.versions[number].state

    def _reachable(self) -> set[int]:
        """Return the versions that live objects lead to, by way of versions that are not retired."""
        live = self.live()
        ways: dict[int, list[int]] = {}
        for patch in self.edges.patches.values():
            ways.setdefault(patch["base"], []).append(patch["target"])
            if patch["coder"] == "gap":
                ways.setdefault(patch["target"], []).append(patch["base"])
        found: set[int] = set()
        next_ones = [keyframe["version"] for keyframe in self.edges.keyframes.values()]
        while next_ones:
            version = next_ones.pop()
            if version in live and version not in found:
                found.add(version)
                next_ones += ways.get(version, ())
        return found

    def objects(self) -> Iterator[str]:
        """Yield the keys of all live objects."""
        return (key for key, named in self._named.items() if named.live)
