import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.flink.api.common.JobID;
import org.apache.flink.api.common.RuntimeExecutionMode;
import org.apache.flink.runtime.jobmaster.JobResult;
import org.apache.flink.shaded.jackson2.com.fasterxml.jackson.databind.JsonNode;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.sink.legacy.SinkFunction;
import org.apache.flink.table.api.bridge.java.StreamTableEnvironment;
import org.apache.flink.types.Row;

/** Statements of SQL, queries that end, and queries that follow a table. */
final class Queries {
  private final Cluster cluster;
  private final AtomicLong numbers = new AtomicLong();
  private final Map<String, JobID> followers = new ConcurrentHashMap<>();

  Queries(Cluster cluster) {
    this.cluster = cluster;
  }

  /** Runs a statement that makes or drops something. */
  Object execute(JsonNode request) {
    session(1, true).executeSql(request.required("text").asText());
    return "done";
  }

  /** The rows of a query, in no order. */
  Object select(JsonNode request) throws Exception {
    String name = "query " + numbers.incrementAndGet();
    JobID job = run(name, request.required("text").asText(), false);
    JobResult result = cluster.result(job).get();
    result.toJobExecutionResult(Queries.class.getClassLoader());
    return Collected.take(name);
  }

  /** Starts a query that does not end, under a name. */
  Object follow(JsonNode request) throws Exception {
    String name = request.required("name").asText();
    followers.put(name, run(name, request.required("text").asText(), true));
    cluster.awaitRunning(followers.get(name));
    return "done";
  }

  /**
   * All rows that such a query has given since it was asked before, when one came whose first value is the {@code last};
   * ends the query if it is told so.
   */
  Object followed(JsonNode request) throws Exception {
    String name = request.required("name").asText();
    CompletableFuture<JobResult> end = cluster.result(followers.get(name));
    JsonNode last = request.required("last");
    while (!Collected.awaitLast(name, last, 100)) {
      if (end.isDone()) {
        end.get().toJobExecutionResult(Queries.class.getClassLoader());
        throw new IllegalStateException("the query has ended");
      }
    }
    if (request.required("end").asBoolean()) {
      cluster.mini().cancelJob(followers.remove(name)).get();
      end.get();
    }
    return Collected.take(name);
  }

  private StreamTableEnvironment session(int parallelism, boolean isStreaming) {
    return cluster.session(cluster.environment(parallelism), isStreaming);
  }

  private JobID run(String name, String text, boolean isStreaming) throws Exception {
    StreamExecutionEnvironment environment = cluster.environment(1);
    environment.setRuntimeMode(isStreaming ? RuntimeExecutionMode.STREAMING : RuntimeExecutionMode.BATCH);
    StreamTableEnvironment session = cluster.session(environment, isStreaming);
    session.toDataStream(session.sqlQuery(text)).addSink(new Collected(name)).setParallelism(1);
    return cluster.run(environment, "");
  }

  /** Where the rows of a query go: into this process. */
  private static final class Collected implements SinkFunction<Row> {
    private static final Map<String, List<List<Object>>> ROWS = new ConcurrentHashMap<>();

    private final String name;

    Collected(String name) {
      this.name = name;
    }

    @Override
    public void invoke(Row row, Context context) {
      synchronized (ROWS) {
        ROWS.computeIfAbsent(name, unused -> new ArrayList<>()).add(Values.told(row));
        ROWS.notifyAll();
      }
    }

    static List<List<Object>> take(String name) {
      synchronized (ROWS) {
        List<List<Object>> rows = ROWS.remove(name);
        return rows == null ? List.of() : rows;
      }
    }

    static boolean awaitLast(String name, JsonNode last, long milliseconds) throws InterruptedException {
      synchronized (ROWS) {
        boolean isThere = isThere(name, last);
        if (!isThere) {
          ROWS.wait(milliseconds);
        }
        return isThere || isThere(name, last);
      }
    }

    private static boolean isThere(String name, JsonNode last) {
      for (List<Object> row : ROWS.getOrDefault(name, List.of())) {
        if (String.valueOf(row.get(0)).equals(last.asText())) {
          return true;
        }
      }
      return false;
    }
  }
}
