"""The bodies of the HTTP API: what the service answers and what its clients send. No I/O.

What is stored is strict (`Schema`); what is sent is read leniently: a client takes no notice of fields that a newer
service added. Requests, on the other hand, are refused for a field that is not known.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from pulse_schemas.base import (
    Count,
    Digest,
    Hash,
    JsonObject,
    Key,
    Many,
    ReaderName,
    RunName,
    Step,
    TagName,
    Timestamp,
    WriteId,
)

Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$", description="SHA-256, lower-case hex")]
WorkerId = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:-]{0,127}$", description="a worker's own name")]
Url = Annotated[str, Field(description="where to send the request; may be relative to the service")]
PhaseName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,64}$")]
Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
LegName = Literal["keyframe", "patch", "inverse"]
Scope = Literal["read", "publish", "mirror", "admin"]


class Answer(BaseModel):
    """Base of what the service answers."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class Request(BaseModel):
    """Base of what a client sends."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Health(Answer):
    """The process answers."""

    status: Literal["ok"] = "ok"


class Ready(Answer):
    """The store answered ``store_age_s`` seconds ago."""

    status: Literal["ready"] = "ready"
    store_age_s: float


class TokenBody(Answer):
    """What the caller's token allows: ``runs`` are patterns of run names, ``expires_at`` is UTC or none."""

    name: str
    scopes: Many[Scope]
    runs: Many[str]
    expires_at: Timestamp | None


class VersionBody(Answer):
    """One committed version; ``nbytes`` counts what was stored for it, of ``full_nbytes`` that all cells take.

    ``files``: id of the set of small files that go with it, an object ``objects/files/<id>``; none: it has none.
    """

    version: Count
    step: Step
    kind: Literal["keyframe", "patch"]
    changed: Count
    cells: Count
    nbytes: Count
    digest: Digest
    created_at: Timestamp
    layout: Hash
    seq: Count
    metadata: JsonObject
    files: Hash | None = None


class MissedVersions(Answer):
    """Versions that a stream of events leaves out, from ``first`` to ``last``: pages of versions have them."""

    first: Count
    last: Count


class VersionPage(Answer):
    """Versions of a run, oldest first; ``next`` is the ``after`` of the page that follows, none on the last.

    ``age_s``: seconds since the store was last asked; older than usual only while it does not answer.
    """

    run: RunName
    versions: Many[VersionBody]
    next: Count | None
    age_s: float


class ObjectBody(Answer):
    """One object of a run, and a URL that reads it until ``RouteBody.expires_at``."""

    key: Key
    size: Count
    blake3: Hash
    url: Url | None


class LegBody(Answer):
    """One step of a route, from version ``base`` (none: from nothing) to ``target``."""

    kind: LegName
    base: Count | None
    target: Count
    nbytes: Count
    objects: Many[ObjectBody]


class RouteBody(Answer):
    """The cheapest route from version ``base`` (none: from nothing) to ``target``, whose state digest is ``digest``.

    Fetch the objects, check each against its size and BLAKE3, and apply the legs in order. A long route comes in
    pieces: where ``next`` is not none, it is ``target``, a version on the way; the next piece is the route from there.
    """

    run: RunName
    base: Count | None
    target: Count
    nbytes: Count
    legs: Many[LegBody]
    layout: Hash
    digest: Digest
    expires_at: Timestamp | None
    next: Count | None = None


class KeyframeMark(Answer):
    """A stored keyframe."""

    version: Count
    nbytes: Count


class PatchMark(Answer):
    """A stored patch; merged where it spans more than one version."""

    base: Count
    target: Count
    nbytes: Count


class ChainTotals(Answer):
    """All live objects of a run: ``patches`` has the ``merged`` ones, too; ``longest``: versions that one spans."""

    keyframes: Count
    patches: Count
    merged: Count
    longest: Count
    nbytes: int


class ChainBody(Answer):
    """Live objects of a run, without their keys: which versions each joins, and how many bytes it has.

    ``next`` is the ``after`` of the page that follows, none on the last. ``totals``: of the whole run.
    """

    run: RunName
    keyframes: Many[KeyframeMark]
    patches: Many[PatchMark]
    next: Count | None = None
    totals: ChainTotals | None = None


