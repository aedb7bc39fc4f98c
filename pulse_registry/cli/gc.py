"""``pulse gc``: retires versions by a policy, and deletes what was retired long enough ago."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from typing import Annotated, Any

import typer

from pulse_registry.cli.options import AllowHttp, Json, Root, Run, SigningKeyFile, Token, Trusted, parse_duration
from pulse_registry.cli.output import print_json, print_table, size
from pulse_registry.cli.session import Access, open_session
from pulse_registry.quoting import say
from pulse_registry.retention import GcResult, RetentionPolicy

_DEFAULT = RetentionPolicy()


def gc(
    root: Root,
    run: Run,
    keep_last: Annotated[int, typer.Option(metavar="N", help="Keep the newest N versions.")] = _DEFAULT.keep_last,
    keep_every: Annotated[int | None, typer.Option(metavar="K", help="Keep each version that K divides.")] = None,
    keep_for: Annotated[str, typer.Option(metavar="TIME", help="Keep versions younger than this.")] = "24h",
    grace: Annotated[str, typer.Option(metavar="TIME", help="Delete what was retired longer ago than this.")] = "1h",
    orphans: Annotated[
        str, typer.Option(metavar="TIME", help="Take what no record names for a crashed writer's after so long.")
    ] = "24h",
    delete: Annotated[
        bool, typer.Option("--delete", "--yes", help="Do it. Without this, only the plan is shown.")
    ] = False,
    token: Token = None,
    allow_http: AllowHttp = False,
    trust: Trusted = None,
    signing_key: SigningKeyFile = None,
    json_output: Json = False,
) -> None:
    """Show what a policy would retire and delete; with --delete, do it. TIME is 90s, 15m, 12h, 7d or 2w.

    Versions with a tag, those that readers hold, and all that leads to what is kept stay in any case.
    """
    policy = RetentionPolicy(
        keep_last=keep_last,
        keep_every=keep_every,
        keep_seconds=parse_duration(keep_for).total_seconds(),
        grace_seconds=parse_duration(grace).total_seconds(),
        orphan_seconds=parse_duration(orphans).total_seconds(),
    )
    with open_session(Access(root, token, allow_http, trust, signing_key), run, title="gc", quiet=True) as session:
        found = session.registry.gc(policy, dry_run=not delete)
    if json_output:
        print_json(_document(found))
    else:
        _print(found, run, grace)


def _document(found: GcResult) -> dict[str, Any]:
    plan = found.plan
    return {
        "dry_run": found.dry_run,
        "kept": [{"version": version, "why": why} for version, why in sorted(plan.kept.items())],
        "held": dict(found.held),
        "retired": {"versions": list(plan.versions), "objects": plan.objects, "bytes": plan.nbytes},
        "orphans": {"objects": len(plan.orphans), "bytes": found.orphan_bytes},
        "deleted": found.deleted,
        "waiting": found.waiting,
        "snapshots": found.snapshots,
        "leases": found.leases,
        "more": found.more,
        "rounds": None if found.rounds is None else asdict(found.rounds),
    }


def _print(found: GcResult, run: str, grace: str) -> None:
    plan, would = found.plan, "would be " if found.dry_run else ""
    say(f"run {run}: {len(plan.kept):,} versions stay, {len(found.held):,} readers hold one")
    print_table(("versions", "why they stay"), [(count, why) for why, count in _reasons(plan.kept.values())])
    say(f"{len(plan.versions):,} versions {would}retired{_span(plan.versions)}")
    say(f"{plan.objects:,} objects of {size(plan.nbytes)} {would}retired with them")
    say(f"{len(plan.orphans):,} orphans of {size(found.orphan_bytes)} {would}retired: no record names them")
    say(f"{found.deleted:,} objects {would}deleted, retired over {grace} ago; {found.waiting:,} more wait for that")
    say(f"{found.snapshots:,} old snapshots and {found.leases:,} leases that ran out {would}deleted")
    if (rounds := found.rounds) is not None:
        upto = f" up to round {rounds.round}" if rounds.round else ""
        say(f"outer rounds: {rounds.retired:,} objects{upto} {would}retired: two checkpoints follow them")
        say(
            f"outer rounds: {rounds.deleted:,} objects {would}deleted, {rounds.orphans:,} of which no record names; "
            f"{rounds.waiting:,} more wait; {rounds.snapshots:,} old snapshots"
        )
    if found.more:
        say("there is more than one run takes: run it again")
    if found.dry_run:
        say("nothing was done; --delete does it")


def _reasons(reasons: Any) -> list[tuple[str, int]]:
    """Return how many versions stay for what, the greatest number first."""
    kinds = Counter("on the route to one of these" if why.startswith("on the route") else why for why in reasons)
    return kinds.most_common(20)


def _span(versions: tuple[int, ...]) -> str:
    return f", from {versions[0]} to {versions[-1]}" if versions else ""
