"""``pulse countersign``: signs for records that readers refuse because no key that they pin has signed them."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from pulse_registry.cli.options import AllowHttp, Json, Root, Run, SigningKeyFile, Token, Trusted
from pulse_registry.cli.output import print_json, print_table
from pulse_registry.cli.session import Access, opened_store
from pulse_registry.options import Options
from pulse_registry.quoting import say
from pulse_registry.registry import Registry
from pulse_registry.signing import signer_of, trust_of
from pulse_registry.signing.countersigning import RefusedRecord
from pulse_schemas import (
    AttachRecord,
    CommitRecord,
    DeleteRecord,
    EpochRecord,
    MoveRecord,
    Record,
    RetireRecord,
    TagRecord,
)


def countersign(
    root: Root,
    run: Run,
    until: Annotated[
        str | None,
        typer.Argument(
            metavar="[RECORD]", help="As the list names it: sign for it, and for all in the list before it."
        ),
    ] = None,
    trust: Trusted = None,
    signing_key: SigningKeyFile = None,
    token: Token = None,
    allow_http: AllowHttp = False,
    json_output: Json = False,
) -> None:
    """List the records that readers with these pins refuse; with RECORD, sign for them.

    Whoever signs for a record is its author from then on: look at each, and find out who wrote it.
    """
    signer, pinned = signer_of(signing_key), trust_of(trust or None)
    with (
        opened_store(Access(root, token, allow_http)) as store,
        Registry(store, run, Options(signer=signer, trust=pinned)) as registry,
    ):
        found = registry.refused_records() if until is None else registry.countersign(until)
    if json_output:
        print_json([_document(refused) for refused in found])
        return
    if not found:
        say("readers with these pins refuse no record")
        return
    print_table(("record", "written", "what it does"), [_row(refused) for refused in found])
    if until is not None:
        say(f"{len(found):,} records countersigned: readers go on")
        return
    for why in dict.fromkeys(refused.why for refused in found[:3]):
        say(why)
    say(f"if all of them are yours: pulse countersign {found[-1].name}")


def _document(refused: RefusedRecord) -> dict[str, Any]:
    return {"name": refused.name, "why": refused.why, "record": refused.record.model_dump(mode="json")}


def _row(refused: RefusedRecord) -> tuple[int, str, str]:
    return refused.record.seq, refused.record.created_at, _does(refused.record)


def _does(record: Record) -> str:
    match record:
        case EpochRecord():
            return f"begins epoch {record.epoch} of {record.writer!r}"
        case CommitRecord():
            return f"commits version {record.version}, step {record.step}"
        case AttachRecord():
            return f"attaches {len(record.patches)} patches and {len(record.keyframes)} keyframes"
        case RetireRecord():
            return f"retires {len(record.versions)} versions and {len(record.keys)} objects"
        case DeleteRecord():
            return f"tells that what was retired up to record {record.until} is deleted"
        case TagRecord():
            what = "nothing" if record.version is None else f"version {record.version}"
            return f"lets tag {record.name} stand for {what}"
        case MoveRecord():
            return f"moves the run to {record.to}"
