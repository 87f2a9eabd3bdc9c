"""Plans of changes, each reason for a rebuild, and watermarks read from views."""

import json
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import lance
import lancedb
import pyarrow as pa
import pytest

from actors.sql import prepare_expression
from cluster.settings import LimitSettings
from tests.unit.view_requests import check, encoded
from udtf.changes import ChangePlan, plan_changes
from udtf.refresh_model import RefreshMode, RefreshOptions, SourceLocation, Watermark
from udtf.source_query import recognise
from udtf.sources import bind, definition_sha, open_source, version_timestamp
from udtf.view_record import view_metadata, view_schema
from udtf.watermark import REFRESH_PROPERTY, REFRESH_STAMP, drift_reason, read_watermark

I64 = pa.int64()
DEFINITION = check(
    "query", "SELECT id, v FROM docs WHERE v > 0", encoded(pa.schema([("id", I64), ("v", I64)]))
)
DEFAULTS = RefreshOptions()
REBUILD, INCREMENTAL, NO_OP = RefreshMode.REBUILD, RefreshMode.INCREMENTAL, RefreshMode.NO_OP


@pytest.fixture
def source(tmp_path: Path) -> Any:
    return create(tmp_path)


def create(folder: Path, *, stable: bool = True) -> Any:
    rows = pa.table({"id": range(6), "v": range(6)})
    return lance.write_dataset(
        rows, str(folder / "docs.lance"), enable_stable_row_ids=stable, max_rows_per_file=3
    )


def mark(source: Any, **changes: Any) -> Watermark:
    """The watermark of a view that shows this version."""
    watermark = Watermark(
        source_id=("docs",),
        source_uri=source.uri,
        branch=None,
        source_version=int(source.version),
        source_version_ts=version_timestamp(source),
        definition_sha=definition_sha(DEFINITION),
        udtf_sha=None,
        manifest_checksum=None,
        output_limit=None,
        job_id="job",
        refreshed_at_ms=0,
    )
    return replace(watermark, **changes)


def plan(
    uri: str,
    watermark: Watermark | None,
    drift: str | None = None,
    *,
    options: RefreshOptions = DEFAULTS,
    version: int | None = None,
) -> ChangePlan:
    location = SourceLocation(("docs",), uri, version=version)
    source = open_source(location, None)
    query = recognise(DEFINITION.source_query)
    assert query is not None
    bound = bind(query, source, DEFINITION, LimitSettings(), prepare_expression)
    return plan_changes(source, watermark, drift, location, DEFINITION, options, bound, None, None)


def ids(found: ChangePlan) -> tuple[list[int], list[int]]:
    assert found.changed is not None
    return found.changed.tolist(), found.deleted.tolist()


def test_version_that_is_shown_already_needs_nothing(source: Any) -> None:
    found = plan(source.uri, mark(source))
    assert (found.mode, found.tier) == (NO_OP, 0)


def test_changed_and_deleted_rows_are_found(source: Any) -> None:
    before = mark(source)
    source.delete("id = 0")
    source.update({"v": "v + 1"}, where="id = 4")
    lance.write_dataset(pa.table({"id": [9], "v": [9]}), source.uri, mode="append")
    found = plan(source.uri, before)
    assert (found.mode, found.tier, ids(found)) == (INCREMENTAL, 1, ([4, 6], [0]))
    assert found.reason == (
        "2 rows are new or changed and 1 are gone since version 1 of the source"
    )


def test_column_added_beside_the_view_changes_no_row_of_it(source: Any) -> None:
    before = mark(source)
    source.update({"v": "v + 1"}, where="id = 4")
    lance.dataset(source.uri).add_columns({"other": "v * 2"})
    lance.dataset(source.uri).update({"v": "v + 1"}, where="id = 5")
    found = plan(source.uri, before)
    assert (found.tier, ids(found)) == (1, ([4, 5], []))


def test_compaction_of_an_indexed_table_is_compared_row_by_row(source: Any) -> None:
    before = mark(source)
    source.create_scalar_index("id", "BTREE")
    lance.dataset(source.uri).delete("id = 1")
    lance.dataset(source.uri).optimize.compact_files()
    found = plan(source.uri, before)
    assert (found.mode, found.tier, ids(found)) == (INCREMENTAL, 2, ([], [1]))
    assert "cannot be decoded" in found.reason


