"""``pulse log``: the versions of a run."""

from __future__ import annotations

from pulse_registry.cli.options import Json, Root, Run
from pulse_registry.cli.output import print_json, print_table, size
from pulse_registry.cli.session import open_session


def log(root: Root, run: Run, json_output: Json = False) -> None:
    """List the run's versions, oldest first."""
    with open_session(root, run, title="log", quiet=json_output) as session:
        versions = session.registry.versions()
    if json_output:
        print_json(
            [
                {
                    "version": version.version,
                    "step": version.step,
                    "kind": version.kind,
                    "changed": version.changed,
                    "bytes": version.nbytes,
                    "created_at": version.created_at,
                    "digest": version.digest,
                }
                for version in versions
            ]
        )
        return
    print_table(
        ("version", "step", "kind", "changed", "bytes", "created at", "digest"),
        [(v.version, v.step, v.kind, v.changed, size(v.nbytes), v.created_at, v.digest) for v in versions],
    )
