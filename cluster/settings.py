"""Every setting of a deployment, with its unit and the reason for its value.

One frozen Settings is built at start-up and passed down as an argument; no other module reads the
environment. A field is set, in rising order of precedence, by its default, the TOML file (a table
per section), the environment (`DESTRIER_<SECTION>_<FIELD>`) and the command line.
"""

import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AnyHttpUrl, BaseModel, ConfigDict, Field, SecretStr, ValidationError

from cluster.errors import InvalidInput

Positive = Annotated[int, Field(gt=0)]
Seconds = Annotated[float, Field(gt=0)]
Engine = Literal["auto", "lance", "daft"]

ENVIRONMENT_PREFIX = "DESTRIER_"


class Section(BaseModel):
    """A frozen group of settings that refuses unknown names."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class HttpSettings(Section):
    """Where and how HTTP is answered."""

    host: str = "127.0.0.1"
    """Address to listen on. Anything but loopback needs auth.mode other than `off`."""
    port: Annotated[int, Field(ge=0, le=65535)] = 2333
    """TCP port; 0 picks a free one. 2333 is the port that Lance namespace clients assume."""
    base_path: Annotated[str, Field(pattern=r"^(/[A-Za-z0-9._~-]+)*$")] = ""
    """Prefix of every path, for deployments that share a host with others."""
    ingress: Literal["direct", "serve"] = "direct"
    """`direct`: each replica listens itself (3 to 15 times the requests per second of Ray Serve's
    proxy, and backpressure reaches the client). `serve`: Ray Serve's own HTTP in front."""
    replicas: Annotated[int, Field(ge=0, le=256)] = 0
    """Replicas per cluster; 0 means two on a machine with more than one core, else one."""
    requests_in_flight_max: Positive = 256
    """Requests that one replica works on; beyond it 503. Each holds a few kB, at most a thread."""
    bytes_in_flight_max: Positive = 1 << 30
    """Bytes of JSON and small Arrow bodies that one replica holds at a time; beyond it 503."""
    head_bytes_max: Positive = 64 << 10
    """Bytes of a request's line and headers. Tokens are the long ones; 8 kB is a usual bound."""
    json_body_bytes_max: Positive = 24 << 20
    """Bytes of a JSON body. The largest real ones are views that bring their code."""
    keep_alive_s: Seconds = 310
    """Idle connections are kept longer than the 300 s for which LanceDB clients pool them, else a
    client can write a streamed body into a connection that is being closed."""
    request_timeout_s: Seconds = 300
    """Longest time for an answer to begin, uploads apart; then 503. Also how long a client may take
    nothing of its answer; then the connection ends."""
    drain_timeout_s: Seconds = 20
    """After SIGTERM, the time that accepted requests have to finish."""
    refused_body_drain_bytes_max: Positive = 64 << 20
    """Bytes read and dropped of an upload refused early, or clients see a reset, not the answer."""


class StorageSettings(Section):
    """Where tables live and how safely they are written."""

    root: str = "data"
    """Folder or `s3://` URI that holds one folder per database."""
    database: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,127}$")] = "default"
    """The database of requests that name none, of callers whose grants do not all name one."""
    options: dict[str, SecretStr] = Field(default_factory=dict)
    """Lance storage options of an object store (credentials, endpoint)."""
    durability: Literal["fsync", "none"] = "fsync"
    """`fsync`: files and folders of a commit are synced before the answer (no visible cost on the
    disks measured). `none`: a power cut may lose acknowledged writes. Object stores ignore it."""
    stable_row_ids: bool = True
    """New tables keep row ids through updates and compaction, which exact incremental views need;
    chosen at creation. A table's property `lance.stable_row_ids` = `false` turns it off."""
    full_refresh_interval_s: Seconds = 60
    """A cached handle is read anew at least this often, whatever cheap checks say."""


