"""Staging: route -> fetch -> decode -> verify; everything about a pull but the change of the live weights.

The legs of a route are fetched, checked, decoded and joined, group by group, each as soon as it is there, into one
update that is verified against the base at hand and against the version's state digest. The live weights are only
read: they may be serving. ``Staged.apply`` then changes them in one pass of idempotent stores.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace

from pulse_registry.context import Context
from pulse_registry.errors import BaseMismatch, CorruptObject, InvalidArgument, LayoutMismatch, NotFound
from pulse_registry.format.delta_step import WrongBase
from pulse_registry.format.sparse_update import HostUpdate, ModelUpdate, SparseUpdate
from pulse_registry.pull.chained_cells import DENSE_SHARE, ChainedCells, WholeChain, windows
from pulse_registry.pull.destination import Destination, HostDestination, Source
from pulse_registry.pull.failover import Routes
from pulse_registry.pull.fetch import begin_patches
from pulse_registry.pull.given import Given
from pulse_registry.pull.keyframe_cells import FetchedKeyframe, KeyframeCells
from pulse_registry.pull.request import PullRequest
from pulse_registry.pull.route import Leg, Route
from pulse_registry.pull.sliced_destination import SlicedDestination, SliceDigests, host_weights
from pulse_registry.pull.sliced_keyframe import SlicedKeyframe
from pulse_registry.pull.staged_cells import StagedCells, by_group
from pulse_registry.pull.ties import first_torn
from pulse_registry.timeline import Timeline
from pulse_registry.weights.arrays import Weights
from pulse_registry.weights.cell_space import Group
from pulse_registry.weights.digest import Digest
from pulse_schemas import KeyframeRef


def stage_version(context: Context, request: PullRequest) -> StagedCells:
    """Stage a version by the cheapest route whose objects are whole; the weights are not changed, whatever happens.

    Raises:
        Gone: the version was retired.
        NotFound, CorruptObject: nothing leads there but by an object that is gone or damaged, or too many of them are;
            the first of these.
        BaseMismatch: the weights are not the version that they were taken for.
        UnsupportedFormat, StoreUnavailable: as the store and the formats.
    """
    if request.given is not None:
        return _stage_given(context, request, request.given)
    routes, timeline = Routes.of(context, request), request.timeline
    began = timeline.began
    while True:
        route = routes.cheapest()
        timeline.note("route", began)
        try:
            with ExitStack() as undo:
                keyframe = _fetch(context, request, route, undo)
                keyframe, update, delta = _decode(context, request, route, keyframe)
                staged = _verify(context, request, route, keyframe, update, delta)
                undo.pop_all()
            staged.avoided, staged.nbytes = routes.avoided, route.nbytes
            if isinstance(request.destination, SlicedDestination):
                staged.nbytes = _fetched_bytes(timeline)
            return staged
        except (NotFound, CorruptObject) as error:
            began = timeline.clock()
            routes.avoid(route, error)


def _stage_given(context: Context, request: PullRequest, given: Given) -> StagedCells:
    """Stage what another rank has staged whole, checked at the cells that are here.

    Raises:
        BaseMismatch: the slices are not the version that it starts from.
    """
    target, base = request.entry, request.base
    sources, keyframe = list[Source](), None
    if given.changes is None:
        keyframe = SlicedKeyframe(given.cells, 0) if given.cells is not None else None
    elif base is None or base.version != given.base:
        raise BaseMismatch(f"the slices do not hold version {given.base}, from which version {target.version} is given")
    else:
        delta = Digest.parse(target.digest) - Digest.parse(base.digest)
        leg = Leg("undo", base.version, target.version)  # in memory, without an object
        sources.append(Source(leg, given=given.changes, delta=delta))
    update, moved = _join(context, request, keyframe, sources)
    here = Route(given.base if keyframe is None else None, target.version, ())
    staged = _verify(context, request, here, keyframe, update, moved)
    staged.route, staged.nbytes = given.route, _fetched_bytes(request.timeline)
    return staged


def _fetched_bytes(timeline: Timeline) -> int:
    return sum(phase.nbytes for phase in timeline.phases() if phase.phase == "fetch")


def _fetch(context: Context, request: PullRequest, route: Route, undo: ExitStack) -> FetchedKeyframe | None:
    """Fetch a route's keyframe, if it begins with one."""
    legs, keyframe, timeline = route.legs, None, request.timeline
    with timeline.during("fetch"):
        if legs and legs[0].keyframe is not None:
            keyframe = _keyframe(context, request, legs[0].keyframe)
            undo.callback(keyframe.close)
            nbytes = keyframe.nbytes if isinstance(keyframe, SlicedKeyframe) else legs[0].nbytes
            timeline.note("fetch", timeline.clock(), nbytes=nbytes)
    return keyframe


