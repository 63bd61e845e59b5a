"""Zip the package for `spark-submit --py-files`: modules, stub, templates, runbooks and metadata, at the top of the archive.

Each module is there compiled too, for the Python that zips: what it is imported from a zip as source is compiled in each worker
of each executor, which took 0.45 s of a processor. A Python of another version takes the source. Scripts and configurations are
not in it, as nothing can open them there.
"""

import py_compile
import runpy
import sys
import tempfile
import tomllib
import zipfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]


def main(target: Path) -> None:
    root = ROOT / "lib"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    project["version"] = runpy.run_path(str(root / "icekeep" / "version.py"))["ICEKEEP_VERSION"]
    target.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(f"icekeep-{project['version']}.dist-info/METADATA", metadata(project))
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


def metadata(project: dict[str, Any]) -> str:
    """The version, which snapshots are told, and what the package needs, which `icekeep doctor` asks for."""
    told = {None: project["dependencies"], **project["optional-dependencies"]}
    lines = ["Metadata-Version: 2.1", f"Name: {project['name']}", f"Version: {project['version']}"]
    lines += [f"Requires-Python: {project['requires-python']}"]
    lines += [f"Requires-Dist: {_of_extra(need, extra)}" for extra, needs in told.items() for need in needs]
    return "\n".join([*lines, "", ""])


def _of_extra(need: str, extra: str | None) -> str:
    if extra is None:
        return need
    package, _, marker = need.partition(";")
    return f"{package.strip()}; " + (f"({marker.strip()}) and " if marker else "") + f'extra == "{extra}"'


def compiled(path: Path, shown: str) -> bytes:
    """A module as Python caches it, which is not compared with the source; errors name the file as `shown`."""
    with tempfile.TemporaryDirectory() as directory:
        unchecked = py_compile.PycInvalidationMode.UNCHECKED_HASH
        made = Path(directory, "module.pyc")
        py_compile.compile(str(path), str(made), shown, doraise=True, invalidation_mode=unchecked)
        return made.read_bytes()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
