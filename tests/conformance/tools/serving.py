"""A tool's own process: requests and answers are lines of JSON. Standard library only: the Pythons of all tools run it.

    from serving import serve
    serve({"compact": compact, "rewrite_manifests": rewrite, "expire": expire}, versions)

Each function takes a request: `uri` of the REST catalog, `table` as `namespace.name`, and `max_age_s`, the age in seconds from
which on snapshots expire. It returns whether it changed anything, and raises where it did not do its work. Whatever else is
printed goes to standard error.
"""

import json
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any

MESSAGE_LENGTH = 400

Request = Mapping[str, Any]


def serve(operations: Mapping[str, Callable[[Request], bool]], versions: Callable[[], Mapping[str, str]]) -> None:
    """Answer requests until there are no more."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def answer(values: Mapping[str, Any]) -> None:
        answers.write(json.dumps(values) + "\n")
        answers.flush()

    answer({"versions": dict(versions()), "operations": sorted(operations)})
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer({"changed": operations[request["operation"]](request)})
        except Exception as error:  # noqa: BLE001 - a tool may raise whatever it has
            answer({"error": type(error).__name__, "message": str(error)[:MESSAGE_LENGTH]})