def _keyframe(context: Context, request: PullRequest, ref: KeyframeRef) -> FetchedKeyframe:
    destination, fetching = request.destination, context.fetch_map
    if isinstance(destination, SlicedDestination):
        return SlicedKeyframe.fetch(context.store, destination.slices, ref, fetching)
    in_memory = context.in_memory or (request.new and isinstance(destination, HostDestination))
    store, stored = context.store, destination.stored
    return KeyframeCells.fetch(
        store, stored, ref, fetching, context.spool, in_memory=in_memory, backend=context.backend
    )


def _sources(context: Context, request: PullRequest, legs: Sequence[Leg]) -> list[Source]:
    """Return what legs that begin with those in memory change, patches with no more than their beginnings."""
    timeline = request.timeline
    refs = [leg.patch for leg in legs if leg.patch is not None]
    began = timeline.clock()
    state, stored = request.state, request.destination.stored
    head_only = isinstance(request.destination, SlicedDestination)
    found = begin_patches(
        context.store, state.run, stored, refs, context.fetch_map, head_only=head_only, early=request.early
    )
    timeline.note("fetch", began, nbytes=sum(patch.begun for patch in found))
    patches, steps = iter(found), iter(request.undo)

    def source(leg: Leg) -> Source:
        if leg.patch is not None:
            return Source(leg, next(patches))
        before, after = (Digest.parse(request.state.version(v).digest) for v in (leg.base or 0, leg.target))
        return Source(leg, step=next(steps).update, delta=after - before)

    return [source(leg) for leg in legs]


def _decode(
    context: Context, request: PullRequest, route: Route, keyframe: FetchedKeyframe | None
) -> tuple[FetchedKeyframe | None, ModelUpdate, Digest]:
    """Fetch and join what follows the keyframe, or the weights, checked at each cell.

    Returns:
        A keyframe, that of the route or what a long chain has made of it or of the weights; the update that comes on
        top of it, or of the weights; what patches have added to the state digest.
    """
    legs, destination = route.legs if keyframe is None else route.legs[1:], request.destination
    parts = list(windows(legs, destination.stored)) if isinstance(destination, HostDestination) else [legs]
    if len(parts) > 1:
        return _follow(context, request, parts, keyframe)
    return keyframe, *_join(context, request, keyframe, _sources(context, request, legs))


def _join(
    context: Context, request: PullRequest, keyframe: FetchedKeyframe | None, sources: Sequence[Source]
) -> tuple[ModelUpdate, Digest]:
    """Join sources to one update of the keyframe, or of the weights."""
    timeline, base = request.timeline, request.destination
    if keyframe is not None:
        base = _over(context, request, keyframe)
    timeline.note("decode", timeline.clock())  # a phase of every pull, even of one that has nothing to decode
    return base.join(sources, context.fetchers, timeline)


