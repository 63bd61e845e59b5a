"""Print how many tests of each peer have which verdict, and how the lists differ from the peers' releases.

    python tests/interop/peers/compare.py                              the counts alone
    python tests/interop/peers/compare.py iceberg_go=/src/iceberg-go   and what this checkout, git directory or archive has
    python tests/interop/peers/compare.py --clone                      and what the newest release of each has, by git

Exit status 1 says that a release has tests that a list has not, or the reverse.
"""

import argparse
import re
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from kit.peers import VERDICTS, Suite, compare, open_source, suites


def main(arguments: list[str] | None = None) -> int:
    """The exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sources", nargs="*", metavar="LIST=PATH", help=f"LIST is one of {', '.join(suites())}")
    parser.add_argument("--clone", action="store_true", help="clone the newest release of each list that has no PATH")
    parser.add_argument("--list", metavar="VERDICT", choices=VERDICTS, help="print the methods of a verdict, too")
    given = parser.parse_args(arguments)
    paths = dict(text.partition("=")[::2] for text in given.sources)
    if unknown := sorted(paths.keys() - suites().keys()):
        parser.error(f"there is no list {', '.join(unknown)}; there are {', '.join(suites())}")
    print("\n".join(counted()), end="\n\n")
    for suite in suites().values() if given.list else ():
        for file, name, method in suite.methods():
            if given.list in method.verdicts:
                print(f"{suite.suite}: {Path(file).stem}.{name}: {method.requires} ({method.reason or method.tests})")
    changed = False
    with tempfile.TemporaryDirectory() as directory:
        for name, suite in suites().items():
            path, release = paths.get(name), None
            if path is None and given.clone:
                release = newest_release(suite)
                path = clone(suite, release, Path(directory) / name)
            if path is not None:
                changes = compare(suite, open_source(Path(path)))
                changed = changed or bool(changes)
                print(f"{suite.suite} {release or path}, listed by {suite.read}: {len(changes)} changes")
                print("".join(f"  {change}\n" for change in changes), end="")
    return int(changed)


def counted() -> list[str]:
    """The table of the counts."""
    rows = [[suite.suite, *(suite.counts()[verdict] for verdict in VERDICTS)] for suite in suites().values()]
    rows.append(["all", *(sum(column) for column in zip(*(row[1:] for row in rows), strict=True))])
    heads = ["suite", *(verdict.replace("_", " ") for verdict in VERDICTS), "methods"]
    return [
        f"{heads[0]:<20}" + "".join(f"{head:>16}" for head in heads[1:]),
        *(f"{row[0]:<20}" + "".join(f"{count:>16}" for count in [*row[1:], sum(row[1:])]) for row in rows),
    ]


def newest_release(suite: Suite) -> str | None:
    """The tag of the newest release at the suite's repository, candidates apart; `None` for a peer that tags none."""
    if suite.tags is None:
        return None
    command = ["git", "ls-remote", "--tags", "--refs", suite.repository]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    tags = [line.rpartition("refs/tags/")[2] for line in lines]
    versions = {tag: found[1] for tag in tags if (found := re.fullmatch(suite.tags, tag))}
    if not versions:
        sys.exit(f"{suite.repository} has no tag like {suite.tags}")
    return max(versions, key=lambda tag: [int(part) for part in versions[tag].split(".")])


def clone(suite: Suite, release: str | None, into: Path) -> str:
    """The path of a checkout of a release, or of the main branch, without its history."""
    command = ["git", "-c", "advice.detachedHead=false", "clone", "--quiet", "--depth", "1"]
    subprocess.run([*command, *(["--branch", release] if release else []), suite.repository, str(into)], check=True)
    return str(into)


if __name__ == "__main__":
    sys.exit(main())
