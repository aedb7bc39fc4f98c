"""Listing a bucket in code-point order, whatever order its store has.

S3 lists keys by their bytes. Stores that keep files in folders (SeaweedFS) list a folder's names instead, so that
`a/b` comes before `a-`. So we list folder by folder, and sort: what comes is in an order that both kinds share, but for
a few entries, which are held back until it is sure that none comes before them.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pulse_registry.errors import StoreUnavailable
from pulse_registry.store.keys import key_problem
from pulse_registry.store.s3.errors import translated

_STALLED_PAGES = 100
"""So many pages in a row without a new name are no listing that ends."""


@dataclass(frozen=True, slots=True)
class Listing:
    """How a bucket is listed: by which client, and how many entries at a time."""

    client: Any
    bucket: str
    url: str
    page_keys: int = 1000

    def keys(self, prefix: str, after: str) -> Iterator[str]:
        """Iterate over the keys that begin with a string and come after another one, in code-point order.

        Pages are asked for as they are needed: one for each folder on the way, and for each ``page_keys`` of it.

        Raises:
            As Store.list.
        """
        if after and not after.startswith(prefix):
            if after > prefix:
                return  # all keys that begin so come before it
            after = ""
        for entry in self._entries(prefix, after):
            if not entry.endswith("/"):
                yield entry
            else:
                yield from self.keys(entry, after if after.startswith(entry) else "")

    def folders(self, prefix: str, after: str) -> Iterator[str]:
        """Iterate over the folders behind a prefix that come after a string: a page for each ``page_keys`` names.

        Raises:
            As Store.list.
        """
        inside = after.startswith(prefix)
        if after > prefix and not inside:
            return
        for entry in self._entries(prefix, after if inside else ""):
            if entry.endswith("/") and entry > after:
                yield entry

    def _entries(self, prefix: str, after: str) -> Iterator[str]:
        """Iterate over the files and folders (with a slash at the end) of one level; of files those after a string."""
        name = after[len(prefix) :].partition("/")[0]
        # Stores with folders begin after the name of the last folder; what is in it may still be asked for.
        held = [f"{folder}/" for folder in _folders_at(prefix, name) if self._has_keys(f"{folder}/")]
        heapq.heapify(held)
        last = ""
        for page, bound in self._pages(prefix, _sendable(prefix + name) if name else ""):
            for entry in page:
                heapq.heappush(held, entry)
            while held and (bound is None or held[0] <= bound):
                entry = heapq.heappop(held)
                if entry == prefix and entry.endswith("/"):
                    continue  # the folder that is listed: some stores have an entry for it
                if entry > last and entry.startswith(prefix) and _may_hold(entry, after):
                    if "/" in entry[len(prefix) : -1]:
                        raise self._refused(prefix, "the store answers with what lies in a folder below")
                    last = entry
                    yield entry

    def _pages(self, prefix: str, start: str) -> Iterator[tuple[list[str], str | None]]:
        """Iterate over pages of one level, each with the name after which all further ones come, None for the last."""
        more: dict[str, Any] = {"StartAfter": start} if start else {}
        before, stalled = "", 0
        while True:
            with translated("list", prefix, self.url):
                page = self.client.list_objects_v2(
                    Bucket=self.bucket, Prefix=prefix, Delimiter="/", MaxKeys=self.page_keys, **more
                )
            entries = [str(found["Key"]) for found in page.get("Contents", ())]
            entries += [str(found["Prefix"]) for found in page.get("CommonPrefixes", ())]
            if not page.get("IsTruncated"):
                yield entries, None
                return
            token, bound = page.get("NextContinuationToken"), max((e.removesuffix("/") for e in entries), default="")
            stalled = stalled + 1 if bound <= before else 0
            if not token or token == more.get("ContinuationToken") or not bound or stalled > _STALLED_PAGES:
                raise self._refused(prefix, "the store does not go on")
            before = max(before, bound)
            yield entries, bound
            more = {"ContinuationToken": token}

    def _refused(self, prefix: str, why: str) -> StoreUnavailable:
        return StoreUnavailable(f"could not list {prefix!r} in {self.url}: {why}; try again")

    def _has_keys(self, folder: str) -> bool:
        with translated("list", folder, self.url):
            page = self.client.list_objects_v2(Bucket=self.bucket, Prefix=folder, MaxKeys=1)
        return bool(page.get("Contents"))


def _folders_at(prefix: str, name: str) -> Iterator[str]:
    """Iterate over the folders of a level whose names do not come after a name though keys in them may."""
    if not name:
        return
    for length in range(len(name) + 1):
        follows = name[length : length + 1]  # '/' would come next in a key of the folder
        if follows < "/" and key_problem(prefix + name[:length]) is None:
            yield prefix + name[:length]


def _may_hold(entry: str, after: str) -> bool:
    """Tell whether an entry is a key after a string, or a folder that may have one; others are no keys of ours."""
    if key_problem(entry.removesuffix("/")) is not None:
        return False
    return entry > after or (entry.endswith("/") and after.startswith(entry))


def _sendable(text: str) -> str:
    """Return the longest beginning of a string that a request can hold: a listing that starts there misses nothing."""
    for at, character in enumerate(text):
        if not (character.isprintable() or character.isspace()) or character < " ":
            return text[:at]
    return text
