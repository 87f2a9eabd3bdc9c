"""Arrow schemas on the wire."""

from serve_app.wire.base import Count, WireModel


class JsonArrowDataType(WireModel):
    """An Arrow type by name; `length` is a fixed size, or 1000 x precision + scale of a decimal."""

    type: str
    fields: list["JsonArrowField"] | None = None
    length: Count | None = None


class JsonArrowField(WireModel):
    """An Arrow field."""

    name: str
    nullable: bool
    type: JsonArrowDataType
    metadata: dict[str, str] | None = None


class JsonArrowSchema(WireModel):
    """An Arrow schema."""

    fields: list[JsonArrowField]
    metadata: dict[str, str] | None = None
