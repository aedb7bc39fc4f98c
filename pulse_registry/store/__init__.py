"""Stores: where the registry keeps its objects, behind one small base class."""

from __future__ import annotations

from pulse_registry.store.base import MOST_WHOLE_BYTES, Store, Verb
from pulse_registry.store.body import Body, Buffer, Stream, body_size, body_views
from pulse_registry.store.checks import ByteRange
from pulse_registry.store.create import create
from pulse_registry.store.file import FileStore
from pulse_registry.store.gateway import Gateway
from pulse_registry.store.keys import check_key, check_prefix
from pulse_registry.store.memory import MemoryStore
from pulse_registry.store.open import open_store
from pulse_registry.store.presigner import Presigner, SignedPut, UploadedPart
from pulse_registry.store.s3.location import S3Location
from pulse_registry.store.s3.store import S3Store
from pulse_registry.store.streaming_body import Growing
from pulse_registry.store.wrappers.prefix import PrefixStore
from pulse_registry.store.wrappers.retry import RetryPolicy, RetryStore
from pulse_registry.store.wrappers.run import RunStore
from pulse_registry.store.wrappers.wrapper import WrapperStore

__all__ = [
    "MOST_WHOLE_BYTES",
    "Body",
    "Buffer",
    "ByteRange",
    "FileStore",
    "Gateway",
    "Growing",
    "MemoryStore",
    "PrefixStore",
    "Presigner",
    "RetryPolicy",
    "RetryStore",
    "RunStore",
    "S3Location",
    "S3Store",
    "SignedPut",
    "Store",
    "Stream",
    "UploadedPart",
    "Verb",
    "WrapperStore",
    "body_size",
    "body_views",
    "check_key",
    "check_prefix",
    "create",
    "open_store",
]
