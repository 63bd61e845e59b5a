"""Make a table that a benchmark keeps: `python make.py SHAPE CACHE`, where the shape is JSON. `run.py --rounds 0` calls it."""

import sys
import time
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[3] / "lib"), str(Path(__file__).parents[2])]

import msgspec  # noqa: E402 - the path comes first

from bench.tables import (  # noqa: E402 - as above
    big_tables,
    changes,
    delete_entries,
    histories,
    lineitem,
    scale_tables,
)
from bench.tables.kept import kept, make_anew  # noqa: E402 - as above

MAKERS = {
    big_tables.Shape: big_tables.make,
    changes.Changes: changes.make,
    delete_entries.DeleteEntries: delete_entries.make,
    histories.History: histories.make,
    lineitem.Lineitem: lineitem.make,
    scale_tables.Scale: scale_tables.make,
}
Shapes = (
    big_tables.Shape
    | changes.Changes
    | delete_entries.DeleteEntries
    | histories.History
    | lineitem.Lineitem
    | scale_tables.Scale
)


def main() -> None:
    shape = msgspec.json.decode(sys.argv[1], type=Shapes)
    began = time.monotonic()
    make_anew(kept(shape, Path(sys.argv[2])), MAKERS[type(shape)])
    print(f"{shape.name} made in {time.monotonic() - began:.1f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
