"""The wire models: pydantic, named as the specification names them, one module per resource."""
