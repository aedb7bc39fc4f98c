"""The bodies of the service's answers."""

from __future__ import annotations

from typing import Any, Literal, Self

import pulse_registry
from pulse_schemas import Schema
from pulse_schemas.base import Count, Digest, RunName


class Health(Schema):
    """The process answers."""

    status: Literal["ok"] = "ok"


class VersionBody(Schema):
    """One committed version; ``nbytes`` counts its stored objects, ``created_at`` is UTC."""

    version: Count
    step: int
    kind: str
    changed: Count
    cells: Count
    nbytes: Count
    digest: Digest
    created_at: str
    layout: str
    metadata: dict[str, Any]

    @classmethod
    def of(cls, version: pulse_registry.Version) -> Self:
        """Return the body that describes ``version``."""
        return cls(
            version=version.version,
            step=version.step,
            kind=version.kind,
            changed=version.changed,
            cells=version.cells,
            nbytes=version.nbytes,
            digest=version.digest,
            created_at=version.created_at,
            layout=version.layout,
            metadata=dict(version.metadata),
        )


class VersionList(Schema):
    """The versions of a run, oldest first."""

    run: RunName
    versions: tuple[VersionBody, ...]


class Problem(Schema):
    """A problem document (RFC 9457): what went wrong with one request."""

    type: str
    title: str
    status: int
    detail: str
    instance: str
