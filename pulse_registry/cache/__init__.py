"""The node's cache: several processes of one host download each object once."""

from __future__ import annotations

from pulse_registry.cache.folder import CacheFolder
from pulse_registry.cache.option import cache_folder
from pulse_registry.cache.store import CachedStore, expect, read_piece

__all__ = ["CacheFolder", "CachedStore", "cache_folder", "expect", "read_piece"]