class LimitSettings(Section):
    """Bounds on what one request may ask for."""

    insert_small_bytes_max: Positive = 1 << 20
    """An insert body up to this many bytes travels to the table actor and shares a commit; a larger
    one is streamed into fragments by the replica."""
    insert_body_bytes_max: Positive = 64 << 30
    """Bytes of one Arrow body as sent."""
    insert_decompressed_bytes_max: Positive = 256 << 30
    """Bytes of one Arrow body after decompression."""
    insert_batch_bytes_max: Positive = 2 << 30
    """Bytes of one Arrow record batch after decompression; a batch is held in memory whole."""
    insert_batches_max: Positive = 1_000_000
    """Record batches of one body."""
    columns_max: Positive = 10_000
    """Fields of a schema, nested ones counted."""
    sql_characters_max: Positive = 1 << 20
    """Characters of a predicate or an expression."""
    sql_operators_max: Positive = 1_000
    """Operators and calls of one predicate or expression. Lance 14.0.2 overflows its stack on flat
    chains of between 1,500 and 6,000 terms."""
    sql_chain_max: Positive = 256
    """Operators that apply to one another's results, as in a || b || c, nesting included; AND and
    OR do not count. A chain of 700 overflows the stack of a scan's thread, 256 plan in 60 ms."""
    sql_arithmetic_max: Positive = 200
    """Arithmetic operators of one predicate or expression; planning time grows with the cube (400
    additions took 0.4 s, 800 took 2 s)."""
    sql_depth_max: Positive = 32
    """Nesting of parentheses. Lance's parser refuses about 48."""
    sql_call_depth_max: Positive = 10
    """Nesting of function calls and casts; 48 nested casts take over 20 s to plan."""
    sql_planned_size_max: Positive = 200_000
    """Size of one predicate or expression as Lance plans it: 1 for a column or literal, 100 for an
    operator or call, and 3 times as much for each coalesce, nvl or BETWEEN, twice for each
    CASE condition around it, which repeat what they hold. The worst that it lets through are
    planned, and looked up in indexes, within about a second; without it 60 comparisons inside 10
    coalesce take over 20 s."""
    updates_max: Positive = 1_000
    """Assignments of one update."""
    metadata_entries_max: Positive = 10_000
    """Entries of one schema metadata or properties map."""
    metadata_bytes_max: Positive = 4 << 20
    """Bytes of one schema metadata or properties map."""
    version_ranges_max: Positive = 10_000
    """Ranges of one version delete."""
    page_size_default: Positive = 1_000
    """Entries of a page if no limit is set (all, of listings that the peer sends whole)."""
    page_size_max: Positive = 10_000
    """Entries of a listing page at most."""
    query_rows_buffered_max: Positive = 10_000
    """Rows held before the first byte is sent, if below 8 MB: an error then is an error answer."""
    query_dictionary_bytes_max: Positive = 256 << 20
    """Bytes of a result's dictionaries, which are held until its end. More ends the answer."""
    udtf_envelope_bytes_max: Positive = 16 << 20
    """Bytes of a view's code envelope after base64."""
    output_schema_bytes_max: Positive = 1 << 20
    """Bytes of a view's Arrow schema after base64."""
    source_query_bytes_max: Positive = 1 << 20
    """Bytes of a view's source query, which is stored with the view as it came."""
    udtf_manifest_bytes_max: Positive = 1 << 20
    """Bytes of the description of the environment that a view's code runs in."""
    udtf_source_bytes_max: Positive = 256 << 10
    """Bytes of Python source in a code envelope. It is parsed when the view is created: 256 kB took
    up to 0.5 s and 240 MB, 1 MB 4 s and 930 MB."""


