"""Whether the environment asks for OpenTelemetry or OpenLineage: what sends to them is imported only then."""

from collections.abc import Mapping
from pathlib import Path

from icekeep.secrets import is_own_file

TRACES, METRICS = "traces", "metrics"
_FILE = "openlineage.yml"


def otel_is_asked_for(environ: Mapping[str, str]) -> bool:
    """Whether the environment says that anything is to be sent."""
    return any(exporter_names(signal, environ) for signal in (TRACES, METRICS))


def exporter_names(signal: str, environ: Mapping[str, str]) -> tuple[str, ...]:
    """The exporters of a signal, `traces` or `metrics`: those that are named, or `otlp` where an endpoint is."""
    if environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return ()
    named = environ.get(f"OTEL_{signal.upper()}_EXPORTER", "").strip()
    if named:
        return tuple(name for name in map(str.strip, named.split(",")) if name and name != "none")
    endpoints = ("OTEL_EXPORTER_OTLP_ENDPOINT", f"OTEL_EXPORTER_OTLP_{signal.upper()}_ENDPOINT")
    return ("otlp",) if any(environ.get(name, "").strip() for name in endpoints) else ()


def lineage_is_asked_for(environ: Mapping[str, str], directory: Path) -> bool:
    """Whether its client is configured, by the environment or by a file in `directory` or the user's home.

    One in `directory` that another user made does not count: nobody has asked for it, and it says where runs are told of.
    """
    if environ.get("OPENLINEAGE_DISABLED", "").strip().lower() == "true":
        return False
    named = ("OPENLINEAGE_URL", "OPENLINEAGE_CONFIG")
    if any(environ.get(name) for name in named) or any(name.startswith("OPENLINEAGE__TRANSPORT") for name in environ):
        return True
    home = environ.get("HOME")
    here = directory / _FILE
    if here.is_file() and not is_own_file(here):
        return False
    return here.is_file() or (bool(home) and Path(home or "", ".openlineage", _FILE).is_file())
