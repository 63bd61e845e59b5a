"""The JSON schema of the configuration file, for editors: that of the shape, and what an editor can say beside it.

It says of a file what can be said of each value by itself: keys, types, forms, words. Whatever fails here is refused by the
loader (but for `yes` and `no`, which only YAML 1.1 takes for booleans); what the loader holds against other values, such as
names that are given twice, it does not say.
"""

from typing import Any

import msgspec

from icekeep.operations.configuration.file import notifying_jobs
from icekeep.operations.configuration.shape import ConfigurationKeys
from icekeep.operations.jobs import JOBS, POLICY_JOBS, resolve
from icekeep.settings import CATALOG_TYPES

_DIALECT = "https://json-schema.org/draft/2020-12/schema"
_DEFS = "#/$defs/{name}"


def configuration_schema() -> dict[str, Any]:
    _, below = msgspec.json.schema_components([ConfigurationKeys], ref_template=_DEFS)
    for schema in below.values():
        schema.pop("title")
        schema["description"] = schema["description"].partition("\n")[0]
    whole = below.pop(ConfigurationKeys.__name__)
    # Which types there are is known when a catalog is opened; those of icekeep are offered.
    kind = {"anyOf": [{"enum": [*CATALOG_TYPES]}, {"type": "string", "pattern": r"\S"}]}
    whole["properties"]["catalogs"]["additionalProperties"] |= {"properties": {"type": kind}, "required": ["type"]}
    below["NotificationKeys"]["properties"]["jobs"]["items"] = {"enum": [*notifying_jobs()]}
    below["PolicyKeys"]["anyOf"] = [{"required": ["tables"]}, {"required": ["match"]}]
    for job in POLICY_JOBS:
        named = JOBS[job].options
        if named is not None:
            options: Any = resolve(named)
            names = [one.encode_name for one in msgspec.structs.fields(options)]
            schema = below[f"{job}_keys"]["properties"]["options"]
            schema["properties"] = dict.fromkeys(names, schema["additionalProperties"])
    schedule_is_common = {"required": ["defaults"], "properties": {"defaults": {"required": ["schedule"]}}}
    return {
        "$schema": _DIALECT,
        **whole,
        "title": "The configuration of icekeep",
        "type": ["object", "null"],
        "if": {"type": "object", "not": schedule_is_common},
        "then": {"properties": {"policies": {"items": {"required": ["schedule"]}}}},
        "$defs": below,
    }
