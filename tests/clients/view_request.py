"""A right request for a materialized view of the airports."""

import base64

import pyarrow as pa

SOURCE_QUERY = "SELECT faa, alt FROM airports WHERE alt > 5000"
_SCHEMA = pa.schema([pa.field("faa", pa.string()), pa.field("alt", pa.int64())])
OUTPUT_SCHEMA = base64.b64encode(_SCHEMA.serialize()).decode()