def test_restore_takes_changes_back(source: Any) -> None:
    source.update({"v": "10"}, where="id = 2")
    updated = lance.dataset(source.uri)
    before = mark(updated)
    updated.checkout_version(1).restore()
    found = plan(source.uri, before)
    assert (found.tier, ids(found)) == (2, ([2], []))
    assert "version 3 of the source is a restore" in found.reason


def test_column_of_the_same_name_and_id_is_another(source: Any) -> None:
    """Lance gives the id of a dropped column again, and the rows' version numbers stay."""
    before = mark(source)
    source.drop_columns(["v"])
    lance.dataset(source.uri).optimize.compact_files()
    lance.dataset(source.uri).add_columns(pa.field("v", I64))
    now = lance.dataset(source.uri)
    assert [field.id() for field in now.lance_schema.fields()] == [0, 1]
    assert now.count_rows("_row_last_updated_at_version > 1") == 0
    found = plan(source.uri, before)
    assert found.mode is REBUILD
    assert found.reason == (
        "version 2 of the source replaced or renamed a column that the view reads"
    )


def test_every_rebuild_says_why(source: Any, tmp_path: Path) -> None:
    def reason(watermark: Watermark | None, drift: str | None = None, **options: Any) -> str:
        found = plan(source.uri, watermark, drift, options=RefreshOptions(**options))
        assert (found.mode, found.tier, found.changed) == (REBUILD, 3, None)
        return found.reason

    now = mark(source)
    assert reason(None) == "the view was never refreshed"
    assert reason(now, full=True) == "a full refresh was asked for"
    assert reason(None, "a stranger wrote") == (
        "the view's rows are not those of its last refresh: a stranger wrote"
    )
    assert "another table" in reason(replace(now, source_id=("other",)))
    assert "another folder" in reason(replace(now, source_uri="/elsewhere"))
    assert "showed branch b" in reason(replace(now, branch="b"))
    assert "definition changed" in reason(replace(now, definition_sha="0"))
    assert "code changed" in reason(replace(now, udtf_sha="0"))
    assert "environment (manifest)" in reason(replace(now, manifest_checksum="0"))
    assert "output_limit was not given and is 3" in reason(now, output_limit=3)
    assert "dropped and created again" in reason(replace(now, source_version_ts=1))
    assert "which is later than version 1" in reason(replace(now, source_version=7))


def test_overwritten_source_is_computed_anew(source: Any) -> None:
    before = mark(source)
    lance.write_dataset(pa.table({"id": [1], "v": [1]}), source.uri, mode="overwrite")
    assert plan(source.uri, before).reason == ("version 2 of the source overwrote the whole table")


def test_cleaned_up_version_is_computed_anew(source: Any) -> None:
    before = mark(source)
    source.delete("id = 1")
    lance.dataset(source.uri).cleanup_old_versions(older_than=timedelta(0))
    found = plan(source.uri, before)
    assert found.mode is REBUILD
    assert "version 1 of the source, which the view shows, is not there any more" in found.reason


def test_history_with_a_gap_is_compared_row_by_row(source: Any) -> None:
    before = mark(source)
    source.tags.create("kept", 1)
    source.update({"v": "10"}, where="id = 2")
    lance.dataset(source.uri).delete("id = 3")
    lance.dataset(source.uri).cleanup_old_versions(
        older_than=timedelta(0), error_if_tagged_old_versions=False
    )
    found = plan(source.uri, before)
    assert (found.mode, found.tier, ids(found)) == (INCREMENTAL, 2, ([2], [3]))


def test_source_without_stable_row_ids_is_computed_anew(tmp_path: Path) -> None:
    source = create(tmp_path, stable=False)
    before = mark(source)
    source.delete("id = 1")
    assert "no stable row ids" in plan(source.uri, before).reason


# Watermarks


