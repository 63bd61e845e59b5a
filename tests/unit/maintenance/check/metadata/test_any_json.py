"""No JSON is too broken to be looked at, and what is called sound loads."""

import copy
import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from icekeep.errors import InvalidTableError, UnsupportedError
from icekeep.spec.metadata import metadata_from_json
from kit.cases import cases, for_each
from kit.faults import checked, serious
from kit.metadata import sound_document
from kit.table_strategies import json_values


@st.composite
def mutated(draw: st.DrawFn) -> Any:
    """A sound document of which something is another value, gone, or there twice, a few times over."""
    document: Any = sound_document(draw(st.sampled_from([1, 2, 3])))
    for _ in range(draw(st.integers(1, 3))):
        places = [*_places(document)]
        holder, key = draw(st.sampled_from(places))
        match draw(st.integers(0, 3)):
            case 0:
                del holder[key]
            case 1:
                holder[key] = copy.deepcopy(draw(st.sampled_from([h[k] for h, k in places])))
            case 2 if isinstance(holder, list):
                holder.append(copy.deepcopy(holder[key]))
            case _:
                holder[key] = draw(json_values() | st.integers(-2, 3) | st.text(max_size=3))
        if not document:
            break
    return document


def _places(value: Any) -> list[tuple[Any, Any]]:
    keys = range(len(value)) if isinstance(value, list) else list(value) if isinstance(value, dict) else ()
    return [place for key in keys for place in ((value, key), *_places(value[key]))]


@cases(200)
@given(mutated())
def test_no_mutation_raises_and_what_is_called_sound_loads(document):
    before = json.dumps(document)
    tally = checked(document)
    assert json.dumps(document) == before, "the document was changed"
    if not serious(tally) and not tally.gaps():
        metadata_from_json(document)


@cases(200)
@given(mutated())
def test_what_does_not_load_has_a_fault_or_a_gap(document):
    try:
        metadata_from_json(document)
    except (InvalidTableError, UnsupportedError):
        tally = checked(document)
        assert serious(tally) or tally.gaps()


@for_each("key", ["schemas", "snapshots", "properties", "refs", "statistics"])
def test_metadata_that_is_nested_as_deep_as_json_may_be_raises_nothing(key):
    deep: Any = []
    for _ in range(800):
        deep = [deep]
    for value in (deep, [deep], {"a": deep}):
        assert 101 in checked({**sound_document(), key: value}).counts
