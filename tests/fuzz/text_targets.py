"""Spoilt types, values, names, filters and locations."""

from random import Random

import msgspec

from fuzz.judging import USER_REFUSALS, assert_survives, taken
from fuzz.mutations import json_bytes, mutate_bytes, mutate_json, mutate_text
from icekeep.catalog.base import parse_identifier, validate_table_identifier
from icekeep.errors import (
    ExpressionError,
)
from icekeep.spec.filters.binding import bind
from icekeep.spec.filters.parsing import format_expression, parse_where
from icekeep.spec.partitioning import spec_from_json, spec_to_json
from icekeep.spec.schema import name_mapping_to_json, parse_name_mapping, schema_from_json
from icekeep.spec.sorting import sort_order_from_json, sort_order_to_json
from icekeep.spec.types import parse_type, type_from_json, type_to_json
from icekeep.spec.values import value_from_bytes, value_from_json, value_to_bytes, value_to_json
from icekeep.storage.locations import canonical
from kit.metadata import full_document

_TYPES = ["int", "decimal(9, 2)", "fixed[16]", "geometry(OGC:CRS84)", "geography(srid:4326, spherical)", "timestamp_ns"]
_TRANSFORMS = ["bucket[16]", "truncate[10]", "identity", "day", "void", "zorder[3]"]
_FILTERS = [
    "id = 1 AND NOT (kind IN ('a', 'b') OR price > 1.50)",
    "ts >= TIMESTAMP '2026-01-01 00:00:00' AND day < today - 7",
    "kind LIKE 'ab%' OR kind NOT LIKE 'c\\%d%' AND score IS NOT NAN",
    'price BETWEEN -1 AND 2.5 OR "odd name" = 7 OR address.city IS NULL',
]
_SCHEMA = schema_from_json(
    {
        "type": "struct",
        "fields": [
            {"id": 1, "name": "id", "required": True, "type": "long"},
            {"id": 2, "name": "kind", "required": False, "type": "string"},
            {"id": 3, "name": "price", "required": False, "type": "decimal(9, 2)"},
            {"id": 4, "name": "ts", "required": False, "type": "timestamp"},
            {"id": 5, "name": "day", "required": False, "type": "date"},
            {"id": 6, "name": "score", "required": False, "type": "double"},
            {"id": 7, "name": "odd name", "required": False, "type": "int"},
            {"id": 8, "name": "address", "required": False, "type": {
                "type": "struct", "fields": [{"id": 9, "name": "city", "required": False, "type": "string"}]
            }},
        ],
    }
)  # fmt: skip


def type_texts(rng: Random) -> bool:
    text = mutate_text(rng.choice(_TYPES), rng, rng.choice([1, 2, 4]))
    type_ = taken(lambda: parse_type(text))
    if type_ is None:
        return False
    assert parse_type(str(type_)) == type_
    return True


def nested_types(rng: Random) -> bool:
    document = mutate_json({"type": rng.choice(full_document()["schemas"]) | {"type": "struct"}}, rng, 2).get("type")
    if rng.random() < 0.02:
        for _ in range(rng.choice([50, 600, 5000])):
            document = {"type": "list", "element-id": 5, "element": document, "element-required": True}
    type_ = taken(lambda: type_from_json(document))
    if type_ is None:
        return False
    assert type_from_json(type_to_json(type_)) == type_
    return True


def specs_and_orders(rng: Random) -> bool:
    kind, read, write = rng.choice(
        [
            ("partition-specs", spec_from_json, spec_to_json),
            ("sort-orders", sort_order_from_json, sort_order_to_json),
        ]
    )
    sound = rng.choice(full_document()[kind])
    for field in sound["fields"]:
        if rng.random() < 0.3:
            field["transform"] = mutate_text(rng.choice(_TRANSFORMS), rng, 1)
    document = mutate_json({"it": sound}, rng, rng.choice([1, 2])).get("it")
    value = taken(lambda: read(document))
    if value is None:
        return False
    assert read(write(value)) == value
    assert_survives(document, write(value), "it")
    return True


def filters(rng: Random) -> bool:
    text = mutate_text(rng.choice(_FILTERS), rng, rng.choice([1, 1, 2, 4]))
    parsed = taken(lambda: parse_where(text, 1_700_000_000_000), (ExpressionError,))
    if parsed is None:
        return False
    assert parse_where(format_expression(parsed), 0) == parsed
    return taken(lambda: bind(parsed, _SCHEMA), USER_REFUSALS) is not None


def names(rng: Random) -> bool:
    text = mutate_text(rng.choice(["db.events", "a.b.c", "db"]), rng, rng.choice([1, 2, 3]))
    return taken(lambda: validate_table_identifier(parse_identifier(text)), USER_REFUSALS) is not None


def locations(rng: Random) -> bool:
    text = mutate_text(rng.choice(["s3://bucket/db/t", "file:///a/../b", "/a//b", "hdfs://nn:8020/x"]), rng, 2)
    key = taken(lambda: canonical(text))
    if key is None:
        return False
    assert canonical(key) == key
    return True


_PRIMITIVES = ["boolean", "int", "long", "float", "double", "decimal(9, 2)", "date", "time", "timestamp", "timestamptz",
               "timestamp_ns", "string", "uuid", "fixed[3]", "binary"]  # fmt: skip
_JSON = [True, 5, 1.5, "14.20", "2017-11-16", "22:31:08.123456", "2017-11-16T22:31:08.123456",
         "2017-11-16T22:31:08.123456+00:00", "iceberg", "f79c3e09-677c-4bbd-a479-3f349cb785e7", "00010203"]  # fmt: skip


def single_values(rng: Random) -> bool:
    type_ = parse_type(rng.choice(_PRIMITIVES))
    if rng.random() < 0.5:
        value = taken(lambda: value_from_bytes(type_, rng.randbytes(rng.choice([0, 1, 3, 4, 8, 16, 20]))))
        if value is None:
            return False
        again = value_from_bytes(type_, value_to_bytes(type_, value))
        assert again == value or (value != value and again != again)
        return True
    literal = rng.choice(_JSON)
    literal = mutate_text(literal, rng, 1) if isinstance(literal, str) else literal
    value = taken(lambda: value_from_json(type_, literal))
    if value is None:
        return False
    assert value_from_json(type_, value_to_json(type_, value)) == value
    return True


_MAPPING = [
    {"field-id": 1, "names": ["id", "record_id"]},
    {"field-id": 2, "names": ["data"], "fields": [{"field-id": 3, "names": ["element"], "fields": []}]},
    {"names": ["gone"]},
]


def name_mappings(rng: Random) -> bool:
    text = json_bytes(
        mutate_json({"m": _MAPPING}, rng, rng.choice([1, 2])).get("m") if rng.random() < 0.7 else _MAPPING
    )
    text = text if rng.random() < 0.7 else mutate_bytes(text, rng, 1)
    mapping = taken(lambda: parse_name_mapping(text.decode(errors="replace")), USER_REFUSALS)
    if mapping is None:
        return False
    assert parse_name_mapping(msgspec.json.encode(name_mapping_to_json(mapping)).decode()) == mapping
    return True