def _follow(
    context: Context, request: PullRequest, parts: Sequence[Sequence[Leg]], keyframe: FetchedKeyframe | None
) -> tuple[FetchedKeyframe | None, ModelUpdate, Digest]:
    """Follow a chain a few legs at a time, so that memory is bounded by the cells; see ``_decode``."""
    base = request.destination if keyframe is None else _over(context, request, keyframe)
    if not isinstance(base, HostDestination):
        raise TypeError("a chain is followed in host memory")
    chained, delta, first = ChainedCells(base.weights, context.backend), Digest(), parts[0][0].base
    for legs in parts:
        sources = _sources(context, request, legs)
        delta += base.follow(sources, first, context.fetchers, request.timeline, chained.follow)
    try:
        update = chained.update(context.map_)
    except WrongBase:
        raise BaseMismatch(
            f"the weights are not version {first}: they were changed while they were compared with what patches lead "
            "to. Nothing was changed; pull again"
        ) from None
    if update is not None:
        return keyframe, update, delta
    with request.timeline.during("verify"):
        start = _digest_of(context, keyframe) if keyframe is not None else request.base_digest
        if start is None:
            raise InvalidArgument("a route without a keyframe needs the base's digest")
        end = WholeChain(chained.whole(context.map_), start, in_memory=_adopted(request, keyframe))
    if keyframe is not None:
        keyframe.close()
    return end, HostUpdate(), delta


def _adopted(request: PullRequest, keyframe: FetchedKeyframe | None) -> bool:
    """Tell whether a keyframe's memory becomes that of the weights, which nobody has seen yet."""
    new = request.new and isinstance(request.destination, HostDestination)
    return new and keyframe is not None and keyframe.in_memory


def _digest_of(context: Context, keyframe: FetchedKeyframe) -> Digest:
    """Return the state digest of a keyframe: a pass over it, unless it was summed while it landed."""
    known = keyframe.known if isinstance(keyframe, KeyframeCells) else None
    return keyframe.weights.digest(context.backend, context.map_) if known is None else known


def _over(context: Context, request: PullRequest, keyframe: FetchedKeyframe) -> Destination:
    """Return a keyframe's cells as what the legs after it change."""
    cells = HostDestination(keyframe.weights, context.backend, context.pool)
    if not isinstance(request.destination, SlicedDestination):
        return cells
    destination = request.destination
    return SlicedDestination(cells, destination.slices, context.backend, context.pool, destination.speaks)


def _verify(
    context: Context,
    request: PullRequest,
    route: Route,
    keyframe: FetchedKeyframe | None,
    update: ModelUpdate,
    delta: Digest,
) -> StagedCells:
    """Compare the state digest that the route leads to with the committed one.

    Raises:
        CorruptObject: they differ.
    """
    destination = request.destination
    with request.timeline.during("verify"):
        staged = _staged(context, request, route, keyframe, update, delta)
        if staged.digest != Digest.parse(request.entry.digest):
            raise CorruptObject(
                f"version {route.target}: the route leads to state digest {staged.digest.hex()}, "
                f"{request.entry.digest} was committed; nothing was changed"
            )
        if isinstance(destination, SlicedDestination):
            staged.slices = _slice_digests(context, request, keyframe, update)
        weights = host_weights(destination)
        if weights is not None and weights.tied:
            _check_tied(weights, staged, route.target)
        if keyframe is not None and _adopted(request, keyframe) and isinstance(destination, HostDestination):
            destination.weights.adopt(keyframe.weights)
        if keyframe is not None and staged.keyframe is None:
            keyframe.close()
        return staged


def _staged(
    context: Context,
    request: PullRequest,
    route: Route,
    keyframe: FetchedKeyframe | None,
    update: ModelUpdate,
    delta: Digest,
) -> StagedCells:
    """Return what is to be stored, with the digest that it leads to."""
    destination, base = request.destination, request.base_digest
    if keyframe is None:
        if base is None:
            raise InvalidArgument("a route without a keyframe needs the base's digest")
        return StagedCells(context, destination, route, base + delta, update)
    if isinstance(keyframe, WholeChain):
        kept = None if keyframe.in_memory else keyframe
        return StagedCells(context, destination, route, keyframe.start + delta, update, kept, whole=True)
    if _adopted(request, keyframe):
        digest = _digest_of(context, keyframe)
        return StagedCells(context, destination, route, digest + delta, update, whole=True)
    digest, sparse = _against_keyframe(context, request, keyframe, update)
    if isinstance(
        destination, SlicedDestination
    ):  # what is not held is as it was committed, or the pull would not care
        first = route.legs[0].target if route.legs else route.target
        digest = Digest.parse(request.state.version(first).digest)
    if sparse is not None:
        return StagedCells(context, destination, route, digest + delta, sparse)
    return StagedCells(context, destination, route, digest + delta, update, keyframe, whole=True)