class LayerMark(Answer):
    """The 16 MiB groups of a layout that begin in a layer; ``layers``: of which they hold cells, eight at most."""

    name: str
    layers: Many[str]
    cells: Count


class StepMark(Answer):
    """What changed from version ``base`` to version ``target``: cells of each row; none where it is not known.

    ``why`` it is not: ``layout``: the tensors are others; ``keyframe``: only that leads there; ``gone``: nothing does,
    or it can't be read; ``large``: the layout has too many tensors.
    """

    base: Count
    target: Count
    changed: Many[Count] = ()
    why: Literal["layout", "keyframe", "gone", "large"] | None = None


class LayersBody(Answer):
    """Changed cells of versions, by layers, from the heads of their patches.

    ``rows`` are of the layout of all steps, but for one that leads to another layout, which comes last. ``next`` is the
    ``after`` of the page that follows, none on the last.
    """

    run: RunName
    rows: Many[LayerMark]
    steps: Many[StepMark]
    next: Count | None = None


class LogPage(Answer):
    """Records of a run's log from ``since`` on, as the sealed text that is stored.

    ``urls``: where to read the newest patch, on a page of few records that ends with the log: who waited for them
    reads it next.
    """

    run: RunName
    since: Count
    records: Many[str]
    urls: UrlBody | None = None


class SnapshotList(Answer):
    """Numbers of the snapshots of a run's log, ascending."""

    snapshots: Many[Count]


class CountersignatureList(Answer):
    """Numbers of the records of a run that somebody has countersigned, ascending."""

    countersignatures: Many[Count]


class KeyList(Answer):
    """Keys of a copy, below the run, in order; ``more``: others follow the last one."""

    keys: Many[str]
    more: bool


class Appended(Answer):
    """A record is in the log."""

    run: RunName
    seq: Count


class UrlRequest(Request):
    """Objects of a run to read."""

    keys: Annotated[Many[Key], Field(min_length=1, max_length=1000)]


class UrlBody(Answer):
    """A URL for each object, good for GET with or without ``Range`` until ``expires_at``.

    None: the URLs are the service's own and need the caller's token.
    """

    urls: dict[str, Url]
    expires_at: Timestamp | None


class BaseRequest(Request):
    """A version of a run of the same root, whose cells another run is to name as a shared base."""

    run: RunName
    version: Count


class BaseBody(Answer):
    """The base that the run refers to now. While files of it are missing, the same request copies more of them."""

    base: str
    missing: Count


class UploadRequest(Request):
    """An object to store. ``sha256`` is needed for one that goes in one piece (see ``UploadBody``)."""

    key: Key
    size: Count
    sha256: Sha256 | None = None


class SignedRequest(Answer):
    """A PUT to send as it is: this URL, these headers, and the bytes that were announced."""

    url: Url
    headers: dict[str, str]


class UploadBody(Answer):
    """How to store an object.

    ``put``: send it with ``request``; the store refuses it if the key is taken (412), or if size or SHA-256 differ.
    ``parts``: in parts of ``part_size`` bytes, the last one shorter; ask for a signed request for each, then complete.
    ``direct``: to ``request``, which is the service's own and needs the caller's token.
    """

    kind: Literal["put", "parts", "direct"]
    request: SignedRequest | None = None
    upload_id: str | None = None
    part_size: Count | None = None


class PartRequest(Request):
    """A part of an upload; numbers count from 1."""

    key: Key
    number: Annotated[int, Field(ge=1, le=10_000)]
    size: Annotated[int, Field(ge=1)]
    sha256: Sha256


class PartDone(Request):
    """A part that the store took, with the ETag that it answered."""

    number: Annotated[int, Field(ge=1, le=10_000)]
    etag: str
    sha256: Sha256


class CompleteRequest(Request):
    """All parts of an upload, in order."""

    key: Key
    parts: Annotated[Many[PartDone], Field(min_length=1, max_length=10_000)]


class PhaseBody(Request):
    """A phase of a pull or a push, in seconds from the call's start; ``busy``: of all its threads."""

    phase: PhaseName
    start: Seconds
    end: Seconds
    busy: Seconds
    nbytes: Count


MAX_AVOIDED = 64
"""Keys in a report, at most."""


