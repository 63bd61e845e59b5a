"""Telling other systems of runs: Prometheus, OpenTelemetry, OpenLineage. Each is a listener, and none can hinder a job."""