class ActorSettings(Section):
    """Lives and queues of the actors that own tables."""

    idle_s: Seconds = 300
    """A table actor leaves after this long without work (126 MB each); callers recreate it."""
    live_max: Positive = 32
    """Table actors alive per database; the longest idle one leaves for a new one, and when none is
    idle the caller gets 503."""
    spare_s: Annotated[float, Field(ge=0)] = 300
    """A process is kept ready this long after the last table was opened, per database, to be the
    next table's actor (126 MB): starting one takes a second. 0 keeps none."""
    pending_requests_max: Positive = 2_048
    """Requests waiting in one table actor; beyond it 503."""
    pending_bytes_max: Positive = 256 << 20
    """Bytes of insert bodies waiting in one table actor; beyond it 503."""
    batch_requests_max: Positive = 1_024
    """Inserts that share one commit."""
    batch_bytes_max: Positive = 64 << 20
    """Bytes of inserts that share one commit."""
    call_timeout_s: Seconds = 270
    """Longest wait for a table actor's answer, above the deadline of a plan that it stages; then
    the outcome is unknown and resolved by request id."""
    commit_retries_max: Positive = 10
    """Times that a change is staged anew after another writer of the same files won."""
    requests_remembered_max: Positive = 100_000
    """Answers kept in memory for requests that are sent again."""
    versions_replayed_max: Positive = 256
    """Newest versions whose request ids a restarted actor reads back (0.16 ms each)."""


class MaintenanceSettings(Section):
    """What the owner of a table does by itself to keep it fast."""

    enabled: bool = True
    """Join small fragments and clean up old versions of tables that are written."""
    small_fragments_max: Positive = 64
    """Small fragments of about one size from which they are joined, and fragments made by commits
    after which a table is looked at."""
    fragment_rows: Positive = 1 << 20
    """Rows of the largest fragments that are made by joining."""
    fragment_bytes_max: Positive = 128 << 20
    """Bytes of one fragment that is made by joining."""
    run_bytes_max: Positive = 256 << 20
    """Bytes that are joined in one go; updates and deletes of the table wait meanwhile."""
    versions_kept_s: Seconds = 7 * 86_400.0
    """A version is deleted this long after the next one was made. Versions with a tag are kept, and
    those of a table with branches."""
    versions_kept_max: Positive = 10_000
    """Versions kept of a table; the oldest go when a quarter more are there and not too young."""
    versions_kept_bytes_max: Positive = 1 << 30
    """Bytes of their manifests, likewise. With stable row ids each version that is there adds some
    22 bytes to all later manifests, in which Lance notes the version that a row was made in."""
    versions_grace_s: Seconds = 3_600
    """No version is deleted sooner than this after the next one was made, as reads and refreshes of
    it may be under way; past 16 times the bytes above, not sooner than after 300 s."""


class EngineSettings(Section):
    """Which engine reads and rewrites."""

    engine: Engine = "auto"
    """`lance`: in the process that has the table open. `daft`: always on the cluster. `auto`: Daft
    from the thresholds below, when there is more than this node's share to win."""
    distributed_scan_rows: Positive = 400_000_000
    """Rows of a table from which `auto` scans on the cluster. On two nodes of one core each, counts
    by a regular expression gained from 8M rows, the cheapest from about 50M, and queries of a tenth
    nothing up to 16M. This is 50M for each core of a node of eight; object stores and larger
    machines have not been measured."""
    distributed_write_rows: Positive = 100_000_000
    """Rows of a table from which `auto` rewrites on the cluster. On two nodes of one core each,
    updates and deletes of a tenth gained from 8M rows, and a fifth of the time at 16M, since their
    commit is not spread. This is more than 8M for each core of a node of eight; object stores and
    larger machines have not been measured."""
    distributed_scan_bytes: Positive = 64 << 20
    """Bytes of rows that a distributed scan holds at a time, shared out among the workers; up to
    twice as many while a fragment is read whose rows do not fit one share."""
    distributed_nodes_min: Positive = 2
    """Alive nodes that a cluster needs before `auto` distributes."""
    plan_timeout_s: Seconds = 240
    """Deadline of one distributed plan, of which it may wait a quarter for its turn; then 503, and
    nothing has changed."""
    plans_max: Positive = 32
    """Distributed plans that run or wait at a time; beyond it 503. Each holds a thread."""
    read_timeout_s: Seconds = 120
    """Deadline of one read in process; then 503."""
    stuck_threads_max: Positive = 4
    """Reads past their deadline that still hold a thread; beyond it the replica is replaced."""


