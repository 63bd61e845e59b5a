"""The command `schema`: the JSON schema of outcome and error documents, made from the results' types, or of the configuration.

What a job returns is read from its functions' annotations, so that a field that is added is in the schema.
"""

import inspect
import json
from collections.abc import Iterable, Mapping
from types import UnionType
from typing import Any, Union, get_args, get_origin

import msgspec

from icekeep.errors import UsageError
from icekeep.fleet.values import MatchedTables
from icekeep.operations.command_specs import COMMANDS
from icekeep.operations.configuration.editor_schema import configuration_schema
from icekeep.operations.console.values import is_snapshot_id
from icekeep.operations.jobs import JOBS, resolve
from icekeep.operations.misspelt import LISTED, validate_choice
from icekeep.operations.outcomes import SCHEMA_VERSION, ErrorDocument, Held, Outcome

_DIALECT = "https://json-schema.org/draft/2020-12/schema"
_DEFS = "#/$defs/{name}"
_CHANGED = "icekeep.operations.command_run:TableChanged"


class SchemaShown(msgspec.Struct, frozen=True, kw_only=True):
    """A schema, and the version that documents of it have as `schema_version`."""

    version: int
    document: dict[str, Any]


class ConfigurationSchema(msgspec.Struct, frozen=True, kw_only=True):
    """The schema of the configuration file."""

    document: dict[str, Any]


def schema(*, job: str | None = None, configuration: bool = False) -> SchemaShown | ConfigurationSchema:
    """The schema of what one job or command prints, or each; or of the configuration file."""
    if configuration and job is not None:
        raise UsageError("--job and --configuration are two schemas; give one of them")
    return ConfigurationSchema(document=configuration_schema()) if configuration else _schema_of(job)


def _schema_of(job: str | None) -> SchemaShown:
    known = [*JOBS, *COMMANDS]
    if job is not None:
        validate_choice(job, known, "job or command", LISTED)
    names = known if job is None else [job]
    types = {name: [*result_types(name)] for name in names}
    every = {one for some in types.values() for one in some if one is not Any}
    structs = [Outcome, ErrorDocument, *sorted(every, key=lambda one: str(one.__qualname__))]
    found, components = msgspec.json.schema_components(structs, schema_hook=_as_text, ref_template=_DEFS)
    of_type = dict(zip(structs, found, strict=True))
    outcomes = [_outcome_of(name, [of_type.get(one, {}) for one in types[name]], components) for name in names]
    components.pop(Outcome.__name__)
    error = components[ErrorDocument.__name__]
    return SchemaShown(
        version=SCHEMA_VERSION,
        document={
            "$schema": _DIALECT,
            "title": "What icekeep commands print as JSON",
            "anyOf": [*outcomes, {"$ref": _DEFS.format(name=ErrorDocument.__name__)}],
            "$defs": {name: _plain(one) for name, one in sorted({**components, ErrorDocument.__name__: error}.items())},
        },
    )


def schema_text(shown: SchemaShown | ConfigurationSchema) -> str:
    return json.dumps(shown.document, indent=2, ensure_ascii=False) + "\n"


def _outcome_of(name: str, results: list[dict[str, Any]], components: Mapping[str, Any]) -> dict[str, Any]:
    outcome = _plain(components[Outcome.__name__])
    properties = {
        **outcome["properties"],
        "job": {"const": name},
        "schema_version": {"const": SCHEMA_VERSION},
        "result": results[0] if len(results) == 1 else {"anyOf": results},
    }
    required = [*dict.fromkeys(["schema_version", *outcome["required"]])]
    return {**outcome, "title": name, "properties": properties, "required": required}


def result_types(name: str) -> Iterable[Any]:
    """What a job or command may have as `result`."""
    if name in COMMANDS:
        verb = COMMANDS[name]
        if verb.returns is not None:
            return _returned(verb.returns)
        return [resolve(_CHANGED)] if verb.changes else _returned(verb.run)
    job = JOBS[name]
    functions = dict.fromkeys(filter(None, (job.run, job.plan)))
    more = [MatchedTables, Held] if job.rank is not None else []
    return dict.fromkeys([*(one for function in functions for one in _returned(function)), *more])


def _returned(function: str) -> Iterable[Any]:
    # Of the other annotations some are for type checkers alone.
    hint = inspect.unwrap(resolve(function)).__annotations__["return"]
    return get_args(hint) if get_origin(hint) in (Union, UnionType) else [hint]


def _as_text(_: type) -> dict[str, Any]:
    """Kinds that JSON has not are written as text."""
    return {"type": "string"}


def _id_as_text(name: str, schema: dict[str, Any]) -> dict[str, Any]:
    """The schema of a field as documents have it: ids of snapshots are numbers in Python, and text in JSON."""
    if not is_snapshot_id(name):
        return schema
    if "anyOf" in schema:
        return {**schema, "anyOf": [_id_as_text(name, one) for one in schema["anyOf"]]}
    if "items" in schema:
        return {**schema, "items": _id_as_text(name, schema["items"])}
    return {"type": "string"} if schema.get("type") == "integer" else schema


def _plain(schema: Any) -> Any:
    """A schema of what documents hold: fields with defaults are always there, and what these are says nothing of the document."""
    if isinstance(schema, list):
        return [_plain(one) for one in schema]
    if not isinstance(schema, Mapping):
        return schema
    plain = {key: _plain(value) for key, value in schema.items() if key not in ("default", "description", "properties")}
    if "properties" in schema:
        fields = schema["properties"]
        plain["properties"] = {name: _id_as_text(name, _plain(one)) for name, one in fields.items()}
        required = {*schema.get("required", ()), *(name for name, one in fields.items() if "default" in one)}
        plain["required"] = [name for name in fields if name in required]
    return plain
