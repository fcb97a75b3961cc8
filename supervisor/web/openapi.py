"""The OpenAPI document of `/api/v1`, made from the classes of its documents."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from importlib import metadata

from pydantic import TypeAdapter

from supervisor.contract.views.jobs import Failure
from supervisor.web.api import BASE, Document

_REF = "#/components/schemas/{model}"
ERRORS = {"400": "a wrong parameter", "404": "no such job, task or node", "503": "no supervisor leads"}


def openapi(documents: Sequence[Document]) -> bytes:
    """The document, as JSON."""
    kinds = sorted({Failure, *(each.kind for each in documents)}, key=lambda kind: kind.__name__)
    _, schemas = TypeAdapter.json_schemas(
        [(kind.__name__, "serialization", TypeAdapter[object](kind)) for kind in kinds], ref_template=_REF
    )
    body = {
        "openapi": "3.1.0",
        "info": {
            "title": "tf-supervisor",
            "version": _release(),
            "description": "Documents of `supervisorctl --output json`. Answers may get more fields.",
        },
        "paths": {BASE + each.path: {"get": _operation(each)} for each in documents},
        "components": {"schemas": schemas["$defs"]},
    }
    return json.dumps(body, indent=1, sort_keys=True).encode() + b"\n"


def _operation(document: Document) -> dict[str, object]:
    schema: dict[str, object] = {"$ref": _REF.format(model=document.kind.__name__)}
    content: dict[str, object] = {"application/json": {"schema": schema}}
    if document.as_stream:
        listed = {"type": "array", "items": schema}
        content = {
            "application/json": {"schema": listed},
            "text/event-stream": {"schema": {"type": "string"}},
        }
    failure = {"application/json": {"schema": {"$ref": _REF.format(model="Failure")}}}
    parts = re.findall(r"{(\w+)}", document.path)
    return {
        "summary": document.what,
        "parameters": [
            *({"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in parts),
            *(
                {"name": name, "in": "query", "description": what, "schema": {"type": "integer"}}
                for name, what in document.query.items()
            ),
        ],
        "responses": {
            "200": {"description": document.what, "content": content},
            **{code: {"description": what, "content": failure} for code, what in ERRORS.items()},
        },
    }


def _release() -> str:
    try:
        return metadata.version("tf-supervisor")
    except metadata.PackageNotFoundError:
        return "unknown"