class AuthSettings(Section):
    """Who may call."""

    mode: Literal["on", "off"] = "on"
    """`off` answers everyone as administrator; loopback only."""
    admin_key: SecretStr | None = None
    """Key of the first administrator (environment: DESTRIER_ADMIN_KEY). Without it the first start
    makes one, prints it once and stores its hash."""
    key_cache_s: Seconds = 5
    """A revoked key is refused everywhere after this long."""
    credential_bytes_max: Positive = 16 << 10
    """Bytes of one key or token; a larger one is refused unread."""
    cache_entries_max: Positive = 4_096
    """Credentials that one replica remembers, per kind (keys, unknown keys, tokens); about 1 kB
    each."""
    jwt_issuer: str | None = None
    """Required `iss` of bearer tokens; bearer JWTs are refused while this is unset."""
    jwt_audience: str | None = None
    """Required `aud` of bearer tokens."""
    jwt_jwks_url: AnyHttpUrl | None = None
    """Where the issuer publishes its keys."""
    jwt_algorithms: tuple[str, ...] = ("RS256", "ES256", "EdDSA")
    """Accepted signature algorithms; symmetric ones and `none` are never accepted."""
    jwt_leeway_s: Annotated[float, Field(ge=0, le=300)] = 30
    """Clock difference accepted in `exp` and `nbf`."""
    jwks_refresh_s: Seconds = 300
    """Keys are fetched again at least this often, and at once for an unknown key id."""
    jwks_fetch_interval_s: Seconds = 5
    """Least time between two fetches, however many unknown key ids arrive."""
    jwks_stale_s: Seconds = 3_000
    """Keys of an issuer that cannot be reached are trusted this long after their last fetch; then
    tokens get 503."""
    jwks_timeout_s: Seconds = 5
    """Longest time that one fetch of the keys may take."""
    jwks_bytes_max: Positive = 1 << 20
    """Bytes of the issuer's key document."""
    jwt_grants_claim: str = "destrier_grants"
    """Claim that lists grants, each `right[+right…]:pattern`; see docs/security.md. A token without
    the claim may do nothing."""


class ViewSettings(Section):
    """Materialized views."""

    user_code: Literal["off", "allow-list", "trusted"] = "trusted"
    """Which UDTF and chunker code is accepted: none, only code whose SHA-256 is listed, or any from
    callers with the right `execute_code`."""
    user_code_sha256: tuple[str, ...] = ()
    """SHA-256 of accepted code envelopes when user_code is `allow-list`."""
    cloudpickle: bool = False
    """Accept pickled code; source text is the default because it can be read and reviewed."""
    pip: bool = False
    """Accept manifests that install packages; they run installers on the workers."""
    environment_variables: tuple[str, ...] = ()
    """Names of environment variables that a manifest may set for its code."""
    source_task_rows: Positive = 1_024
    """Source rows of one work item of a chunker view, where the request does not say. One item is
    done, retried and remembered as a whole."""
    items_max: Positive = 100_000
    """Work items of one refresh: each is a call of the code, a record of the job and a message or
    two. Where the request does not say how large items are, they are made large enough."""
    daft_items_min: Positive = 1_000
    """Work items from which Daft runs a refresh on Ray; it also runs all that ask for GPUs, and
    none that asks for a part of a CPU. Its workers take more than a second to start, and those of
    Ray's tasks milliseconds."""
    rows_per_fragment: Positive = 1 << 20
    """Rows of one fragment of a view, where the request does not say."""
    batch_rows: Positive = 8_192
    """Rows of one batch that user code is given; a batch is in memory twice."""
    concurrency: Positive = 8
    """Workers of one refresh, where the request does not say; never more than the cluster can
    place."""
    children_per_worker_max: Positive = 64
    """Child processes of one worker at most (intra_applier_concurrency)."""
    code_num_cpus: Annotated[float, Field(gt=0)] = 1.0
    """CPUs that one worker asks Ray for, where the view does not say."""
    code_memory_bytes: Positive = 4 << 30
    """Bytes of address space of one child process, where the view does not say; views that ask for
    GPUs have no such bound, because drivers of GPUs reserve far more than they use."""
    code_start_timeout_s: Seconds = 120
    """Longest time for user code to be loaded and its class to be built: models are loaded then."""
    item_timeout_s: Seconds = 1_800
    """Longest time for one work item; then its process is killed."""
    code_output_bytes_max: Positive = 64 << 10
    """Bytes kept of what user code prints; the rest is dropped as it comes."""
    stopping_timeout_s: Seconds = 10
    """Time that a driver has to end by itself when its job is cancelled; then it is killed."""


