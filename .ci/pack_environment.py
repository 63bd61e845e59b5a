"""Pack the environment that this Python is of for `spark-submit --archives`: what executors import, compiled, and nothing else.

It is run by the environment's own Python, which has no packages to spare for it.
"""

import compileall
import py_compile
import sys
import tarfile
from pathlib import Path

SKIPPED = {"tests", "include"}
"""Directories that no import leads to."""


def main(environment: Path, target: Path) -> None:
    # Unpacking gives files new times on some clusters, and each Python worker would compile all modules again.
    mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
    compileall.compile_dir(environment / "lib", quiet=2, force=True, workers=0, invalidation_mode=mode)
    target.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(target, "w:gz", compresslevel=5) as archive:
        for path in sorted(environment.iterdir()):
            archive.add(path, path.name, filter=_packed)


def _packed(info: tarfile.TarInfo) -> tarfile.TarInfo | None:
    path = Path(info.name)
    if info.isdir() and path.name in SKIPPED:
        return None
    info.uid = info.gid = 0
    info.uname = info.gname = ""
    return info


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
