"""Which source queries are recognised, as what, and what is said of the others."""

import json
import re
from typing import Any

import pytest

from udtf.source_query import RecognisedQuery, recognise, why_not
from udtf.source_query_sql import volatile_call


def envelope(**changes: Any) -> str:
    """An envelope that is right but for the changes; a change to `...` removes the key."""
    value: dict[str, Any] = {
        "format": "lance-mv-query",
        "version": 1,
        "source": {"id": ["ns", "docs"], "branch": None, "version": None, "tag": None},
        "columns": None,
        "filter": None,
        "limit": None,
        "dialect": "lance-sql",
    }
    value |= changes
    return json.dumps({key: item for key, item in value.items() if item is not ...})


DOCS = ("docs",)
NS_DOCS = ("ns", "docs")
SQL = {
    'SELECT * FROM "docs"': RecognisedQuery(DOCS),
    # As LanceDB's client writes it.
    'SELECT `id` AS "id", upper(text) AS "t2" FROM "docs" WHERE id > 3 LIMIT 7': RecognisedQuery(
        DOCS, columns=(("id", "`id`"), ("t2", "upper(text)")), filter="id > 3", limit=7
    ),
    'SELECT id+1 AS "x" FROM "docs"': RecognisedQuery(DOCS, columns=(("x", "id+1"),)),
    "SELECT id, v * 2 AS d FROM src WHERE v > 1": RecognisedQuery(
        ("src",), columns=(("id", "id"), ("d", "v * 2")), filter="v > 1"
    ),
    "select id, meta.lang from a.b.docs;": RecognisedQuery(
        ("a", "b", "docs"), columns=(("id", "id"), ("lang", "meta.lang"))
    ),
    'SELECT `a b` AS "c ""d""" FROM "my ""docs"""': RecognisedQuery(
        ('my "docs"',), columns=(('c "d"', "`a b`"),)
    ),
    "SELECT date AS index FROM schema": RecognisedQuery(("schema",), columns=(("index", "date"),)),
    "SELECT coalesce(a, b) AS c, [1, 2] AS d FROM docs": RecognisedQuery(
        DOCS, columns=(("c", "coalesce(a, b)"), ("d", "[1, 2]"))
    ),
    "SELECT a FROM docs WHERE s = 'LIMIT 3; -- FROM' AND extract(year FROM d) = 1": RecognisedQuery(
        DOCS, columns=(("a", "a"),), filter="s = 'LIMIT 3; -- FROM' AND extract(year FROM d) = 1"
    ),
    "SELECT a IS DISTINCT FROM b AS c FROM docs LIMIT 0": RecognisedQuery(
        DOCS, columns=(("c", "a IS DISTINCT FROM b"),), limit=0
    ),
    "SELECT * FROM docs LIMIT " + "0" * 5_000 + "7": RecognisedQuery(DOCS, limit=7),
    "SELECT CASE WHEN a THEN 1 ELSE 2 END AS c FROM docs": RecognisedQuery(
        DOCS, columns=(("c", "CASE WHEN a THEN 1 ELSE 2 END"),)
    ),
}
JSON = {
    envelope(): RecognisedQuery(NS_DOCS),
    envelope(source={"id": ["docs"]}, columns=..., filter=..., dialect=...): RecognisedQuery(DOCS),
    envelope(source={"id": ["docs"], "branch": "b", "version": 3}): RecognisedQuery(
        DOCS, branch="b", version=3
    ),
    envelope(source={"id": ["docs"], "branch": "main"}): RecognisedQuery(DOCS),
    envelope(source={"id": ["docs"], "tag": "t"}, filter="v > 0", limit=3): RecognisedQuery(
        DOCS, tag="t", filter="v > 0", limit=3
    ),
    envelope(columns=["id", "meta.lang", "a `b"]): RecognisedQuery(
        NS_DOCS, columns=(("id", "`id`"), ("lang", "`meta`.`lang`"), ("a `b", "`a ``b`"))
    ),
    envelope(columns={"out": "v * 2"}): RecognisedQuery(NS_DOCS, columns=(("out", "v * 2"),)),
    envelope(columns=[{"name": "out", "expr": "v * 2"}]): RecognisedQuery(
        NS_DOCS, columns=(("out", "v * 2"),)
    ),
    '{"format":1,"kind":"query","query":"SELECT id FROM docs"}': RecognisedQuery(
        DOCS, columns=(("id", "id"),)
    ),
    '{"format":1,"query":"SELECT * FROM `docs` LIMIT 2"}': RecognisedQuery(DOCS, limit=2),
    json.dumps(
        {
            "kind": "select",
            "source_table": "docs",
            "projections": [{"output": "d", "expression": "v * 2"}],
            "filter": "v > 1",
            "limit": None,
            "inputs": ["v"],
        }
    ): RecognisedQuery(DOCS, columns=(("d", "v * 2"),), filter="v > 1"),
    json.dumps(
        {"kind": "namespaced_select", "source_namespace": ["ns"], "source_table": "docs"}
    ): RecognisedQuery(NS_DOCS),
}
OTHERS = {
    "": "does not begin with SELECT",
    "q": "does not begin with SELECT",
    "WITH a AS (SELECT 1) SELECT id FROM a": "does not begin with SELECT",
    "SELECT": "has no FROM",
    "SELECT FROM docs": "column between SELECT and FROM is missing",
    "SELECT id, FROM docs": "column between SELECT and FROM is missing",
    "SELECT id FROM": "name of one table is missing",
    "SELECT id FROM 'docs'": "name of one table is missing",
    "SELECT id FROM ns.": "name of one table is missing",
    "SELECT 'a FROM docs": "not SQL",
    "SELECT (id FROM docs": "bracket is not closed",
    "SELECT id) FROM docs": "closes nothing",
    "SELECT v * 2 FROM docs": "'v \\* 2' needs a name",
    "SELECT id, * FROM docs": "stands alone",
    "SELECT DISTINCT id FROM docs": "SELECT DISTINCT",
    "SELECT id FROM docs d": "'d' after the table",
    "SELECT id FROM docs AS d": "'AS' after the table",
    "SELECT id FROM a, b": "more than one table",
    "SELECT id FROM a JOIN b ON a.x = b.x": "'JOIN' after the table",
    "SELECT id FROM vector_dedup('docs', 1)": "function vector_dedup in FROM",
    "SELECT id FROM docs, UNNEST(x) AS y": "more than one table",
    "SELECT id FROM (SELECT id FROM docs)": "queries inside the query",
    "SELECT id FROM docs WHERE id IN (SELECT 1)": "queries inside the query",
    "SELECT id FROM docs WHERE": "WHERE is followed by nothing",
    "SELECT id FROM docs GROUP BY id": "'GROUP BY' after the table",
    "SELECT id FROM docs WHERE v ORDER BY id": "ORDER BY is not supported",
    "SELECT id FROM docs LIMIT 10 OFFSET 1": "'LIMIT' after the table",
    "SELECT id FROM docs LIMIT 1e2": "LIMIT 1e2 is no whole number",
    "SELECT id FROM docs LIMIT 9223372036854775808": "is no whole number",
    "SELECT id FROM docs LIMIT " + "1" * 5_000: "LIMIT 1{20} is no whole number",
    "SELECT id FROM docs; DROP TABLE docs": "more than one statement",
    "SELECT id FROM docs -- all": "a comment",
    "SELECT id FROM docs WHERE " + "v = 1 OR " * 5_000 + "v": "longer than 16384",
    "{": "not valid JSON",
    '{"a": 1, "a": 2}': "given twice",
    "[]": "does not begin with SELECT",
    '{"a": 1}': "no known format",
    '{"format":2,"kind":"query","query":"SELECT id FROM docs"}': "format 2 are of groups",
    '{"format":3,"query":"SELECT id FROM docs"}': "format 3 are of pairs",
    '{"format":4,"query":"SELECT id FROM docs"}': "format 4 are of searches",
    '{"format":5,"query":"SELECT id FROM docs"}': "format 5 is not known",
    '{"format":true,"query":"SELECT id FROM docs"}': "format True is not known",
    '{"format":1,"kind":"x","query":"SELECT id FROM docs"}': "kind 'x'",
    '{"format":1,"query":7}': "not text",
    '{"kind":"select","source_table":"docs","joins":[]}': "unknown key 'joins'",
    '{"kind":"select"}': "source_table is no list of names",
    '{"kind":"select","source_table":"d","projections":[{"output":"a"}]}': "without a name",
    envelope(version=2): "version 2 of the format",
    envelope(version=True): "version True of the format",
    envelope(extra=1): "unknown key 'extra'",
    envelope(dialect="spark"): "dialect 'spark'",
    envelope(source=...): "source is not an object",
    envelope(source={"id": []}): "source.id is empty",
    envelope(source={"id": "docs"}): "source.id is no list of names",
    envelope(source={"id": ["docs"], "at": 1}): "unknown key 'at'",
    envelope(source={"id": ["docs"], "version": 0}): "whole number from 1",
    envelope(source={"id": ["docs"], "tag": "t", "version": 1}): "a tag names both",
    envelope(source={"id": ["docs"], "branch": ""}): "branch is no text",
    envelope(source={"id": ["\ud800"]}): "lone surrogate",
    envelope(source={"id": ["docs"], "branch": "\udfff"}): "lone surrogate",
    envelope(source={"id": ["docs"], "branch": "../../keys/k", "version": 1}): "source.branch",
    envelope(columns={"\ud800": "id"}): "lone surrogate",
    envelope(columns=[]): "names none",
    envelope(columns=["id", 1]): "no list of names",
    envelope(columns=[{"name": "a", "sql": "b"}]): "unknown key 'sql'",
    envelope(columns={"a": ""}): "without an expression",
    envelope(filter=7): "filter is no text",
    envelope(limit=-1): "whole number from 0",
    envelope(limit=True): "whole number from 0",
}


@pytest.mark.parametrize("text", [*SQL, *JSON])
def test_known_forms_are_read(text: str) -> None:
    assert recognise(text) == (SQL | JSON)[text]
    assert why_not(text) is None


@pytest.mark.parametrize("text", OTHERS)
def test_other_text_is_not_recognised_and_why_is_said(text: str) -> None:
    assert recognise(text) is None
    reason = why_not(text)
    assert reason is not None
    assert re.search(OTHERS[text], reason), reason
    assert "accepted are SELECT columns FROM table" in reason


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("random() > 0.5", "random"),
        ("v + RANDOM ( )", "random"),
        ("coalesce(a, now())", "now"),
        ('"uuid"()', "uuid"),
        ("d < current_date", "current_date"),
        ("CURRENT_TIMESTAMP", "current_timestamp"),
        ("arrow_typeof(v) = 'x'", "arrow_typeof"),
        ("'random()' = s", None),
        ("now > 3", None),
        ("version + random", None),
        ("localtime = 1", None),
    ],
)
def test_volatile_functions_are_found(text: str, name: str | None) -> None:
    assert volatile_call(text, ["localtime", "now"]) == name