class JobSettings(Section):
    """Jobs: refreshes that run in the background."""

    root: str | None = None
    """Folder or `s3://` URI of what is stored of jobs: states, events, and which work items
    are done, a small commit each second while a job runs. Unset: `_system` under storage.root. Its
    storage options are storage.options."""
    running_max: Positive = 2
    """Jobs that run at a time, each with a driver process of about 300 MB; others wait."""
    queued_max: Positive = 256
    """Jobs that wait; beyond it 503."""
    queued_per_view_max: Positive = 16
    """Refreshes of one view that wait; beyond it 503, so that no view takes up the whole queue."""
    spare_driver_s: Annotated[float, Field(ge=0)] = 300
    """A driver is kept ready this long for the next job, once there was one: it would take seconds
    to start. It has 300 MB; 0 keeps none."""
    attempts_max: Positive = 3
    """Drivers that a job may use up: one that dies or makes no progress is replaced."""
    stall_timeout_s: Seconds = 300
    """Without a word of progress for this long a driver is replaced. Daft waits for ever for a
    worker that has died."""
    timeout_s: Seconds = 86_400
    """Longest time for one job, waiting for resources included."""
    resources_timeout_s: Seconds = 600
    """Longest time that a job waits for resources that the cluster has and others use."""
    flush_interval_s: Seconds = 1.0
    """Events of jobs are stored at least this often; a state that ends a job at once."""
    events_kept_max: Positive = 10_000
    """Events of one job that are kept and listed."""
    kept_s: Seconds = 30 * 86_400.0
    """How long jobs that have ended can be looked up."""
    auto_refresh_interval_s: Seconds = 60
    """How often the sources of views with auto_refresh are looked at."""
    auto_refresh_rows: Positive = 1_000
    """Changed source rows from which a view is refreshed by itself, or the fraction below if that
    is more."""
    auto_refresh_fraction: Annotated[float, Field(ge=0, le=1)] = 0.01
    """Changed part of a source from which a view is refreshed by itself."""
    auto_refresh_staleness_s: Seconds = 3_600
    """A view whose source has changed at all is refreshed after this long."""
    auto_refresh_cooldown_s: Seconds = 300
    """Least time between the end of a refresh and the next that starts by itself; doubled by each
    failure in a row."""
    auto_refresh_failures_max: Positive = 5
    """Failures in a row after which a view is no longer refreshed by itself, until a refresh that
    someone asks for succeeds."""


class RaySettings(Section):
    """The Ray cluster."""

    address: str | None = None
    """Cluster to join; unset starts one on this machine."""
    namespace: str = "destrier"
    """Ray namespace of the actors; two deployments on one cluster need two."""
    object_store_bytes: Positive = 256 << 20
    """Object store of a Ray started here. Small inserts and Daft's intermediate results pass
    through."""
    dashboard: bool = False
    """Ray's dashboard on loopback, for a Ray started here (costs 200 MB and 3 s)."""


