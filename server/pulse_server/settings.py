"""The service's settings: arguments first, then the environment (``PULSE_*``), then the defaults here."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, ValidationError, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict, SettingsError

from pulse_registry.errors import InvalidArgument
from pulse_registry.roots import roots_of
from pulse_schemas import faults
from pulse_server.tokens import TokenSet

MIB = 1 << 20
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Bytes = Annotated[int, Field(ge=1)]
Rate = Annotated[float, Field(ge=0, allow_inf_nan=False, description="0: no limit")]


class Settings(BaseSettings):
    """What one process of the service does; ``root`` is the registry that it serves.

    `Settings.read` is the way to make one: it says in words what is wrong.
    """

    model_config = SettingsConfigDict(env_prefix="PULSE_", frozen=True, extra="forbid", env_ignore_empty=True)

    root: Annotated[str, Field(min_length=1, description="the registry: a folder, or a URL; several with commas")]

    tokens_file: Annotated[Path | None, Field(description="the tokens' file; read again when it changes")] = None
    tokens: Annotated[TokenSet | None, Field(description="the tokens themselves, as the file has them")] = None
    insecure_open: Annotated[bool, Field(description="whoever reaches the service may do everything")] = False
    open_metrics: Annotated[bool, Field(description="/metrics needs no token")] = False

    trust: Annotated[str, Field(description="public keys, with spaces between: only what they signed counts")] = ""
    signing_key: Annotated[Path | None, Field(description="signs snapshots, and what the collector writes")] = None
    state_dir: Annotated[Path | None, Field(description="keeps what was seen of signed runs")] = None

    poll_seconds: Annotated[Seconds, Field(description="how often the log of a run in use is looked at")] = 0.25
    idle_seconds: Annotated[Seconds, Field(description="how long a run that nobody asks for is followed")] = 300
    max_feeds: Annotated[int, Field(ge=1, description="runs followed at the same time")] = 1_000
    wait_max_s: Annotated[Seconds, Field(description="the longest that a request may wait for news")] = 60
    url_ttl_s: Annotated[int, Field(ge=2, le=604_800, description="how long signed URLs are good")] = 900
    part_bytes: Annotated[int, Field(ge=5 * MIB, description="of an upload in parts")] = 64 * MIB
    single_put_bytes: Annotated[Bytes, Field(description="the longest object that is uploaded in one piece")] = 64 * MIB
    report_seconds: Annotated[Seconds, Field(description="how often replicas share the workers' reports")] = 5
    report_ttl_s: Annotated[Seconds, Field(description="how long a worker's report counts")] = 900

    gc_seconds: Annotated[Rate, Field(description="how often garbage is collected in all runs; 0: never")] = 0
    gc_keep_last: Annotated[int, Field(ge=1, description="the newest versions that are kept")] = 100
    gc_keep_every: Annotated[int | None, Field(ge=1, description="each so many-th version is kept")] = None
    gc_keep_seconds: Annotated[float, Field(ge=0, lt=1e10, description="younger versions are kept")] = 86_400
    gc_grace_seconds: Annotated[float, Field(ge=0, lt=1e10, description="from retirement to deletion")] = 3_600
    gc_orphan_seconds: Annotated[float, Field(ge=0, lt=1e10, description="no record named it for so long")] = 86_400

    store_answer_s: Annotated[Seconds, Field(description="a bucket silent for longer is asked again")] = 5
    probe_seconds: Annotated[Seconds, Field(description="how often the store is asked whether it is there")] = 1.5
    ready_seconds: Annotated[Seconds, Field(description="a store silent for longer makes /readyz say 503")] = 4

    rate_per_s: Annotated[Rate, Field(description="requests a second, of one token")] = 5_000
    rate_burst: Annotated[int, Field(ge=1, description="requests at once, of one token")] = 20_000
    anonymous_per_s: Annotated[Rate, Field(description="requests a second without a token, of one address")] = 50
    anonymous_burst: Annotated[int, Field(ge=1, description="requests at once without a token, of one address")] = 200
    max_token_names: Annotated[int, Field(ge=1, description="leases, or reports, that one token has")] = 10_000
    max_token_bytes: Annotated[Bytes, Field(description="of one token's leases, and of its reports")] = 16 * MIB
    max_pending: Annotated[int, Field(ge=1, description="requests under way or waiting, of one token")] = 10_000
    max_buffered_bytes: Annotated[Bytes, Field(description="of bodies being read; a token has a fourth")] = 512 * MIB
    max_body_bytes: Annotated[Bytes, Field(description="of a request, but for objects")] = 16 * MIB
    max_object_bytes: Annotated[Bytes, Field(description="of an object that goes through the service")] = 64 << 30
    max_header_bytes: Annotated[int, Field(ge=1024, description="of a request, all that is no body")] = 64 << 10
    max_uploads: Annotated[int, Field(ge=1, description="objects that a token sends through the service for a run")] = 8
    max_spooled_bytes: Annotated[Bytes, Field(description="of these; for all runs, four times as many")] = 64 << 30
    body_seconds: Annotated[Seconds, Field(description="to send 2 MiB: no body may come more slowly")] = 60
    stop_seconds: Annotated[Seconds, Field(description="what is under way at a stop may take this long")] = 8
    trusted_proxies: Annotated[str, Field(description="addresses whose X-Forwarded headers count")] = ""

    access_log: Annotated[bool, Field(description="a line for each request")] = True
    log_format: Annotated[Literal["text", "json"], Field(description="of all log lines")] = "text"

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.tokens_file is not None and self.tokens is not None:
            raise ValueError("tokens come from a file (PULSE_TOKENS_FILE) or from PULSE_TOKENS, not from both")
        if self.insecure_open and (self.tokens_file is not None or self.tokens is not None):
            raise ValueError("a service that is open to all has no tokens: take insecure_open away, or the tokens")
        if self.gc_seconds and len(roots_of(self.root)) > 1:
            raise ValueError("gc_seconds is for a service of one root: let one at the home of the runs collect")
        if self.ready_seconds <= self.probe_seconds:
            raise ValueError("ready_seconds must be longer than probe_seconds")
        return self

    @classmethod
    def read(cls, **given: object) -> Self:
        """Return the settings that arguments, environment and defaults make.

        Raises:
            InvalidArgument: a value is not valid; the message names the setting, and never says the value.
        """
        try:
            return cls(**given)  # type: ignore[arg-type]
        except ValidationError as error:
            raise InvalidArgument(f"the settings are not valid: {faults(error, 'settings')}") from None
        except SettingsError as error:  # an environment variable that should hold JSON does not
            raise InvalidArgument(f"the settings are not valid: {error}") from None