def _slice_digests(
    context: Context, request: PullRequest, keyframe: FetchedKeyframe | None, update: ModelUpdate
) -> SliceDigests | None:
    """Return the digests of the slices at the version."""
    destination = request.destination
    if not isinstance(destination, SlicedDestination):
        return None
    if keyframe is None:
        return None if destination.known is None else destination.moved(destination.known, update)
    over = _over(context, request, keyframe)
    return over.moved(over.digests(context.map_), update) if isinstance(over, SlicedDestination) else None


def count_share(request: PullRequest, staged: StagedCells, known: SliceDigests | None, speaks: frozenset[int]) -> None:
    """Count the share of slices in the state digest anew where it counts others than these.

    Args:
        request: of what was staged.
        staged: for slices.
        known: digests of what the weights hold.
        speaks: numbers of the slices to count.

    Raises:
        BaseMismatch: the weights had to be passed over, and are not what they were when they were last written.
    """
    destination, context = request.destination, staged.context
    if not isinstance(destination, SlicedDestination) or staged.slices is None or staged.slices.speaks == speaks:
        return
    destination.speaks = speaks
    if staged.slices.speaks is None and len(speaks) == len(destination.slices.slices):
        staged.slices = replace(staged.slices, speaks=speaks)
        return
    destination.base_sums = None
    if staged.keyframe is None:
        destination.trust(known, None if request.base is None else request.base.version, context.map_)
    staged.slices = _slice_digests(context, request, staged.keyframe, staged.update)


def _check_tied(weights: Weights, staged: StagedCells, version: int) -> None:
    """Raise LayoutMismatch if tensors that are one in the model would have to become two."""
    if not isinstance(staged.update, HostUpdate):
        return
    keyframe = staged.keyframe
    torn = first_torn(weights.tied, staged.update, None if keyframe is None else keyframe.weights)
    if keyframe is not None:
        for group in weights.geometry.groups:
            keyframe.release(group)
    if torn is not None:
        one, other = (weights.geometry.layout.tensors[number].name for number in torn)
        raise LayoutMismatch(
            f"tensors {one!r} and {other!r} are one in the model, and differ in version {version}: give each memory of "
            "its own. Nothing was changed"
        )


def _against_keyframe(
    context: Context, request: PullRequest, keyframe: FetchedKeyframe, update: ModelUpdate
) -> tuple[Digest, HostUpdate | None]:
    """Return the keyframe's digest and, where little differs, the update from the live weights to the version.

    Such an update makes a short pause and can be undone; it needs no belief in what the weights hold.
    """
    destination, backend, on_top = request.destination, context.backend, by_group(update)
    geometry, known = destination.geometry, request.base is not None
    weights = host_weights(destination)
    listed = known and weights is not None and weights.plain
    left = _Budget(int(DENSE_SHARE * geometry.cells) if listed else 0)
    landed = keyframe.known if isinstance(keyframe, KeyframeCells) else None
    if landed is not None and not left.any:
        return landed, None

    def look(group: Group) -> tuple[Digest, SparseUpdate | None]:
        digest = keyframe.weights.digest_of(backend, group) if landed is None else Digest()
        change = None
        if left.any:
            cells = keyframe.weights.copy_of(group)
            if group.number in on_top:
                on_top[group.number].apply_to(backend, cells)
            index, old, new = backend.diff(cells, destination.read(group))
            change = SparseUpdate(group, index, old, new) if left.take(len(index)) else None
        keyframe.release(group)
        return digest, change

    looked = list(context.map_(look, geometry.groups))
    total = sum((digest for digest, _ in looked), Digest()) if landed is None else landed
    sparse = tuple(change for _, change in looked if change is not None and len(change.index))
    return total, HostUpdate(sparse) if left.any else None


class _Budget:
    """Counts down from many threads; once overdrawn there is none left."""

    def __init__(self, amount: int) -> None:
        self._lock = threading.Lock()
        self._amount = amount

    @property
    def any(self) -> bool:
        return self._amount > 0

    def take(self, amount: int) -> bool:
        with self._lock:
            self._amount -= amount
        return self.any
