"""Python's own language reference, cut into passages, and counted topic by topic.

The package `pydoc_data`, which `help("assert")` reads, is in every Python.
"""

import re
from collections.abc import Iterator
from typing import NamedTuple

import pyarrow as pa

from udtf import Source, ViewClient, chunker, retry_transient, udtf

BLANK_LINES = re.compile(r"\n\s*\n")


class Passage(NamedTuple):
    """One paragraph of a topic."""

    number: int
    passage: str
    words: int


@chunker
def passages(body: str) -> Iterator[Passage]:
    """The paragraphs of a topic, its heading included; a topic without text has none."""
    number = 0
    for paragraph in BLANK_LINES.split(body):
        text = paragraph.strip()
        if text:
            yield Passage(number, text, len(text.split()))
            number += 1


@udtf(
    output_schema={"topic": str, "passages": int, "words": int, "longest": str},
    input_columns=["topic", "passage", "words"],
    partition_by="topic",
    on_error=retry_transient(),
)
class TopicStatistics:
    """Of each topic: its passages, its words, and the beginning of its longest passage."""

    def __init__(self, characters: int = 60) -> None:
        self.characters = characters

    def __call__(self, source: Source) -> Iterator[pa.Table]:
        rows = source.to_arrow().to_pylist()
        longest = max(rows, key=lambda row: (row["words"], row["passage"]))
        yield pa.table(
            {
                "topic": [rows[0]["topic"]],
                "passages": [len(rows)],
                "words": [sum(row["words"] for row in rows)],
                "longest": [longest["passage"][: self.characters]],
            }
        )


def topics_table() -> pa.Table:
    """One row for each topic: its name and its text."""
    from pydoc_data.topics import topics

    return pa.table({"topic": list(topics), "body": list(topics.values())})


def create_views(views: ViewClient) -> None:
    """A view of the table `topics`, and a view of that view; both are empty until refreshed."""
    views.create("passages", passages, source="topics", inherit=["topic"])
    views.create("topic_statistics", TopicStatistics, source="passages")