class Settings(Section):
    """The whole configuration of one deployment."""

    http: HttpSettings = HttpSettings()
    storage: StorageSettings = StorageSettings()
    limits: LimitSettings = LimitSettings()
    actors: ActorSettings = ActorSettings()
    maintenance: MaintenanceSettings = MaintenanceSettings()
    engine: EngineSettings = EngineSettings()
    auth: AuthSettings = AuthSettings()
    views: ViewSettings = ViewSettings()
    jobs: JobSettings = JobSettings()
    ray: RaySettings = RaySettings()


# Names without a section, for the settings that people type.
ENVIRONMENT_ALIASES = {
    "DESTRIER_ROOT": ("storage", "root"),
    "DESTRIER_DATABASE": ("storage", "database"),
    "DESTRIER_PORT": ("http", "port"),
    "DESTRIER_HOST": ("http", "host"),
    "DESTRIER_ADMIN_KEY": ("auth", "admin_key"),
    "DESTRIER_ENGINE": ("engine", "engine"),
}


@dataclass(frozen=True, slots=True)
class LoadedSettings:
    """Settings and, for each `section.field` that is not a default, where its value came from."""

    settings: Settings
    sources: Mapping[str, str]


def load_settings(
    config: Path | None = None,
    environment: Mapping[str, str] | None = None,
    overrides: Mapping[tuple[str, str], Any] | None = None,
) -> LoadedSettings:
    """Merge defaults, file, environment and command line.

    Raises:
        InvalidInput: an unknown name or a value out of range, named with its source.
    """
    values: dict[str, dict[str, Any]] = {}
    sources: dict[str, str] = {}

    def put(section: str, field: str, value: Any, source: str) -> None:
        values.setdefault(section, {})[field] = value
        sources[f"{section}.{field}"] = source

    for section, fields in _read_file(config).items():
        if not isinstance(fields, dict):
            raise InvalidInput(f"{config}: {section!r} must be a table of settings")
        if section not in Settings.model_fields:
            known = ", ".join(Settings.model_fields)
            raise InvalidInput(f"{config}: there is no section [{section}]; sections are {known}")
        for field, value in fields.items():
            put(section, field, value, str(config))
    for (section, field), (variable, text) in _read_environment(
        os.environ if environment is None else environment
    ).items():
        put(section, field, _split_if_tuple(section, field, text), variable)
    for (section, field), value in (overrides or {}).items():
        put(section, field, value, "command line")
    try:
        return LoadedSettings(Settings.model_validate(values), sources)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        name = ".".join(str(part) for part in first["loc"])
        source = sources.get(".".join(str(part) for part in first["loc"][:2]), "settings")
        raise InvalidInput(f"{name} ({source}): {first['msg']}") from None


def environment_name(section: str, field: str) -> str:
    """The variable that sets a field."""
    return f"{ENVIRONMENT_PREFIX}{section.upper()}_{field.upper()}"


def _read_file(config: Path | None) -> dict[str, Any]:
    if config is None:
        return {}
    try:
        return tomllib.loads(config.read_text())
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise InvalidInput(f"cannot read settings from {config}: {error}") from None


def _read_environment(
    environment: Mapping[str, str],
) -> dict[tuple[str, str], tuple[str, str]]:
    known = dict(ENVIRONMENT_ALIASES)
    for section, info in Settings.model_fields.items():
        model = info.annotation
        assert isinstance(model, type) and issubclass(model, Section)
        for field in model.model_fields:
            known[environment_name(section, field)] = (section, field)
    found: dict[tuple[str, str], tuple[str, str]] = {}
    for variable, target in known.items():
        if variable in environment:
            found[target] = (variable, environment[variable])
    return found


def _split_if_tuple(section: str, field: str, text: str) -> Any:
    info = Settings.model_fields[section].annotation
    assert isinstance(info, type) and issubclass(info, Section)
    if isinstance(info.model_fields[field].default, tuple):
        return [item.strip() for item in text.split(",") if item.strip()]
    return text
