import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import org.apache.flink.api.common.JobID;
import org.apache.flink.core.execution.CheckpointType;
import org.apache.flink.core.execution.SavepointFormatType;
import org.apache.flink.runtime.jobmaster.JobResult;
import org.apache.flink.shaded.jackson2.com.fasterxml.jackson.databind.JsonNode;
import org.apache.flink.streaming.api.datastream.DataStream;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.table.api.Schema;
import org.apache.flink.table.api.bridge.java.StreamStatementSet;
import org.apache.flink.table.api.bridge.java.StreamTableEnvironment;
import org.apache.flink.table.catalog.ResolvedSchema;
import org.apache.flink.table.connector.ChangelogMode;
import org.apache.flink.table.runtime.typeutils.ExternalTypeInfo;
import org.apache.flink.types.Row;

/** Jobs that write tables: each reads a {@link Feed}, and commits with its checkpoints. */
final class Jobs {
  private static final int PARALLELISM = 2;
  private static final int WAIT_S = 20;

  private final Cluster cluster;
  private final Map<String, Writer> writers = new HashMap<>();

  /** A job, the columns of its table, and the checkpoint that was made last. */
  private static final class Writer {
    final JobID job;
    final ResolvedSchema columns;
    String checkpoint = "";

    Writer(JobID job, ResolvedSchema columns) {
      this.job = job;
      this.columns = columns;
    }
  }

  Jobs(Cluster cluster) {
    this.cluster = cluster;
    Commits.listen();
  }

  /**
   * Starts the job of a name, which writes a table with options of its own, from a checkpoint where one is given.
   *
   * <p>{@code changes} says what comes: {@code insert} alone, {@code upsert} (by the primary key) or {@code all} changes, with
   * rows as they were before.
   */
  Object start(JsonNode request) throws Exception {
    String name = request.required("job").asText();
    String table = request.required("table").asText();
    StreamExecutionEnvironment environment = cluster.environment(PARALLELISM);
    StreamTableEnvironment session = cluster.session(environment, true);
    request.required("settings").fields().forEachRemaining(item -> session.getConfig().set(item.getKey(), item.getValue().asText()));
    ResolvedSchema columns = session.from(table).getResolvedSchema();
    Feed.log(name).forget();
    DataStream<Row> rows =
        environment
            .addSource(new Feed(name), name, ExternalTypeInfo.<Row>of(columns.toPhysicalRowDataType()))
            .setParallelism(1);
    Schema schema = Schema.newBuilder().fromResolvedSchema(columns).build();
    session.createTemporaryView("feed", session.fromChangelogStream(rows, schema, mode(request.required("changes").asText())));
    StreamStatementSet statements = session.createStatementSet();
    statements.addInsertSql("INSERT INTO " + table + request.required("hint").asText() + " SELECT * FROM feed");
    statements.attachAsDataStream();
    Writer writer = new Writer(cluster.run(environment, request.required("from").asText()), columns);
    writers.put(name, writer);
    awaitRead(name, writer);
    cluster.awaitRunning(writer.job);
    return writer.job.toString();
  }

  /** Gives rows to a job: each is the short name of its kind ({@code +I}, {@code -U}, {@code +U}, {@code -D}) and its values. */
  Object feed(JsonNode request) throws Exception {
    String name = request.required("job").asText();
    Writer writer = writers.get(name);
    List<Row> rows = new ArrayList<>();
    for (JsonNode row : request.required("rows")) {
      rows.add(Values.row(row, writer.columns));
    }
    Feed.log(name).add(rows);
    return rows.size();
  }

  /**
   * Makes a checkpoint when all rows were read, and says where it lies.
   *
   * <p>{@code until} says what is waited for after that: that its rows are {@code committed}, that the commit is {@code held}
   * right before the swap of metadata, or {@code nothing}.
   */
  Object checkpoint(JsonNode request) throws Exception {
    String name = request.required("job").asText();
    Writer writer = writers.get(name);
    String until = request.required("until").asText();
    awaitRead(name, writer);
    if (until.equals("held")) {
      HeldCatalog.hold();
    }
    long number = awaited(writer, cluster.mini().triggerCheckpoint(writer.job, CheckpointType.FULL));
    writer.checkpoint = cluster.checkpointPath(writer.job, number);
    if (until.equals("held")) {
      awaited(writer, HeldCatalog.held());
    } else if (until.equals("committed")) {
      awaited(writer, Commits.of(writer.job.toString(), number));
    }
    return writer.checkpoint;
  }

  /** Lets go the commit that is held, and waits until it has landed. */
  Object release(JsonNode request) throws Exception {
    Writer writer = writers.get(request.required("job").asText());
    long number = Long.parseLong(writer.checkpoint.replaceAll("/*$", "").replaceAll(".*chk-", ""));
    HeldCatalog.release();
    awaited(writer, Commits.of(writer.job.toString(), number));
    return "done";
  }

  /** Ends a job with a savepoint, whose rows are committed first; says where it lies. */
  Object stop(JsonNode request) throws Exception {
    String name = request.required("job").asText();
    Writer writer = writers.remove(name);
    awaitRead(name, writer);
    String directory = request.required("directory").asText();
    String path = cluster.mini().stopWithSavepoint(writer.job, directory, false, SavepointFormatType.CANONICAL).get();
    cluster.result(writer.job).get();
    return path;
  }

  /** Ends a job as it is, as a crash would. */
  Object cancel(JsonNode request) throws Exception {
    Writer writer = writers.remove(request.required("job").asText());
    cluster.mini().cancelJob(writer.job).get();
    cluster.result(writer.job).get();
    HeldCatalog.release();
    return writer.checkpoint;
  }

  private void awaitRead(String name, Writer writer) throws Exception {
    CompletableFuture<JobResult> end = cluster.result(writer.job);
    while (!Feed.log(name).awaitRead(100)) {
      failIfOver(end);
    }
  }

  /** The value that comes, unless the job ends before. */
  private <T> T awaited(Writer writer, CompletableFuture<T> value) throws Exception {
    CompletableFuture<JobResult> end = cluster.result(writer.job);
    try {
      CompletableFuture.anyOf(value, end).get();
    } catch (ExecutionException error) {
      // Most often the job is about to fail, and says why.
      end.get(WAIT_S, TimeUnit.SECONDS);
    }
    if (!value.isDone() || value.isCompletedExceptionally()) {
      failIfOver(end);
    }
    return value.get();
  }

  private static void failIfOver(CompletableFuture<JobResult> end) throws Exception {
    if (end.isDone()) {
      // Throws what it failed with.
      end.get().toJobExecutionResult(Jobs.class.getClassLoader());
      throw new IllegalStateException("the job has ended");
    }
  }

  private static ChangelogMode mode(String changes) {
    switch (changes) {
      case "insert":
        return ChangelogMode.insertOnly();
      case "upsert":
        return ChangelogMode.upsert();
      default:
        return ChangelogMode.all();
    }
  }
}
