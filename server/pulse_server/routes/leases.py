"""Leases: what readers ask to be kept. They are in the bucket, where the collector looks for them.

They lie there under their whole names (`pulse_server.auth.names`), so that no token reaches the leases of another one.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from fastapi import Request
from fastapi.responses import Response

from pulse_registry.errors import InvalidArgument
from pulse_registry.format import keys
from pulse_schemas import Lease, SchemaError
from pulse_server.auth.access import Principal, requires
from pulse_server.auth.names import split_name, whole_name
from pulse_server.routes import examples
from pulse_server.routes.common import RUN, feed_of
from pulse_server.routes.operations import Operation, Operations, Says
from pulse_server.routes.params import Parameter
from pulse_server.transport.answers import no_content

if TYPE_CHECKING:
    from pulse_server.service import Service

OPERATIONS: Final = Operations("leases")
_READER: Final = Parameter(
    "reader", "a reader's own name", re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,159}", re.ASCII), examples.READER
)
_NAME_LENGTH: Final = 160
_SHORTEST_S: Final = 3600.0
"""A lease counts for so long at least: it lies in the bucket until the collector comes, however soon it has run out."""


@OPERATIONS.add(
    Operation(
        "PUT",
        "/v1/runs/{run}/leases/{reader}",
        "read",
        "Take or renew a lease",
        {204: Says("It is stored; its time begins.")},
        "The body is a sealed `Lease` of this run and this reader. While it is alive, the version that it names is "
        "kept, and a way from it to the newest one. It is stored as that of `<token id>:<reader>`: another token's "
        "lease of the same name is another lease. An admin's token gives whole names.",
        (RUN, _READER),
        body="application/json",
        refuses={400: "It is no sealed lease, or that of another reader or run.", 404: "There is no such run."},
    )
)
async def take_lease(request: Request, service: Service) -> Response:
    """Store a lease, in its token's space of names."""
    run, reader, sealed = RUN(request), _READER(request), await request.body()
    await feed_of(request, service)
    try:
        lease = Lease.unseal(sealed)
    except SchemaError as error:
        raise InvalidArgument(f"run {run!r}: this is no sealed lease: {error}") from error
    if (lease.run, lease.reader) != (run, reader):
        raise InvalidArgument(f"run {run!r}: this is the lease of reader {lease.reader} of run {lease.run!r}")
    principal = requires("read").check(request)
    whole = _whole_name(principal, reader)
    if whole != reader:
        sealed = lease.model_copy(update={"reader": whole}).seal()
    service.leases.claim(principal.id, (run, whole), len(sealed), max(lease.seconds, _SHORTEST_S))
    await service.call(service.store_of(run).put, keys.lease_key(whole), sealed)
    return no_content()


@OPERATIONS.add(
    Operation(
        "DELETE",
        "/v1/runs/{run}/leases/{reader}",
        "read",
        "Give up a lease",
        {204: Says("The token has none of this name, or none any more.")},
        parameters=(RUN, _READER),
        refuses={404: "There is no such run."},
    )
)
async def give_up_lease(request: Request, service: Service) -> Response:
    """Delete a lease."""
    run, reader = RUN(request), _READER(request)
    await feed_of(request, service)
    principal = requires("read").check(request)
    whole = _whole_name(principal, reader)
    await service.call(service.store_of(run).delete, keys.lease_key(whole))
    for token in {principal.id, split_name(whole)[0]}:  # an admin's own, and whose it took away
        service.leases.release(token, (run, whole))
    return no_content()


def _whole_name(principal: Principal, reader: str) -> str:
    whole = whole_name(principal, reader)
    if len(whole) > _NAME_LENGTH:
        raise InvalidArgument(f"the reader's name {reader!r} is too long: {len(whole)} characters with its token's id")
    return whole
