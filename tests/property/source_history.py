"""Random things that happen to a source of views, each as the programs that do them would."""

import shutil
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from random import Random
from typing import Any

import lance
import pyarrow as pa

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64()),
        pa.field("v", pa.int64()),
        pa.field("s", pa.string()),
        # Last, so that once it is dropped its id may go to the next column.
        pa.field("w", pa.int64()),
    ]
)
ROWS_PER_FILE = 8
TEXTS = ("", "a", "one two", "one two three", "x", "b c d e", None)


class SourceHistory:
    """A source, and every kind of change that a view may meet; `happened` counts them."""

    def __init__(self, folder: Path, random: Random) -> None:
        self.uri = str(folder / "source.lance")
        self._random = random
        self._next_id = 0
        self._next_column = 0
        self.happened: list[str] = []
        self._create()

    @property
    def dataset(self) -> Any:
        """The latest version."""
        return lance.dataset(self.uri)

    def step(self) -> str:
        """Let something happen; says what."""
        weights = self._operations()
        name = self._random.choices(list(weights), [weight for weight, _ in weights.values()])[0]
        weights[name][1]()
        self.happened.append(name)
        return name

    def _operations(self) -> dict[str, tuple[int, Callable[[], None]]]:
        return {
            "append": (8, self._append),
            "update": (8, self._update),
            "delete": (6, self._delete),
            "upsert": (8, self._upsert),
            "partial upsert": (3, self._partial_upsert),
            "delete by source": (3, self._delete_by_source),
            "compact": (6, self._compact),
            "add column": (4, self._add_column),
            "add empty column": (3, self._add_empty_column),
            "merge column": (2, self._merge_column),
            "drop column": (3, self._drop_column),
            "rename column": (2, self._rename_column),
            "swap columns": (1, self._swap_columns),
            "replace column": (3, self._replace_column),
            "rewrite column": (2, lambda: self._rewrite(says_rows=True)),
            "rewrite column silently": (1, lambda: self._rewrite(says_rows=False)),
            "index": (4, self._index),
            "optimize index": (2, lambda: self.dataset.optimize.optimize_indices()),
            "configure": (2, lambda: self.dataset.update_config({"k": str(self._random.random())})),
            "restore": (4, self._restore),
            "overwrite": (1, self._overwrite),
            "clean up": (1, self._clean_up),
            "recreate": (1, self._recreate),
            "empty": (1, lambda: self.dataset.delete("true")),
            "nothing": (2, lambda: None),
        }

    def _rows(self, ids: list[int]) -> pa.Table:
        values = [
            {
                "id": number,
                "v": self._random.randrange(-5, 10),
                "w": self._random.choice([None, 1, 2, 3]),
                "s": self._random.choice(TEXTS),
            }
            for number in ids
        ]
        return pa.Table.from_pylist(values, schema=SCHEMA)

    def _new_ids(self, most: int = 12) -> list[int]:
        count = self._random.randrange(1, most)
        self._next_id += count
        return list(range(self._next_id - count, self._next_id))

    def _some_ids(self) -> list[int]:
        ids = self.dataset.to_table(columns=["id"]).column(0).to_pylist()
        return self._random.sample(ids, min(len(ids), self._random.randrange(1, 8)))

    def _condition(self) -> str:
        return self._random.choice(
            ["v > 6", "id % 5 = 1", "s = 'x'", "w IS NULL AND v < 0", f"id > {self._next_id - 4}"]
        )

    def _create(self) -> None:
        lance.write_dataset(
            self._rows(self._new_ids(40)),
            self.uri,
            max_rows_per_file=ROWS_PER_FILE,
            enable_stable_row_ids=not self.happened or self._random.random() < 0.7,
        )

    def _append(self) -> None:
        lance.write_dataset(
            self._rows(self._new_ids()), self.uri, mode="append", max_rows_per_file=ROWS_PER_FILE
        )

    def _update(self) -> None:
        column, value = self._random.choice(
            [("v", "v + 4"), ("v", "-v"), ("w", "7"), ("s", "'one ' || coalesce(s, '')")]
        )
        self.dataset.update({column: value}, where=self._condition())

    def _delete(self) -> None:
        self.dataset.delete(self._condition())

    def _upsert(self) -> None:
        rows = self._rows(self._some_ids() + self._new_ids(4))
        merge = self.dataset.merge_insert("id")
        merge.when_matched_update_all().when_not_matched_insert_all().execute(self._full(rows))

    def _partial_upsert(self) -> None:
        rows = self._rows(self._some_ids()).select(["id", "v"])
        self.dataset.merge_insert("id").when_matched_update_all().execute(rows)

    def _delete_by_source(self) -> None:
        rows = self._full(self._rows(self._some_ids()))
        merge = self.dataset.merge_insert("id").when_matched_update_all()
        merge.when_not_matched_by_source_delete(self._condition()).execute(rows)

    def _full(self, rows: pa.Table) -> pa.Table:
        """With nulls in the columns that were added."""
        for field in self.dataset.schema:
            if field.name not in rows.schema.names:
                rows = rows.append_column(field, pa.nulls(len(rows), field.type))
        return rows.select(self.dataset.schema.names)

    def _compact(self) -> None:
        rows = self._random.choice([2 * ROWS_PER_FILE, 1_000])
        self.dataset.optimize.compact_files(target_rows_per_fragment=rows)

    def _new_name(self) -> str:
        self._next_column += 1
        return f"extra{self._next_column}"

    def _extras(self) -> list[str]:
        return [name for name in self.dataset.schema.names if name.startswith("extra")]

    def _add_column(self) -> None:
        self.dataset.add_columns({self._new_name(): "v * 3"})

    def _add_empty_column(self) -> None:
        self.dataset.add_columns(pa.field(self._new_name(), pa.int64()))

    def _merge_column(self) -> None:
        dataset = self.dataset
        ids = dataset.to_table(columns=["id"]).column(0).to_pylist()
        if ids:
            dataset.merge(pa.table({"id": ids, self._new_name(): list(range(len(ids)))}), "id")

    def _drop_column(self) -> None:
        if extras := self._extras():
            self.dataset.drop_columns([self._random.choice(extras)])

    def _rename(self, old: str, new: str) -> None:
        self.dataset.alter_columns({"path": old, "name": new})

    def _rename_column(self) -> None:
        if extras := self._extras():
            self._rename(self._random.choice(extras), self._new_name())

    def _swap_columns(self) -> None:
        for old, new in (("v", "other"), ("w", "v"), ("other", "w")):
            self._rename(old, new)

    def _replace_column(self) -> None:
        """The new column may get the id of the old one, if that was the latest."""
        self.dataset.drop_columns(["w", *self._extras()])
        if self._random.random() < 0.8:
            self._compact()
        self.dataset.add_columns(pa.field("w", pa.int64()))

    def _rewrite(self, *, says_rows: bool) -> None:
        """Write a column of some rows anew in its place, as a backfill does."""
        dataset = self.dataset
        if not dataset.get_fragments():
            return
        fragment = self._random.choice(dataset.get_fragments())
        ids = fragment.to_table(columns=["id"]).column(0).to_pylist()
        changed = self._random.sample(ids, min(len(ids), 3))
        values = pa.table({"id": pa.array(changed, pa.int64()), "v": [50 + n for n in changed]})
        updated, fields, offsets = fragment.update_columns(
            values, left_on="id", right_on="id", with_offsets=True
        )
        operation = lance.LanceOperation.Update(
            updated_fragments=[updated],
            fields_modified=fields,
            update_mode="rewrite_columns",
            updated_fragment_offsets={fragment.fragment_id: offsets} if says_rows else None,
        )
        lance.LanceDataset.commit(self.uri, operation, read_version=dataset.version)

    def _index(self) -> None:
        if self.dataset.count_rows():
            column = self._random.choice(["id", "v"])
            self.dataset.create_scalar_index(column, "BTREE", replace=True)

    def _restore(self) -> None:
        dataset = self.dataset
        versions = [item["version"] for item in dataset.versions()]
        for version in self._random.sample(versions, len(versions)):
            old = dataset.checkout_version(version)
            if set(SCHEMA.names) <= set(old.schema.names):
                old.restore()
                return

    def _overwrite(self) -> None:
        rows = self._rows(self._new_ids(30))
        lance.write_dataset(rows, self.uri, mode="overwrite", max_rows_per_file=ROWS_PER_FILE)

    def _clean_up(self) -> None:
        self.dataset.cleanup_old_versions(older_than=timedelta(0))

    def _recreate(self) -> None:
        shutil.rmtree(self.uri)
        self._create()
