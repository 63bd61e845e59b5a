"""A truth a row: what filters, deletes and hashes say of the rows of a table."""

from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

Mask = np.ndarray[tuple[int], np.dtype[np.bool_]]
"""A truth a row."""

Column: TypeAlias = "pa.Array | pa.ChunkedArray"


def where_true(truths: Column) -> Mask:
    """A mask of truths, false where they are null."""
    return pc.fill_null(truths, False).to_numpy(zero_copy_only=False)
