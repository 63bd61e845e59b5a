"""A command from its start to its end, with what it and all processes below it take. Standard library only."""

import json
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench import rival
from bench.watching import Watch


def main() -> None:
    request, answer = rival.request(), rival.answering()
    with Watch() as watch:
        ended = subprocess.run(request["command"], stdout=subprocess.PIPE, text=True, check=False)
    if ended.returncode or not ended.stdout.strip():
        print(f"{request['command'][0]} ended with status {ended.returncode}", file=sys.stderr)
        sys.exit(1)
    said = json.loads(ended.stdout.splitlines()[-1])
    answer({**watch.figures(), "result": said["result"]})


if __name__ == "__main__":
    main()
