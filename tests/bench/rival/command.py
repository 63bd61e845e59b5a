"""A command from its start to its end, with what all processes below this one take. Standard library only.

python command.py COMMAND...
"""

import json
import subprocess
import sys

from bench.rival.watching import Watch


def main() -> None:
    command = sys.argv[1:]
    with Watch() as watch:
        ended = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if ended.returncode or not ended.stdout.strip():
        print(f"{command[0]} ended with status {ended.returncode}", file=sys.stderr)
        sys.exit(1)
    print(json.dumps({**watch.figures(), "result": json.loads(ended.stdout.splitlines()[-1])["result"]}))


if __name__ == "__main__":
    main()
