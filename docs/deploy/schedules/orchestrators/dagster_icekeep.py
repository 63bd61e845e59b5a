"""Tables that Dagster has maintained: `dagster dev -f dagster_icekeep.py`, with icekeep_process.py beside it."""

import dagster as dg
from icekeep_process import RETRIES, RETRY_SECONDS, TRY_AGAIN, Ended, counts, run


@dg.asset(
    group_name="maintenance",
    retry_policy=dg.RetryPolicy(max_retries=RETRIES, delay=RETRY_SECONDS, backoff=dg.Backoff.EXPONENTIAL),
)
def maintained_tables(context: dg.AssetExecutionContext) -> dg.MaterializeResult:
    """All that the policies want."""
    try:
        document = run("maintain", "--max-minutes", "240", say=context.log.info)
    except Ended as ended:
        again = ended.status == TRY_AGAIN
        raise dg.Failure(str(ended), {"result": dg.JsonMetadataValue(ended.document)}, allow_retries=again) from ended
    return dg.MaterializeResult(metadata={**counts(document), "result": dg.JsonMetadataValue(document)})


nightly = dg.ScheduleDefinition(
    job=dg.define_asset_job("maintain", selection=[maintained_tables]),
    cron_schedule="0 2 * * *",
    execution_timezone="Europe/Berlin",
)
defs = dg.Definitions(assets=[maintained_tables], schedules=[nightly])
