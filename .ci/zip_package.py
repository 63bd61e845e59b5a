"""Zip the package for `spark-submit --py-files`: modules, stub, templates, runbooks, nothing else, at the archive's top.

Each module is there compiled too, for the Python that zips: what it is imported from a zip as source is compiled in each worker
of each executor, which took 0.45 s of a processor. A Python of another version takes the source.
"""

import py_compile
import sys
import tempfile
import zipfile
from pathlib import Path


def main(target: Path) -> None:
    root = Path(__file__).resolve().parents[1] / "lib"
    target.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted((root / "icekeep").rglob("*")):
            name = path.relative_to(root)
            if (
                path.suffix in (".py", ".pyi")
                or path.name == "py.typed"
                or (path.is_file() and path.parent.name == "templates")
            ):
                archive.write(path, name)
            if path.suffix == ".py":
                archive.writestr(f"{name}c", compiled(path, f"{target.name}/{name}"))
        # The directory is a link to the docs, which a walk does not follow.
        for path in sorted((root / "icekeep" / "runbooks").glob("*.md")):
            archive.write(path, path.relative_to(root))


def compiled(path: Path, shown: str) -> bytes:
    """A module as Python caches it, which is not compared with the source; errors name the file as `shown`."""
    with tempfile.TemporaryDirectory() as directory:
        unchecked = py_compile.PycInvalidationMode.UNCHECKED_HASH
        made = Path(directory, "module.pyc")
        py_compile.compile(str(path), str(made), shown, doraise=True, invalidation_mode=unchecked)
        return made.read_bytes()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
