"""Errors of the kernels: bytes that can't be decoded, and backends that are not available."""

from __future__ import annotations


class CodecError(ValueError):
    """Coded bytes break a rule of the format; nothing was written."""


class RankError(CodecError):
    """A ``class`` stream points past the cells of a class: it was coded against other base cells."""


class BackendUnavailable(RuntimeError):
    """An explicitly chosen backend can't run here; the message says why."""
