"""Which requests a table has carried out, so that a repeated one is answered and not done again.

Each commit carries the requests that it contains in its transaction properties; they are the truth.
This is the memory of them: filled from the newest versions when an actor starts, then by every
commit.
"""

import json
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from actors.model import Commit, RequestKey
from cluster.errors import InvalidInput

PROPERTY = "destrier.requests"


@dataclass(frozen=True, slots=True)
class DoneRequest:
    """A request that a commit contains and the rows that it changed."""

    key: RequestKey
    rows: int


def to_properties(done: Sequence[DoneRequest]) -> dict[str, str]:
    """The transaction properties that record `done`."""
    entries = [[item.key.id, item.key.digest, item.rows] for item in done]
    return {PROPERTY: json.dumps(entries, separators=(",", ":"))}


def from_properties(properties: Mapping[str, str] | None) -> list[DoneRequest]:
    """What a transaction's properties record; nothing for other writers' transactions."""
    text = (properties or {}).get(PROPERTY)
    if text is None:
        return []
    return [DoneRequest(RequestKey(id_, digest), rows) for id_, digest, rows in json.loads(text)]


class RequestLog:
    """Answers of the newest requests, oldest forgotten first."""

    def __init__(self, remembered_max: int) -> None:
        # The digest of the body, and the commit's version, transaction and rows. The garbage
        # collector does not look again at tuples of such, of which there are many.
        self._answers: OrderedDict[str, tuple[str, int, str, int]] = OrderedDict()
        self._remembered_max = remembered_max

    def find(self, key: RequestKey) -> Commit | None:
        """The first answer to the same request; None if it is new.

        Raises:
            InvalidInput: the request id was used with another body.
        """
        found = self._answers.get(key.id)
        if found is None:
            return None
        digest, version, transaction_id, rows = found
        check_same_body(digest, key)
        return Commit(version, transaction_id, rows, repeated=True)

    def record(self, commit: Commit, done: Iterable[DoneRequest]) -> None:
        """Remember that `commit` contains `done`."""
        for item in done:
            answer = (item.key.digest, commit.version, commit.transaction_id, item.rows)
            self._answers[item.key.id] = answer
            self._answers.move_to_end(item.key.id)
        while len(self._answers) > self._remembered_max:
            self._answers.popitem(last=False)


def check_same_body(digest: str, key: RequestKey) -> None:
    """Refuse a request id that comes back with another body.

    Raises:
        InvalidInput: always, if the digests differ.
    """
    if digest != key.digest:
        raise InvalidInput(
            "this request id was used for another request body; send a new x-request-id"
        )
