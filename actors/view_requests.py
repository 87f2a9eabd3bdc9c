"""What a refresh may ask for, checked before it becomes a job."""

from cluster.errors import InvalidInput
from cluster.identifiers import ObjectId
from cluster.settings import Settings
from udtf.manifest import parse_manifest
from udtf.refresh_model import RefreshOptions
from udtf.source_query import RecognisedQuery
from udtf.spec import ViewDefinition, ViewKind

_COUNTS = (
    "max_rows_per_fragment",
    "concurrency",
    "intra_applier_concurrency",
    "source_task_size",
    "output_limit",
)
# Of these only one kind of view has any use.
_CHUNKERS_ONLY = ("source_task_size", "output_limit")


def check_cluster(name: str | None, settings: Settings) -> None:
    """Refuse to run a refresh on another cluster.

    Raises:
        InvalidInput: says which cluster this is.
    """
    served = settings.ray.namespace
    if name is not None and name != served:
        raise InvalidInput(
            f"cluster: this server refreshes views on {served!r} only, not on {name!r}; leave it"
            " out"
        )


def check_options(options: RefreshOptions, definition: ViewDefinition, settings: Settings) -> None:
    """Refuse options that mean nothing for this view.

    Raises:
        InvalidInput: names the option and what is wrong with it.
        PermissionDenied: a manifest that the deployment does not allow.
    """
    for name in _COUNTS:
        count = getattr(options, name)
        if count is not None and count < 1:
            raise InvalidInput(f"{name} must be at least 1, not {count}")
        if count is not None and name in _CHUNKERS_ONLY and definition.kind is not ViewKind.CHUNKER:
            raise InvalidInput(
                f"{name} is for views of kind chunker only, and this one is of kind"
                f" {definition.kind}; leave it out"
            )
    children, most = options.intra_applier_concurrency, settings.views.children_per_worker_max
    if children is not None and children > most:
        raise InvalidInput(
            f"intra_applier_concurrency must be at most {most} (views.children_per_worker_max), not"
            f" {children}"
        )
    if options.manifest is not None:
        if definition.udtf is None:
            raise InvalidInput("manifest: a view of kind query runs no code; leave it out")
        parse_manifest(options.manifest, settings.views)


def check_pins(options: RefreshOptions, query: RecognisedQuery, view: ObjectId) -> None:
    """Refuse a source version that contradicts the view's own pin.

    Raises:
        InvalidInput: the view is pinned to another version, or to a tag.
    """
    version = options.source_version
    if version is None or (query.tag is None and query.version in (None, version)):
        return
    pinned = f"tag {query.tag!r}" if query.tag is not None else f"version {query.version}"
    raise InvalidInput(
        f"src_version: view {view} always shows {pinned} of its source; leave src_version out"
    )
