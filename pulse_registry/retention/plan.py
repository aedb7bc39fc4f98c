"""Retention plan: which versions stay and which are retired, by state, policy and leases. Pure: no I/O."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from pulse_registry.format.keys import reference_of, versions_of
from pulse_registry.log import RunState
from pulse_registry.retention.policy import RetentionPolicy
from pulse_registry.retention.reach import best_keyframe, best_keyframes, cheapest_tree, reachable, steps_to
from pulse_schemas import base_of


@dataclass(frozen=True, slots=True)
class Needs:
    """Inputs of a plan beside the log and the policy.

    Attributes:
        held: the versions that readers with a living lease hold, by reader.
        young_from: the first version that is too young to go by its age.
        orphans: keys that no record names, of objects that are old enough to be a crashed writer's.
        rounds: versions that outer rounds need, and why.
    """

    held: Mapping[str, int] = field(default_factory=dict)
    young_from: int = 0
    orphans: tuple[str, ...] = ()
    rounds: Mapping[int, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Plan:
    """Versions and objects to keep and to retire.

    Attributes:
        kept: every version that stays, and why.
        versions: those to retire.
        keys: of the live objects to retire with them; a keyframe by its index alone.
        objects: how many objects these are.
        nbytes: their bytes.
        orphans: keys to retire that no record names.
    """

    kept: Mapping[int, str]
    versions: tuple[int, ...]
    keys: tuple[str, ...]
    objects: int
    nbytes: int
    orphans: tuple[str, ...]

    @property
    def empty(self) -> bool:
        """Whether there is nothing to retire."""
        return not (self.versions or self.keys or self.orphans)


def plan_gc(state: RunState, policy: RetentionPolicy, needs: Needs) -> Plan:
    """Plan what to retire.

    Kept are the versions that the policy, a tag or a lease keeps; the versions on the cheapest route from nothing to
    each of them; and those on the cheapest route from a reader's version to the newest one. Of a kept version all
    objects stay that lead to other kept ones, so that the chain and the merged patches among them are whole; of several
    keyframes of one version the cheapest.
    """
    kept = _chosen(state, policy, needs)
    _keep_routes(state, kept, needs.held)
    versions = tuple(n for n in _numbers(state) if n not in kept and not state.is_retired(n))
    keys: list[str] = []
    objects = nbytes = 0
    for patch in state.patches:
        if patch.base not in kept or patch.target not in kept:
            keys.append(patch.object.key)
            objects += 1
            nbytes += patch.size
    best = best_keyframes(state)
    for keyframe in state.keyframes:
        if keyframe.version not in kept or best.get(keyframe.version) != keyframe:
            keys.append(keyframe.index.key)
            objects += 1 + len(keyframe.shards)
            nbytes += keyframe.size
    orphans = tuple(key for key in needs.orphans if is_orphan(state, key))
    return Plan(kept, versions, tuple(keys), objects, nbytes, orphans)


def is_orphan(state: RunState, key: str) -> bool:
    """Tell whether no record names an object, and one could yet: it must be retired before it is deleted."""
    return not state.is_live(key) and not state.is_retired_key(key) and can_be_named(state, key)


def can_be_named(state: RunState, key: str) -> bool:
    """Tell whether a record could name the key, as far as the versions go that are in it.

    A file of a shared base can be named once, for ever.
    """
    if (base := base_of(key)) is not None:
        return base not in state.bases
    versions = versions_of(key)
    return bool(versions) and all(v >= len(state.versions) or not state.is_retired(v) for v in versions)


def is_garbage(state: RunState, key: str) -> bool:
    """Tell whether an object can be deleted for good: no record names it, and none can any more.

    A reference to a shared base can, once the base was retired.
    """
    if (base := reference_of(key)) is not None:
        return state.bases.get(base) is not None
    return not state.is_live(key) and (state.is_retired_key(key) or not can_be_named(state, key))


def harm(before: RunState, after: RunState, plan: Plan, held: Mapping[str, int]) -> str | None:
    """Return what a retirement would take away that must stay; None if nothing. It is asked before each is written.

    It goes by what can be reached, and knows nothing of how the plan was made.
    """
    gone = next((n for n in plan.kept if after.is_retired(n)), None)
    if gone is not None:
        return f"version {gone}, which is kept ({plan.kept[gone]}), would be retired"
    lost = (reachable(before) & plan.kept.keys()) - reachable(after)
    if lost:
        return f"version {min(lost)}, which is kept ({plan.kept[min(lost)]}), could not be restored any more"
    frame = next((n for n in plan.kept if best_keyframe(after, n) != best_keyframe(before, n)), None)
    if frame is not None:
        return f"the keyframe of version {frame}, which is kept ({plan.kept[frame]}), would be retired"
    haves = sorted(set(held.values()) & plan.kept.keys())
    now, then = _bytes_to_newest(before, haves), _bytes_to_newest(after, haves)
    for version in haves:
        if now.get(version) != then.get(version):
            return f"the route from version {version}, which a reader holds, to the newest would change"
    for patch in before.patches:
        if patch.base in plan.kept and patch.target in plan.kept and not after.is_live(patch.object.key):
            return f"{patch.object.key}, a patch between two versions that are kept, would be retired"
    return None


def _bytes_to_newest(state: RunState, haves: Sequence[int]) -> dict[int, int]:
    """Return what the route to the newest version fetches, from each of some versions from which there is one."""
    newest = len(state.versions) - 1
    steps = steps_to(state, newest, haves)
    known = {newest: 0}
    for version in haves:
        way, here = [], version
        while here not in known and here in steps:
            way.append(here)
            here = steps[here].target
        for at in reversed(way):
            known[at] = steps[at].nbytes + known[steps[at].target]
    return known


def _numbers(state: RunState) -> Iterator[int]:
    return (entry.version for entry in state.versions)


def _chosen(state: RunState, policy: RetentionPolicy, needs: Needs) -> dict[int, str]:
    """Return the versions that are kept for their own sake, and why."""
    newest = len(state.versions) - 1
    kept = {newest: "the newest"} if newest >= 0 else {}

    def keep(version: int, why: str) -> None:
        if version <= newest and not state.is_retired(version):
            kept.setdefault(version, why)

    for name, version in state.tags.items():
        keep(version, f"tag {name}")
    for reader, version in needs.held.items():
        keep(version, f"held by {reader}")
    for version, why in needs.rounds.items():
        keep(version, why)
    for version in _numbers(state):
        if version > newest - policy.keep_last:
            keep(version, f"one of the last {policy.keep_last}")
        elif version >= needs.young_from:
            keep(version, "young")
        elif policy.keep_every is not None and version % policy.keep_every == 0:
            keep(version, f"every {policy.keep_every}th")
    return kept


def _keep_routes(state: RunState, kept: dict[int, str], held: Mapping[str, int]) -> None:
    """Keep the routes to the versions kept, from nothing and from the versions that readers hold."""
    newest = len(state.versions) - 1
    haves = sorted({version for version in held.values() if version in kept})
    steps, passed = steps_to(state, newest, haves), set[int]()
    for version in haves:
        here = version
        while (step := steps.get(here)) is not None and step.target not in passed:  # from there on, routes are one
            here = step.target
            passed.add(here)
            kept.setdefault(here, f"on the route from version {version}, which a reader holds")
    tree = cheapest_tree(state)
    for version in sorted(kept):
        for at in tree.route_to(version) if version in tree.before else ():
            if at != version and at in kept:
                break  # the rest of the route is its own, and is kept with it
            kept.setdefault(at, f"on the route to version {version}")
