"""Tables that are asked one request after another, on one connection; each answer is checked."""

import http.client
import io
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import lance
import numpy as np
import pyarrow as pa

from benchmarks.servers import RunningServer
from benchmarks.tables import ARROW_TYPE, ROW_SCHEMA, TIMEOUT_S, rows, stream_of

# Entries of the pages that are asked for.
PAGE = 10
_JSON = {"content-type": "application/json"}
_ARROW = {"content-type": ARROW_TYPE}


@dataclass(frozen=True, slots=True)
class Answer:
    """The body of an answer, and how long it took from the first byte sent to the last received."""

    ms: float
    body: bytes

    def json(self) -> Any:
        """The body as what it says."""
        return json.loads(self.body)


class Asker:
    """A kept connection, so all that it asks is answered by one replica; notes wrong answers."""

    def __init__(self, server: RunningServer) -> None:
        self.wrong: list[str] = []
        self._key = server.api_key
        self._connection = http.client.HTTPConnection(*server.address, timeout=TIMEOUT_S)

    def post(
        self, path: str, database: str, body: bytes = b"{}", kind: Mapping[str, str] = _JSON
    ) -> Answer:
        """What the server answers to a body.

        Raises:
            RuntimeError: it refused.
        """
        return self._ask("POST", path, database, body, kind)

    def get(self, path: str, database: str) -> Answer:
        """What the server answers without a body.

        Raises:
            RuntimeError: it refused.
        """
        return self._ask("GET", path, database, None, {})

    def check(self, what: str, found: object, expected: object) -> None:
        """Note an answer that is not the expected one."""
        if found != expected:
            self.wrong.append(f"{what}: {found} in place of {expected}")

    def _ask(
        self, method: str, path: str, database: str, body: bytes | None, kind: Mapping[str, str]
    ) -> Answer:
        headers = {"x-api-key": self._key, "x-lancedb-database": database, **kind}
        started_s = perf_counter()
        self._connection.request(method, path, body, headers)
        answer = self._connection.getresponse()
        found = answer.read()
        ms = 1e3 * (perf_counter() - started_s)
        if answer.status != 200:
            raise RuntimeError(f"{method} {path}: {answer.status} {found.decode()}")
        return Answer(ms, found)


@dataclass(slots=True)
class AskedTable:
    """A table that was made with the rows 0 to `first`, `copies` times, and what it must hold.

    Each of the methods asks once and returns the milliseconds that the answer took.
    """

    asker: Asker
    name: str
    first: int
    database: str = "default"
    copies: int = 1
    version: int = 1
    fragments: int = 1
    inserted: int = 0
    # Its columns are those of the rows that are inserted, and maybe others that may be null.
    data: pa.Table = field(default_factory=lambda: ROW_SCHEMA.empty_table())

    def create(self) -> float:
        """Make it."""
        data = self.data if self.data.num_rows else rows(range(self.first))
        return self._post("create", stream_of(data), _ARROW).ms

    def drop(self) -> float:
        """Drop it."""
        return self._post("drop").ms

    def describe(self) -> float:
        """Describe it, with its version and its fragments."""
        answer = self._post("describe", b'{"load_detailed_metadata": true}')
        found = answer.json()
        self._check("version", found["version"], self.version)
        self._check("fragments", found["stats"]["num_fragments"], self.fragments)
        return answer.ms

    def count(self) -> float:
        """Count its rows."""
        answer = self._post("count_rows")
        self._check("rows", answer.json(), self.row_count)
        return answer.ms

    def count_first(self) -> float:
        """Count the rows that it was made with, by a predicate."""
        answer = self._post("count_rows", _body(predicate=f"number < {self.first}"))
        self._check("rows that a predicate selects", answer.json(), self.first * self.copies)
        return answer.ms

    def query(self) -> float:
        """Read as many rows as the first ones are."""
        body = _body(vector=[], k=self.first, columns={"column_names": ROW_SCHEMA.names})
        answer = self._post("query", body)
        found = pa.ipc.open_file(io.BytesIO(answer.body)).read_all()
        self._check("rows of a query", found.equals(rows(range(self.first))), True)
        return answer.ms

    def insert(self, count: int = 1) -> float:
        """Insert new rows, as one fragment."""
        start = self.first + self.inserted
        answer = self._post("insert", stream_of(rows(range(start, start + count))), _ARROW)
        self.inserted += count
        self.version += 1
        self.fragments += 1
        return answer.ms

    def list_versions(self) -> float:
        """List the oldest of its versions."""
        answer = self._post(f"version/list?limit={PAGE}")
        found = [item["version"] for item in answer.json()["versions"]]
        self._check("versions", found, list(range(1, min(PAGE, self.version) + 1)))
        return answer.ms

    @property
    def row_count(self) -> int:
        """How many rows it has."""
        return self.first * self.copies + self.inserted

    def open(self) -> lance.LanceDataset:
        """The table as its files say, without the server."""
        return lance.dataset(self._post("describe").json()["location"])

    def check_rows(self) -> None:
        """Compare its rows with what they must be, without the server."""
        found = np.sort(self.open().to_table(columns=["number"]).column(0).to_numpy())
        made = np.tile(np.arange(self.first), self.copies)
        expected = np.concatenate([made, np.arange(self.first, self.first + self.inserted)])
        self._check("its rows", np.array_equal(found, np.sort(expected)), True)

    def _post(self, verb: str, body: bytes = b"{}", kind: Mapping[str, str] = _JSON) -> Answer:
        return self.asker.post(f"/v1/table/{self.name}/{verb}", self.database, body, kind)

    def _check(self, what: str, found: object, expected: object) -> None:
        self.asker.check(f"{self.name}, {what}", found, expected)


def _body(**fields: Any) -> bytes:
    return json.dumps(fields).encode()
