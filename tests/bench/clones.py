"""Copies of a table's metadata under another location: each run compacts a table that no run before has touched.

Data files stay where they are, for compaction deletes none; new files go to the copy. Standard library only: both rivals'
Pythons use it.
"""

import json
import shutil
import uuid
from pathlib import Path


def metadata_of(table: Path) -> Path:
    """The current metadata file of a table in the layout of Iceberg's HadoopCatalog."""
    directory = table / "metadata"
    return directory / f"v{int((directory / 'version-hint.text').read_text())}.metadata.json"


def clone(source: Path, copy: Path) -> None:
    """Make a table of the same snapshots at another place; what was there is removed."""
    remove(copy)
    document = json.loads(metadata_of(source).read_bytes())
    document |= {"location": copy.as_uri(), "table-uuid": str(uuid.uuid4()), "metadata-log": []}
    directory = copy / "metadata"
    directory.mkdir(parents=True)
    (directory / "v1.metadata.json").write_text(json.dumps(document))
    (directory / "version-hint.text").write_text("1")


def remove(copy: Path) -> None:
    """Remove a copy with the files that were written for it."""
    shutil.rmtree(copy, ignore_errors=True)


def written(copy: Path) -> tuple[int, int]:
    """How many data files were written for a copy, and their bytes."""
    sizes = [path.stat().st_size for path in (copy / "data").rglob("*.parquet")]
    return len(sizes), sum(sizes)
