"""Print who judged what in the last run of each file of the interop tests; `--write` puts it into `docs/judges.md`.

Files that were not run yet with `--panel` are named on standard error: the table is of the others alone.
"""

import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from kit.judging.panel import KEPT, counted_table, faults_table, kept, kept_files
from kit.shell import ROOT

PAGE = ROOT / "docs" / "judges.md"


def main() -> None:
    if not KEPT.exists():
        sys.exit(
            f"there is no {KEPT}, as no file was run; run `.venv/bin/python -m pytest tests/interop --panel` first"
        )
    files = {str(file.relative_to(ROOT)) for file in Path(__file__).parent.glob("test_*.py")}
    if lacking := sorted(files - {*kept_files()}):
        print(f"not run yet with --panel: {', '.join(lacking)}", file=sys.stderr)
    sections = {"counts": "\n".join(counted_table(kept())), "faults": "\n".join(faults_table()).strip()}
    for text in sections.values():
        print(text, end="\n\n")
    if "--write" in sys.argv[1:]:
        page = PAGE.read_text()
        for name, text in sections.items():
            begin, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
            page = re.sub(f"{begin}.*{end}", lambda _, new=f"{begin}\n{text}\n{end}": new, page, flags=re.DOTALL)
        PAGE.write_text(page)


if __name__ == "__main__":
    main()
