import java.io.BufferedReader;
import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.io.PrintWriter;
import java.io.StringWriter;
import java.nio.charset.StandardCharsets;
import java.util.concurrent.ExecutionException;
import org.apache.flink.shaded.jackson2.com.fasterxml.jackson.databind.JsonNode;
import org.apache.flink.shaded.jackson2.com.fasterxml.jackson.databind.ObjectMapper;
import org.apache.flink.shaded.jackson2.com.fasterxml.jackson.databind.node.ObjectNode;

/**
 * Flink in one process: answers requests, each a line of JSON, with a line of JSON. It ends with its standard input.
 *
 * <p>The argument is a directory for checkpoints. A request names a {@code method} of {@link Jobs} or {@link Queries}; the
 * answer is {@code {"answer": ...}}, or {@code {"error": class, "message": text, "trace": text}}.
 */
public final class Main {
  private static final ObjectMapper JSON = new ObjectMapper();

  private Main() {}

  public static void main(String[] arguments) throws Exception {
    // Whatever else prints: only this carries answers.
    PrintStream answers = new PrintStream(new FileOutputStream(FileDescriptor.out), true, StandardCharsets.UTF_8);
    System.setOut(System.err);
    Cluster cluster = new Cluster(arguments[0]);
    Jobs jobs = new Jobs(cluster);
    Queries queries = new Queries(cluster);
    BufferedReader requests = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
    for (String line = requests.readLine(); line != null; line = requests.readLine()) {
      ObjectNode answer = JSON.createObjectNode();
      try {
        answer.set("answer", JSON.valueToTree(obey(cluster, jobs, queries, JSON.readTree(line))));
      } catch (Exception error) {
        tell(answer, error);
      }
      answers.println(JSON.writeValueAsString(answer));
    }
    // What Flink has left running need not end in order.
    Runtime.getRuntime().halt(0);
  }

  private static Object obey(Cluster cluster, Jobs jobs, Queries queries, JsonNode request) throws Exception {
    switch (request.required("method").asText()) {
      case "versions":
        return cluster.versions();
      case "open":
        return cluster.open(request);
      case "sql":
        return queries.execute(request);
      case "select":
        return queries.select(request);
      case "follow":
        return queries.follow(request);
      case "followed":
        return queries.followed(request);
      case "start":
        return jobs.start(request);
      case "feed":
        return jobs.feed(request);
      case "checkpoint":
        return jobs.checkpoint(request);
      case "release":
        return jobs.release(request);
      case "stop":
        return jobs.stop(request);
      case "cancel":
        return jobs.cancel(request);
      default:
        throw new IllegalArgumentException("no such method: " + request);
    }
  }

  private static void tell(ObjectNode answer, Exception error) {
    Throwable cause = error;
    while (cause instanceof ExecutionException && cause.getCause() != null) {
      cause = cause.getCause();
    }
    StringWriter trace = new StringWriter();
    cause.printStackTrace(new PrintWriter(trace));
    StringBuilder message = new StringBuilder();
    for (Throwable part = cause; part != null; part = part.getCause()) {
      message.append(message.length() == 0 ? "" : "; ").append(part);
    }
    answer.put("error", cause.getClass().getName());
    answer.put("message", message.toString());
    answer.put("trace", trace.toString());
  }
}
