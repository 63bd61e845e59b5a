"""What is fuzzed: each target spoils a sound input and says whether the library took it or refused it, rightly.

Refused means an error of icekeep's, in one line. Taken means that a second, independent look agrees: what was read says
what the input says. Anything else (another exception, a wrong answer) raises `AssertionError` or escapes.
"""

from collections.abc import Callable
from random import Random
from typing import NamedTuple

from fuzz.manifest_targets import (
    manifest_bytes,
    manifest_headers,
    manifest_list_bytes,
    manifest_list_schemas,
    manifest_schemas,
    puffin_bytes,
)
from fuzz.metadata_targets import metadata_bytes, metadata_values
from fuzz.text_targets import (
    filters,
    locations,
    name_mappings,
    names,
    nested_types,
    single_values,
    specs_and_orders,
    type_texts,
)


class Target(NamedTuple):
    """`check` spoils one input by a generator, and returns whether it was taken."""

    name: str
    check: Callable[[Random], bool]


TARGETS = tuple(
    Target(check.__name__, check)
    for check in (
        metadata_values, metadata_bytes, manifest_bytes, manifest_schemas, manifest_headers, manifest_list_bytes,
        manifest_list_schemas, type_texts, nested_types, specs_and_orders, filters, names, locations, single_values,
        name_mappings, puffin_bytes,
    )
)  # fmt: skip
