"""Up to where a view shows its source, read from the view's own versions.

A refresh commits its watermark with its rows, in the properties of the transaction; a second commit
repeats it in the schema's metadata, where it survives the clean-up of old versions and where
LanceDB keeps its own. From the latest version back, a watermark holds as long as nothing changed
the view's rows after it.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from udtf.checked import canonical_json
from udtf.history import NEUTRAL, Step, Unreadable, around, read_step, same_columns, same_rows
from udtf.refresh_model import Watermark
from udtf.sources import definition_sha
from udtf.spec import ViewKind
from udtf.view_record import read_view, view_schema

REFRESH_PROPERTY = "destrier.refresh"
# The same JSON in the schema's metadata.
REFRESH_STAMP = "destrier.view.refresh"

_SOURCE_VERSION = "mv.source_version"
_SOURCE_VERSION_TS = "mv.source_version_ts"
_VIEW_VERSION = "mv.view_version"
_REFRESHED_AT_MS = "mv.refreshed_at_ms"

# Such a commit adds or drops columns, maybe only ones that are not the view's own.
_COLUMN_CHANGES = frozenset({"Merge", "Project", "DataReplacement", "BaseOperation"})


@dataclass(frozen=True, slots=True)
class _Found:
    """A watermark and the version it was committed at, or why there is none."""

    watermark: Watermark | None = None
    version: int = 0
    drift: str | None = None


@dataclass(frozen=True, slots=True)
class _Stamp:
    """What the schema's metadata say of the refresh that left `view_version`."""

    source_version: int
    source_version_ts: int
    view_version: int
    refreshed_at_ms: int
    own: Watermark | None

    def agrees(self, watermark: Watermark) -> bool:
        """Whether it is of the refresh that wrote the watermark."""
        return (self.source_version, self.source_version_ts) == (
            watermark.source_version,
            watermark.source_version_ts,
        )


def stamp_of(watermark: Watermark, view_version: int) -> dict[str, str]:
    """What the schema's metadata are to say of a refresh; `view_version` is the view's version that
    says it."""
    return {
        _SOURCE_VERSION: str(watermark.source_version),
        _SOURCE_VERSION_TS: str(watermark.source_version_ts),
        _VIEW_VERSION: str(view_version),
        _REFRESHED_AT_MS: str(watermark.refreshed_at_ms),
        REFRESH_STAMP: canonical_json(watermark.to_json()),
    }


def stamp_moved(metadata: Mapping[str, str], before: int, after: int) -> dict[str, str] | None:
    """What the metadata are to say when version `after` has the rows that LanceDB left, or we told
    it of, at version `before`; None if that is not what they say now."""
    stamp = _read_stamp(metadata)
    if stamp is None or stamp.view_version != before:
        return None
    return {_VIEW_VERSION: str(after)}


def read_watermark(view: Any) -> tuple[Watermark, int] | None:
    """The watermark that the view's rows have, and the view's version it was committed at.

    None when the view was never refreshed, or when its rows have drifted. `source_id` is empty of
    a refresh by LanceDB, which does not say what its source was.
    """
    found = _find(view)
    return None if found.watermark is None else (found.watermark, found.version)


def drift_reason(view: Any) -> str | None:
    """Why the view's rows are not what a refresh left, in a clause; None if they are."""
    return _find(view).drift


def changed_since(view: Any, version: int) -> str | None:
    """How the view's rows changed after `version`, in a clause; None if they are the same."""
    if version > int(view.version):
        return f"its version {version} is gone"
    metadata = _metadata(view)
    for later in range(version + 1, int(view.version) + 1):
        try:
            step = read_step(view, later)
        except Unreadable:
            return f"its version {later}, or what made it, is gone"
        if REFRESH_PROPERTY in step.properties or not _is_neutral(view, later, step, metadata):
            return f"version {later} was committed by something else ({step.name})"
    return None