class WorkerReport(Request):
    """What a worker tells of itself: the version it serves and how its last pull went.

    Without phases and bytes it is a sign of life: the worker serves the version that it told of before. ``phases``:
    seconds from each one's start to its end; they overlap. ``timeline``: the same in more detail. Of a trainer that
    reports a push, the times are counted; it is not listed as a worker. ``avoided``: keys of the objects that the pull
    found gone or damaged, the first of them.
    """

    operation: Literal["pull", "push"] = "pull"
    version: Count
    digest: Digest
    phases: dict[PhaseName, Seconds] = Field(default_factory=dict, max_length=16)
    timeline: Annotated[Many[PhaseBody], Field(max_length=16)] = ()
    nbytes: Count = 0
    avoided: Annotated[Many[Key], Field(max_length=MAX_AVOIDED)] = ()

    @property
    def seconds(self) -> float:
        """Time of the whole, from its start to the end of its last phase."""
        return max((phase.end for phase in self.timeline), default=sum(self.phases.values()))


def pause_of(phases: Mapping[str, float]) -> float | None:
    """Return for how many seconds a pull with these phases kept a worker from serving; None: they don't tell.

    An engine is paused as a whole; a worker of its own process waits while its weights change.
    """
    return phases.get("pause", phases.get("apply"))


class WorkerNote(Answer):
    """A worker's last report, as one replica of the service tells the others; of ``<token id>:<worker>``."""

    worker: ReaderName
    version: Count
    digest: Digest
    phases: dict[str, float]
    seconds: float = 0.0
    nbytes: Count
    avoided: Many[Key] = ()
    reported_at: Timestamp

    @property
    def pause_s(self) -> float | None:
        """How long its last pull kept it from serving; None: it did not tell."""
        return pause_of(self.phases)


class ReportFile(Answer):
    """What one replica of the service heard of a run's workers; stored under ``<run>/reports/``.

    ``gone``: when a worker said that it is none any more; what any replica heard of it until then counts no more. A
    file is of format 2 where there are some, and of format 1, which has no such field, where there are none.
    """

    format: Literal["pulse-reports/1", "pulse-reports/2"] = "pulse-reports/1"
    workers: Many[WorkerNote]
    gone: dict[ReaderName, Timestamp] = Field(default_factory=dict)

    @classmethod
    def of(cls, workers: tuple[WorkerNote, ...], gone: Mapping[str, str]) -> ReportFile:
        """Return the file of these, in the oldest format that can hold them."""
        return cls(format="pulse-reports/2" if gone else "pulse-reports/1", workers=workers, gone=dict(gone))

    def text(self) -> bytes:
        """Return the file as it is stored."""
        return self.model_dump_json(exclude=None if self.gone else {"gone"}).encode()


class WorkerBody(Answer):
    """A worker's last report; ``seconds``: of its last pull; ``staleness`` counts the versions that it is behind.

    ``token``: the id of the token that reported; "" for an admin's, or where nobody needs one. ``avoided``: keys of the
    objects that its last pull found gone or damaged. ``digest_matches``: whether its digest is that of its version;
    none where that version is not known, being forgotten or newer than what is known here.
    """

    worker: WorkerId
    token: str = ""
    version: Count
    digest: Digest
    phases: dict[str, float]
    seconds: float = 0.0
    nbytes: Count
    avoided: Many[Key] = ()
    reported_at: Timestamp
    staleness: Count
    digest_matches: bool | None

    @property
    def pause_s(self) -> float | None:
        """How long its last pull kept it from serving; None: it did not tell."""
        return pause_of(self.phases)


class WorkerSummary(Answer):
    """How all workers of a run stand: ``differing``: those whose digest is not that of their version.

    ``at_newest`` of them serve ``newest``, the newest version that one serves; ``oldest`` is the oldest.
    """

    workers: Count
    differing: Count
    oldest: Count | None
    newest: Count | None
    at_newest: Count


class VersionNote(Answer):
    """What people wrote of a version: the text under ``note`` in its metadata, of a long one the beginning."""

    version: Count
    text: str


