"""Keys of locations that may be none, and keys made of two."""

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from icekeep.errors import InvalidTableError
from icekeep.storage.location_keys import Keys, location_keys
from icekeep.storage.locations import is_location

_FACTOR = np.uint64(0xD6E8FEB86659FD93)


def keys_of(locations: pa.Array) -> tuple[Keys, NDArray[np.bool_]]:
    """`location_keys`, and which of the texts are locations at all; the keys of others, and of nulls, are 0."""
    there = np.asarray(locations.is_valid())
    try:
        if there.all():
            return location_keys(locations), there
        keys = np.zeros(len(locations), np.int64)
        keys[there] = location_keys(locations.drop_null())
    except InvalidTableError:
        there = np.array([text is not None and is_location(text) for text in locations.to_pylist()], np.bool_)
        keys = np.zeros(len(locations), np.int64)
        keys[there] = location_keys(locations.filter(pa.array(there)))
    return keys, there


def paired(keys: Keys, numbers: Keys) -> Keys:
    """A key of each pair of a key and a number; of one key with different numbers they always differ."""
    mixed: Keys = (keys.astype(np.uint64) * _FACTOR + numbers.astype(np.uint64)).view(np.int64)
    return mixed
