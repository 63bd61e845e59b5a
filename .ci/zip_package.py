"""Zip the package for `spark-submit --py-files`: modules, stub and templates, and nothing else, at the top of the archive."""

import sys
import zipfile
from pathlib import Path


def main(target: Path) -> None:
    root = Path(__file__).resolve().parents[1] / "lib"
    target.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted((root / "icekeep").rglob("*")):
            if (
                path.suffix in (".py", ".pyi")
                or path.name == "py.typed"
                or (path.is_file() and path.parent.name == "templates")
            ):
                archive.write(path, path.relative_to(root))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
