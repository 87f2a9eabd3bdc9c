"""What people submit views with: a client of the server's views and jobs.

views = ViewClient("http://127.0.0.1:2333", api_key=KEY)
job = views.create("passages", passages, source="topics", with_data=True)
job.wait(progress=True)
views.refresh("passages").wait()
"""

import base64
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlencode

import httpx
import pyarrow as pa

from cluster.errors import InvalidInput
from udtf.authoring import ViewCode
from udtf.output_columns import SchemaLike, read_schema
from udtf.spec import ViewKind
from udtf.view_http import NAME_DELIMITER, ViewHttp, path_of
from udtf.view_jobs import RefreshJob

ENVELOPE_FORMAT = "lance-mv-query"
ENVELOPE_VERSION = 1
_SELECT = "select"


class ViewClient:
    """Creates, refreshes and drops views of one database, and follows their jobs.

    `url` is the server's, `api_key` or `token` who asks. Names of views and tables in a namespace
    are joined by `$`. Refusals are raised as the classes of cluster.errors.
    """

    def __init__(
        self,
        url: str,
        *,
        api_key: str | None = None,
        token: str | None = None,
        database: str | None = None,
        timeout_s: float = 120.0,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        self._http = ViewHttp(url, api_key, token, database, timeout_s, transport)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections; jobs go on."""
        self._http.close()

    def create(
        self,
        name: str,
        code: ViewCode[Any, Any] | type | None = None,
        *,
        source: str | Mapping[str, Any],
        with_data: bool = False,
        auto_refresh: bool = False,
        inherit: Sequence[str] | None = None,
        output_schema: SchemaLike | None = None,
    ) -> RefreshJob | None:
        """Create a view; with `with_data` the job of its first refresh is returned.

        `source` is a table's name, `SELECT ... FROM table`, or a query envelope as a dict. Without
        `code` it is a query view. A chunker's view also has the columns of the source query, or
        those of them that `inherit` names. `output_schema` is worked out unless it is given.

        Raises:
            DestrierError: the code cannot be packed, or the server refuses the view.
        """
        # Type checkers see a decorated class as the class that it was.
        if code is not None and not isinstance(code, ViewCode):
            raise InvalidInput(f"{code!r} is not decorated; put @udtf or @chunker on it")
        query = source_query(source)
        columns = self.source_schema(query)
        schema = _output_schema(code, columns, inherit, output_schema)
        body = {
            "id": _names(name),
            "kind": ViewKind.QUERY.value if code is None else code.options.kind.value,
            "source_query": query,
            "output_schema": base64.b64encode(schema.serialize()).decode(),
            "udtf_spec": None if code is None else code.udtf_spec(columns.names),
            "with_no_data": not with_data,
            "auto_refresh": auto_refresh,
        }
        answer = self._http.ask("POST", _view_path(name, "create"), body)
        job_id = answer.get("job_id")
        return None if job_id is None else RefreshJob(self._http, str(job_id))

    def refresh(
        self,
        name: str,
        *,
        full: bool = False,
        source_version: int | None = None,
        concurrency: int | None = None,
        processes_per_worker: int | None = None,
        source_task_size: int | None = None,
        max_rows_per_fragment: int | None = None,
        output_limit: int | None = None,
        manifest: str | Path | None = None,
        cascade: bool = False,
        failed_only: bool = False,
    ) -> RefreshJob:
        """Bring a view up to date in the background.

        `full` computes every row anew. `concurrency` counts workers, each with
        `processes_per_worker` processes that run the code. `cascade` refreshes the views that this
        one reads first; `failed_only` runs what failed, was skipped or was not done the last time.
        What is None takes the deployment's default.
        """
        options = {
            "src_version": source_version,
            "full": full or None,
            "concurrency": concurrency,
            "intra_applier_concurrency": processes_per_worker,
            "source_task_size": source_task_size,
            "max_rows_per_fragment": max_rows_per_fragment,
            "output_limit": output_limit,
            "manifest": manifest.read_text() if isinstance(manifest, Path) else manifest,
            "cascade": cascade or None,
            "failed_only": failed_only or None,
        }
        given = {key: value for key, value in options.items() if value is not None}
        body = {"id": _names(name), **given}
        answer = self._http.ask("POST", _view_path(name, "refresh"), body)
        return RefreshJob(self._http, str(answer["job_id"]))

    def job(self, job_id: str) -> RefreshJob:
        """A handle to a job that is known by its id."""
        return RefreshJob(self._http, job_id)

    def describe(self, name: str) -> dict[str, Any]:
        """What the server says of a view: definition, lag, last refreshes."""
        return self._http.ask("POST", _view_path(name, "describe"), {"id": _names(name)})

    def list(self, namespace: str = "") -> list[str]:
        """The names of the views of a namespace."""
        path = f"namespace/{path_of(*_names(namespace))}/materialized_view/list"
        names: list[str] = []
        token = ""
        while True:
            answer = self._http.ask(
                "GET", f"{path}?{urlencode({'page_token': token})}" if token else path
            )
            names += answer.get("views") or []
            token = answer.get("page_token") or ""
            if not token:
                return names

    def drop(self, name: str) -> None:
        """Drop a view, its jobs and its schedule."""
        self._http.ask("POST", _view_path(name, "drop"), {"id": _names(name)})

    def rows(
        self,
        name: str,
        columns: Sequence[str] | Mapping[str, str] | None = None,
        *,
        filter: str | None = None,
        limit: int | None = None,
        branch: str | None = None,
        version: int | None = None,
    ) -> pa.Table:
        """Rows of a view or table; `columns` are names, or outputs with SQL expressions."""
        asked: dict[str, Any] = {"k": limit, "filter": filter, "branch": branch, "version": version}
        if isinstance(columns, Mapping):
            asked["columns"] = {"column_aliases": dict(columns)}
        elif columns is not None:
            asked["columns"] = {"column_names": list(columns)}
        body = {key: value for key, value in asked.items() if value is not None}
        path = f"table/{path_of(*_names(name))}/query"
        answer = self._http.send("POST", path, {"id": _names(name), "vector": [], **body})
        return pa.ipc.open_file(answer.content).read_all()

    def source_schema(self, query: str) -> pa.Schema:
        """The columns of a source query, with the types that the server gives them.

        Raises:
            InvalidInput: the server executes no query of this form.
        """
        # SQL is parsed for this alone.
        from udtf.source_query import recognise, why_not

        found = recognise(query)
        if found is None:
            raise InvalidInput(why_not(query) or "the source is of no form that is executed")
        return self.rows(
            NAME_DELIMITER.join(found.source_id),
            None if found.columns is None else dict(found.columns),
            limit=0,
            branch=found.branch,
            version=found.version,
        ).schema


def source_query(source: str | Mapping[str, Any]) -> str:
    """A source as a request carries it: SQL and JSON as they are, a table's name as an envelope."""
    if isinstance(source, Mapping):
        return json.dumps({"format": ENVELOPE_FORMAT, "version": ENVELOPE_VERSION, **source})
    text = source.strip()
    if text.startswith("{") or text.lower().split(None, 1)[:1] == [_SELECT]:
        return source
    if not text:
        raise InvalidInput("the source is empty; give a table's name or SELECT ... FROM table")
    return source_query({"source": {"id": _names(text)}})


def _output_schema(
    code: ViewCode[Any, Any] | None,
    columns: pa.Schema,
    inherit: Sequence[str] | None,
    given: SchemaLike | None,
) -> pa.Schema:
    """The view's columns, those of lineage apart."""
    if inherit is not None and (code is None or code.options.kind is not ViewKind.CHUNKER):
        raise InvalidInput("inherit is for views of chunkers; select the columns in the source")
    if given is not None:
        return read_schema(given)
    if code is None:
        return pa.schema(list(columns))
    made = code.options.output_schema
    if code.options.kind is ViewKind.UDTF:
        return made
    missing = [name for name in inherit or () if name not in columns.names]
    if missing:
        raise InvalidInput(
            f"inherit names {', '.join(missing)}, which are no columns of the source;"
            f" those are {', '.join(columns.names)}"
        )
    # A chunk's own column stands for the source's of the same name.
    kept = columns.names if inherit is None else inherit
    inherited = [columns.field(name) for name in kept if name not in made.names]
    return pa.schema([*inherited, *made])


def _names(name: str) -> list[str]:
    return name.split(NAME_DELIMITER) if name else []


def _view_path(name: str, operation: str) -> str:
    return f"materialized_view/{path_of(*_names(name))}/{operation}"