def _find(view: Any) -> _Found:
    metadata = _metadata(view)
    stamp = _read_stamp(metadata)
    stamped = False
    for version in range(int(view.version), 0, -1):
        stamped = stamped or (stamp is not None and stamp.view_version == version)
        try:
            step = read_step(view, version)
        except Unreadable:
            if stamped:
                return _of_stamp(stamp, metadata)
            return _Found(drift=f"version {version} of the view, or what made it, is gone")
        if REFRESH_PROPERTY in step.properties:
            return _of_commit(step, version, stamp if stamped else None, metadata)
        if not _is_neutral(view, version, step, metadata):
            if stamped:
                return _of_stamp(stamp, metadata)
            if step.name == "Overwrite" and view.checkout_version(version).count_rows() == 0:
                return _Found()
            return _Found(
                drift=f"version {version} of the view was committed by something other than a"
                f" refresh ({step.name})"
            )
    return _Found()


def _metadata(view: Any) -> dict[str, str]:
    return {
        key.decode(errors="replace"): value.decode(errors="replace")
        for key, value in (view.schema.metadata or {}).items()
    }


def _of_commit(
    step: Step, version: int, stamp: _Stamp | None, metadata: Mapping[str, str]
) -> _Found:
    """The watermark of a refresh of ours, unless LanceDB found since that it holds for longer."""
    watermark = _parsed(step.properties[REFRESH_PROPERTY])
    if watermark is None:
        return _Found(drift=f"what version {version} of the view says of its refresh is damaged")
    if stamp is None or stamp.agrees(watermark) or stamp.view_version <= version + 1:
        return _Found(watermark, version)
    return _of_stamp(stamp, metadata)


def _of_stamp(stamp: _Stamp | None, metadata: Mapping[str, str]) -> _Found:
    assert stamp is not None
    if stamp.own is not None and stamp.agrees(stamp.own):
        return _Found(stamp.own, stamp.view_version)
    definition = read_view(metadata)
    if definition is not None and definition.kind is not ViewKind.QUERY:
        return _Found(drift="what its last refresh was made with is not known any more")
    # LanceDB knows no branches, and computes what the metadata define.
    watermark = Watermark(
        source_id=(),
        source_uri="",
        branch=None,
        source_version=stamp.source_version,
        source_version_ts=stamp.source_version_ts,
        definition_sha="" if definition is None else definition_sha(definition),
        udtf_sha=None,
        manifest_checksum=None,
        output_limit=None,
        job_id="",
        refreshed_at_ms=stamp.refreshed_at_ms,
    )
    if stamp.own is not None:
        known = stamp.own
        watermark = replace(watermark, source_id=known.source_id, source_uri=known.source_uri)
    return _Found(watermark, stamp.view_version)


def _read_stamp(metadata: Mapping[str, str]) -> _Stamp | None:
    try:
        return _Stamp(
            source_version=int(metadata[_SOURCE_VERSION]),
            source_version_ts=int(metadata[_SOURCE_VERSION_TS]),
            view_version=int(metadata[_VIEW_VERSION]),
            refreshed_at_ms=int(metadata.get(_REFRESHED_AT_MS, "0")),
            own=_parsed(metadata.get(REFRESH_STAMP)),
        )
    except (KeyError, ValueError):
        return None


def _parsed(text: str | None) -> Watermark | None:
    if text is None:
        return None
    try:
        return Watermark.from_json(json.loads(text))
    except (KeyError, TypeError, ValueError):
        return None


def _is_neutral(view: Any, version: int, step: Step, metadata: Mapping[str, str]) -> bool:
    """Whether the version has the rows of the one before, in the view's own columns."""
    if step.name in NEUTRAL:
        return True
    if step.name not in _COLUMN_CHANGES:
        return False
    try:
        before, after = around(view, version)
    except Unreadable:
        return False
    definition = read_view(metadata)
    own = before.schema.names if definition is None else view_schema(definition).names
    return same_columns(before, after, own) and same_rows(before, after)
