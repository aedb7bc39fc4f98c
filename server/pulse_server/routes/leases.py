"""Leases: what readers ask to be kept. They are in the bucket, where the collector looks for them.

They lie there under their whole names (`pulse_server.auth.names`), so that no token reaches the leases of another one.
"""

from __future__ import annotations

from typing import Annotated, Final

from fastapi import Request
from fastapi.responses import Response

from pulse_registry.errors import InvalidArgument
from pulse_registry.format import keys
from pulse_schemas import Lease, SchemaError
from pulse_server.auth.access import Principal
from pulse_server.auth.names import split_name, whole_name
from pulse_server.routes import examples
from pulse_server.routes.dependencies import ReadRun
from pulse_server.routes.operation import answer, operations, problem, raw_body
from pulse_server.routes.params import segment
from pulse_server.transport.answers import no_content

router = operations("leases")
Reader = Annotated[str, segment("a reader's own name", "[A-Za-z0-9][A-Za-z0-9._:-]{0,159}", examples.READER)]
_NAME_LENGTH: Final = 160
_SHORTEST_S: Final = 3600.0
"""A lease counts for so long at least: it lies in the bucket until the collector comes, however soon it has run out."""


@router.put(
    "/v1/runs/{run}/leases/{reader}",
    status_code=204,
    summary="Take or renew a lease",
    description=(
        "The body is a sealed `Lease` of this run and this reader. While it is alive, its version is kept, and a route "
        "from it to the newest one. It is stored for the reader `<token id>:<reader>`: another token's lease of the "
        "same name is another lease. An admin's token gives full names."
    ),
    response_class=Response,
    responses={
        204: answer("The lease is stored; its time begins."),
        400: problem("The body is not a sealed lease, or one of another reader or run."),
        404: problem("There is no such run."),
    },
    openapi_extra=raw_body(),
)
async def take_lease(request: Request, run: ReadRun, reader: Reader) -> Response:
    """Store a lease, in its token's space of names."""
    name, service, sealed = run.name, run.service, await request.body()
    await run.feed()
    try:
        lease = Lease.unseal(sealed)
    except SchemaError as error:
        raise InvalidArgument(f"run {name!r}: this is no sealed lease: {error}") from error
    if (lease.run, lease.reader) != (name, reader):
        raise InvalidArgument(f"run {name!r}: this is the lease of reader {lease.reader} of run {lease.run!r}")
    whole = _whole_name(run.who, reader)
    if whole != reader:
        sealed = lease.model_copy(update={"reader": whole}).seal()
    service.leases.claim(run.who.id, (name, whole), len(sealed), max(lease.seconds, _SHORTEST_S))
    await service.call(service.store_of(name).put, keys.lease_key(whole), sealed)
    return no_content()


@router.delete(
    "/v1/runs/{run}/leases/{reader}",
    status_code=204,
    summary="Delete a lease",
    response_class=Response,
    responses={
        204: answer("The token has no lease of this name."),
        404: problem("There is no such run."),
    },
)
async def give_up_lease(run: ReadRun, reader: Reader) -> Response:
    """Delete a lease."""
    name, service = run.name, run.service
    await run.feed()
    whole = _whole_name(run.who, reader)
    await service.call(service.store_of(name).delete, keys.lease_key(whole))
    for token in {run.who.id, split_name(whole)[0]}:  # an admin's own, and whose it took away
        service.leases.release(token, (name, whole))
    return no_content()


def _whole_name(principal: Principal, reader: str) -> str:
    whole = whole_name(principal, reader)
    if len(whole) > _NAME_LENGTH:
        raise InvalidArgument(f"the reader's name {reader!r} is too long: {len(whole)} characters with its token's id")
    return whole
