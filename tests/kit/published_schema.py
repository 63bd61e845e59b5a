"""What commands print, held against the schema that `icekeep schema` prints."""

import json
from functools import cache
from typing import Any

from jsonschema import Draft202012Validator

from icekeep.operations.commands.document_schema import schema


def problems(document: Any) -> list[str]:
    """Where a document does not fit its schema; here a field that the schema does not know is a problem too."""
    return _problems(_validator(document["job"] if "result" in document else None, "error" in document), document)


def problems_of_result(job: str, result: Any) -> list[str]:
    """The same of what a job or command has as `result`."""
    return _problems(_result_validator(job), result)


@cache
def _validator(job: str | None, is_error: bool) -> Draft202012Validator:
    whole = _strict(schema(job=job).document)
    return Draft202012Validator({**whole["anyOf"][-1 if is_error else 0], "$defs": whole["$defs"]})


@cache
def _result_validator(job: str) -> Draft202012Validator:
    whole = _strict(schema(job=job).document)
    return Draft202012Validator({**whole["anyOf"][0]["properties"]["result"], "$defs": whole["$defs"]})


def _problems(validator: Draft202012Validator, value: Any) -> list[str]:
    # Through JSON and back: what is held against the schema is what a reader gets.
    found = validator.iter_errors(json.loads(json.dumps(value)))
    return [f"{error.json_path}: {error.message[:300]}" for error in found]


def _strict(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_strict(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    strict = {key: _strict(value) for key, value in schema.items()}
    return {"additionalProperties": False, **strict} if isinstance(schema.get("properties"), dict) else strict
