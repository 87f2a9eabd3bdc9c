"""Which versions rows were made and last changed in, as manifests note it for stable row ids.

Lance notes a number for each run of rows and keeps all of them when fragments are joined, so of
rows that came one by one every manifest holds two numbers each, for good. But these are compared
with numbers of versions that are there: of those between the same two such versions it makes no
difference which is noted, and neighbours with the same number are one run.
"""

import json
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format
from google.protobuf.message import DecodeError
from lance.fragment import FragmentMetadata, RowDatasetVersionMeta

# As Lance's table format has them (RowDatasetVersionSequence), without spans that are no ranges.
_MESSAGES = """
name: "row_versions.proto" package: "row_versions" syntax: "proto3"
message_type { name: "Range"
  field { name: "start" number: 1 type: TYPE_UINT64 label: LABEL_OPTIONAL }
  field { name: "end" number: 2 type: TYPE_UINT64 label: LABEL_OPTIONAL } }
message_type { name: "Span"
  field { name: "range" number: 1 type: TYPE_MESSAGE type_name: ".row_versions.Range"
          label: LABEL_OPTIONAL } }
message_type { name: "Run"
  field { name: "span" number: 1 type: TYPE_MESSAGE type_name: ".row_versions.Span"
          label: LABEL_OPTIONAL }
  field { name: "version" number: 2 type: TYPE_UINT64 label: LABEL_OPTIONAL } }
message_type { name: "Runs"
  field { name: "runs" number: 1 type: TYPE_MESSAGE type_name: ".row_versions.Run"
          label: LABEL_REPEATED } }
"""
# Less is not worth a commit.
_SAVED_BYTES_MIN = 1024


def _message_class(name: str) -> Any:
    pool = descriptor_pool.DescriptorPool()
    pool.Add(text_format.Parse(_MESSAGES, descriptor_pb2.FileDescriptorProto()))
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"row_versions.{name}"))


_Runs = _message_class("Runs")


def with_fewer_runs(
    fragments: Sequence[FragmentMetadata], versions: Sequence[int]
) -> list[FragmentMetadata]:
    """Those of the fragments whose notes at least halve if only `versions` are told apart.

    A row's number becomes that of the first of `versions` which is not before it; so it is later
    than any of them exactly if it was. What is noted in a way not known here stays as it is.
    """
    there = sorted(versions)
    found = []
    for fragment in fragments:
        created = _encoded(fragment.created_at_version_meta)
        updated = _encoded(fragment.last_updated_at_version_meta)
        if created is None or updated is None:
            continue
        few_created = _joined(created, fragment.physical_rows, there)
        few_updated = _joined(updated, fragment.physical_rows, there)
        size = len(few_created) + len(few_updated)
        if len(created) + len(updated) - size >= max(size, _SAVED_BYTES_MIN):
            found.append(
                replace(
                    fragment,
                    created_at_version_meta=_noted(few_created),
                    last_updated_at_version_meta=_noted(few_updated),
                )
            )
    return found


def _encoded(noted: Any | None) -> bytes | None:
    """What is noted in the manifest itself; None of what is not noted, or in a file of its own."""
    inline = None if noted is None else json.loads(noted.json()).get("inline")
    return None if inline is None else bytes(inline)


def _noted(encoded: bytes) -> Any:
    return RowDatasetVersionMeta.from_json(json.dumps({"inline": list(encoded)}))


def _joined(encoded: bytes, rows: int, there: Sequence[int]) -> bytes:
    try:
        runs = _Runs.FromString(encoded).runs
    except DecodeError:
        return encoded
    spans = [
        (_first_there(run.version, there), run.span.range.end - run.span.range.start)
        for run in runs
    ]
    is_known = all(run.span.HasField("range") for run in runs)
    if not is_known or sum(count for _, count in spans) != rows:
        return encoded
    joined = _Runs()
    for version, group in groupby(spans, key=lambda span: span[0]):
        run = joined.runs.add(version=version)
        run.span.range.end = sum(count for _, count in group)
    answer: bytes = joined.SerializeToString()
    return answer


def _first_there(version: int, there: Sequence[int]) -> int:
    place = bisect_left(there, version)
    return there[place] if place < len(there) else version