class RunSummary(Answer):
    """How a run and its workers stand, as far as this replica knows.

    Attributes:
        usual_s: the median time between its newest versions, 50 at most; none while there is one.
        usual_nbytes: the median size of their patches; none where there is none.
        workers: those that reported of late.
        pause_s: how long a worker stood still for its last pull, the longest; none where none has told.
        avoided: workers whose last pull found an object gone or damaged.
        tags: the versions that names stand for, the newest few; ``tagged`` counts all names.
        note: the newest of the newest versions, 50 at most.
    """

    usual_s: float | None
    usual_nbytes: Count | None
    workers: WorkerSummary
    pause_s: float | None
    avoided: Count
    tags: dict[TagName, Count]
    tagged: Count
    note: VersionNote | None


class RunBody(Answer):
    """A run as a list shows it. ``full_nbytes``: what all cells of the newest version take, where that is known."""

    run: RunName
    seq: int
    epoch: Count
    versions: Count
    latest: VersionBody | None
    full_nbytes: Count | None
    summary: RunSummary | None = None


class VersionLine(Answer):
    """The newest version, as a stream about many runs tells of it: what is in ``VersionBody`` and short."""

    version: Count
    step: Step
    kind: Literal["keyframe", "patch"]
    nbytes: Count
    created_at: Timestamp


class RunLine(Answer):
    """A run as a stream about many runs tells of it; ``stale``: its log could not be read for a while.

    ``home``: the root at which the run lives since it moved, where that is another one than is served: of a long URL
    the beginning. Of a run whose log was never read ``seq`` is -1 and ``latest`` and ``summary`` are none.
    """

    run: RunName
    seq: int
    versions: Count
    latest: VersionLine | None
    full_nbytes: Count | None
    summary: RunSummary | None
    stale: bool
    home: str | None = None


class RunChanges(Answer):
    """Runs that a stream has not told of yet, or not as they are now.

    ``whole``: what was told before counts no more. ``total``: runs that the stream tells of once it knows them;
    ``more``: the token may read further ones, by name.
    """

    whole: bool
    total: Count
    more: bool
    runs: Many[RunLine]


class RunPage(Answer):
    """Runs that the caller may read, by name; ``next`` is the ``after`` of the page that follows."""

    runs: Many[RunBody]
    next: RunName | None


class WorkerList(Answer):
    """The workers that reported of late, by name.

    ``summary``: only where ``workers`` may be some of them, in a stream of events: those furthest behind.
    """

    run: RunName
    workers: Many[WorkerBody]
    summary: WorkerSummary | None = None


class WorkerName(Answer):
    """Names one worker: each token's workers are its own."""

    worker: WorkerId
    token: str


class WorkerChanges(Answer):
    """What is new since the list of workers, or the changes, that a stream told of before.

    ``workers`` are new in the list, or take the place of what was told of them; ``gone`` are in it no more.
    """

    run: RunName
    summary: WorkerSummary
    workers: Many[WorkerBody]
    gone: Many[WorkerName]


class RoundPart(Answer):
    """What a member gave to an outer round: ``entries`` levels in ``nbytes``, after ``steps`` steps of its own."""

    member: str
    steps: int
    entries: int
    nbytes: int
    created_at: Timestamp


class RoundBody(Answer):
    """One outer round, and the version that it makes. ``late``: those it is of who have not contributed."""

    round: int
    version: int
    ended: bool
    parts: Many[RoundPart]
    late: Many[str]


Standing = Literal["contributed", "awaited", "later", "missed", "left"]


class MemberBody(Answer):
    """One trainer: its term, since which round that is waited for, and how it stands to the open one.

    ``later``: it is waited for from round ``since`` on. ``missed``: it missed so many rounds that nobody waits for it.
    ``last``: its newest part in the rounds that are told, and ``last_round`` which one that is of.
    """

    member: str
    term: WriteId
    since: int
    missed: int
    standing: Standing
    last_round: int | None
    last: RoundPart | None


class OuterBody(Answer):
    """A run's outer rounds: ``open``, ``rounds`` that have ended (the newest, in order), and who trains.

    Version ``first + r`` is that of round r. ``cells``: of a version; of a part, ``entries / cells`` is the density.
    """

    run: RunName
    seq: int
    first: int
    cells: int | None
    inner_steps: int
    rate: float
    momentum: float
    quorum: int
    patience: int
    members: Many[MemberBody]
    open: RoundBody
    rounds: Many[RoundBody]


class Problem(Answer):
    """A problem document (RFC 9457): what went wrong with one request."""

    type: str
    title: str
    status: int
    detail: str
    instance: str
