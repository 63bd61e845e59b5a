"""What both rivals of `compaction.py` do: compact copies of a table, one after another. Standard library only."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench import clones
from bench.watching import Watch

NAMESPACE = "db"


def measured(request: dict[str, Any], compact: Callable[[str], dict[str, Any]]) -> dict[str, Any]:
    """Compact a small table so that the session is warm, then fresh copies of the table that counts.

    Args:
        compact: compacts the table of a name and says what its result says.

    Returns:
        `runs`, each with what `Watch` saw, `files` and `bytes` written and the `result`; and `kept`, the directory of the
        last copy, which is left as it was compacted.
    """
    warehouse = Path(request["warehouse"])
    small = warehouse / NAMESPACE / "small"
    clones.clone(Path(request["small"]), small)
    compact(f"{NAMESPACE}.small")
    runs: list[dict[str, Any]] = []
    copy = warehouse / NAMESPACE / "copy"
    for _ in range(1 + request["repeat"]):
        clones.clone(Path(request["source"]), copy)
        with Watch() as watch:
            result = compact(f"{NAMESPACE}.copy")
        files, size_bytes = clones.written(copy)
        runs.append({**watch.figures(), "files": files, "bytes": size_bytes, "result": result})
    return {"runs": runs, "kept": str(copy)}