def make_view(folder: Path) -> Any:
    schema = view_schema(DEFINITION).with_metadata(view_metadata(DEFINITION, "life"))
    path = str(folder / "view.lance")
    return lance.write_dataset(schema.empty_table(), path, enable_stable_row_ids=True)


def publish(view: Any, watermark: Watermark, *, stamp: bool = True) -> Any:
    """As the owner of a view's table does, with no rows."""
    transaction = lance.Transaction(
        read_version=view.version,
        operation=lance.LanceOperation.Update(),
        transaction_properties={REFRESH_PROPERTY: json.dumps(watermark.to_json())},
    )
    view = lance.LanceDataset.commit(view.uri, transaction)
    if stamp:
        view.update_schema_metadata(
            {
                "mv.source_version": str(watermark.source_version),
                "mv.source_version_ts": str(watermark.source_version_ts),
                "mv.view_version": str(view.version + 1),
                "mv.refreshed_at_ms": "7",
                REFRESH_STAMP: json.dumps(watermark.to_json()),
            }
        )
    return lance.dataset(view.uri)


def test_new_view_has_no_watermark_and_no_drift(tmp_path: Path) -> None:
    view = make_view(tmp_path)
    assert (read_watermark(view), drift_reason(view)) == (None, None)


@pytest.mark.parametrize("stamp", [True, False])
def test_watermark_holds_until_rows_change(tmp_path: Path, source: Any, stamp: bool) -> None:
    view = publish(make_view(tmp_path), mark(source), stamp=stamp)
    assert read_watermark(view) == (mark(source), 2)
    view.create_scalar_index("id", "BTREE")
    lance.dataset(view.uri).add_columns({"mine": "id + 1"})
    lance.dataset(view.uri).optimize.compact_files()
    view = lance.dataset(view.uri)
    assert (read_watermark(view), drift_reason(view)) == ((mark(source), 2), None)
    view.delete("id = 1 OR id IS NULL OR true")
    lance.write_dataset(
        pa.table({"id": [1], "v": [1], "__source_row_id": pa.array([1], pa.uint64())}),
        view.uri,
        mode="append",
    )
    view = lance.dataset(view.uri)
    assert read_watermark(view) is None
    assert "something other than a refresh (Append)" in (drift_reason(view) or "")


def test_watermark_outlives_the_clean_up_of_its_version(tmp_path: Path, source: Any) -> None:
    view = publish(make_view(tmp_path), mark(source))
    view.cleanup_old_versions(older_than=timedelta(0))
    view = lance.dataset(view.uri)
    assert [item["version"] for item in view.versions()] == [3]
    assert read_watermark(view) == (mark(source), 3)
    unstamped = publish(view, mark(source), stamp=False)
    lance.dataset(view.uri).update_config({"a": "b"})
    lance.dataset(view.uri).cleanup_old_versions(older_than=timedelta(0))
    unstamped = lance.dataset(view.uri)
    assert read_watermark(unstamped) is None
    assert "is gone" in (drift_reason(unstamped) or "")


def test_refresh_by_lancedb_is_accepted(tmp_path: Path, source: Any) -> None:
    view = publish(make_view(tmp_path), mark(source))
    theirs = lancedb.connect(tmp_path).open_materialized_view("view")
    source.update({"v": "10"}, where="id = 2")
    now = lance.dataset(source.uri)
    theirs.refresh()
    view = lance.dataset(view.uri)
    found = read_watermark(view)
    assert found is not None
    assert (found[0].source_version, found[0].source_version_ts) == (2, version_timestamp(now))
    assert (found[1], drift_reason(view)) == (view.version, None)
    assert plan(source.uri, found[0]).mode is NO_OP
    now.delete("id = 4")
    assert ids(plan(source.uri, found[0])) == ([], [4])


def test_view_that_lancedb_made_has_its_watermark(tmp_path: Path, source: Any) -> None:
    database = lancedb.connect(tmp_path)
    database.create_materialized_view("theirs", "docs", where="v > 1")
    view = lance.dataset(str(tmp_path / "theirs.lance"))
    found = read_watermark(view)
    assert found is not None
    assert found[0].source_version_ts == version_timestamp(source)
    assert plan(source.uri, found[0]).mode is NO_OP
