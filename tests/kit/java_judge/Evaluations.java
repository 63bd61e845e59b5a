import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.JsonNodeFactory;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.lang.reflect.InvocationHandler;
import java.lang.reflect.Method;
import java.lang.reflect.Proxy;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import org.apache.iceberg.DataFile;
import org.apache.iceberg.DataFiles;
import org.apache.iceberg.ManifestFile;
import org.apache.iceberg.Metrics;
import org.apache.iceberg.PartitionSpec;
import org.apache.iceberg.Schema;
import org.apache.iceberg.expressions.Binder;
import org.apache.iceberg.expressions.Evaluator;
import org.apache.iceberg.expressions.Expression;
import org.apache.iceberg.expressions.InclusiveMetricsEvaluator;
import org.apache.iceberg.expressions.ManifestEvaluator;
import org.apache.iceberg.expressions.Projections;
import org.apache.iceberg.expressions.ResidualEvaluator;
import org.apache.iceberg.expressions.StrictMetricsEvaluator;
import org.apache.iceberg.types.Types;

/** What Iceberg's expressions say of rows, partitions, manifests and files, none of which need exist. */
public class Evaluations {
  private static final JsonNodeFactory NODES = JsonNodeFactory.instance;

  /** The filter bound to the schema, as text. */
  public static JsonNode bind(JsonNode request) {
    Schema schema = Judge.schema(request);
    Expression filter = Filters.parse(request.required("filter"));
    return NODES.textNode(Binder.bind(schema.asStruct(), filter, true).toString());
  }

  /** Whether each row matches. */
  public static JsonNode rows(JsonNode request) {
    Schema schema = Judge.schema(request);
    return evaluate(schema.asStruct(), Filters.parse(request.required("filter")), request.required("rows"));
  }

  /** Whether a file with these metrics may match, and whether all of it must. */
  public static JsonNode metrics(JsonNode request) {
    Schema schema = Judge.schema(request);
    Expression filter = Filters.parse(request.required("filter"));
    DataFile file = file(request.required("metrics"));
    ObjectNode answer = NODES.objectNode();
    answer.put("may_match", new InclusiveMetricsEvaluator(schema, filter).eval(file));
    answer.put("must_match", new StrictMetricsEvaluator(schema, filter).eval(file));
    return answer;
  }

  /** Both projections of the filter as text, and which of the partition tuples each matches. */
  public static JsonNode project(JsonNode request) {
    PartitionSpec spec = Judge.spec(request);
    Expression filter = Filters.parse(request.required("filter"));
    Expression inclusive = Projections.inclusive(spec).project(filter);
    Expression strict = Projections.strict(spec).project(filter);
    ObjectNode answer = NODES.objectNode();
    answer.put("inclusive_text", inclusive.toString());
    answer.put("strict_text", strict.toString());
    answer.set("inclusive", evaluate(spec.partitionType(), inclusive, request.required("partitions")));
    answer.set("strict", evaluate(spec.partitionType(), strict, request.required("partitions")));
    return answer;
  }

  /** What is left of the filter in a partition, as text, and which of the rows that matches. */
  public static JsonNode residual(JsonNode request) {
    PartitionSpec spec = Judge.spec(request);
    Expression filter = Filters.parse(request.required("filter"));
    Expression residual =
        ResidualEvaluator.of(spec, filter, true)
            .residualFor(Wire.record(spec.partitionType(), request.required("partition"), false));
    ObjectNode answer = NODES.objectNode();
    answer.put("text", residual.toString());
    answer.set("rows", evaluate(spec.schema().asStruct(), residual, request.required("rows")));
    return answer;
  }

  /** Whether a manifest with these field summaries may hold a file that matches. */
  public static JsonNode manifest(JsonNode request) {
    PartitionSpec spec = Judge.spec(request);
    Expression filter = Filters.parse(request.required("filter"));
    ManifestFile manifest = manifestFile(spec, request.required("summaries"));
    return NODES.booleanNode(ManifestEvaluator.forRowFilter(filter, spec, true).eval(manifest));
  }

  private static JsonNode evaluate(Types.StructType type, Expression filter, JsonNode tuples) {
    ArrayNode answers = NODES.arrayNode();
    Evaluator evaluator = new Evaluator(type, filter);
    for (int i = 0; i < tuples.size(); i++) {
      answers.add(evaluator.eval(Wire.record(type, tuples.required(i), false)));
    }
    return answers;
  }

  private static DataFile file(JsonNode metrics) {
    return DataFiles.builder(PartitionSpec.unpartitioned())
        .withPath("file.parquet")
        .withFileSizeInBytes(1L)
        .withMetrics(
            new Metrics(
                Long.valueOf(metrics.required("record_count").longValue()),
                null,
                counts(metrics.required("value_counts")),
                counts(metrics.required("null_value_counts")),
                counts(metrics.required("nan_value_counts")),
                bounds(metrics.required("lower_bounds")),
                bounds(metrics.required("upper_bounds"))))
        .build();
  }

  private static Map counts(JsonNode node) {
    if (node.isNull()) {
      return null;
    }
    Map counts = new HashMap();
    for (Iterator ids = node.fieldNames(); ids.hasNext(); ) {
      String id = (String) ids.next();
      counts.put(Integer.valueOf(id), Long.valueOf(node.required(id).longValue()));
    }
    return counts;
  }

  private static Map bounds(JsonNode node) {
    if (node.isNull()) {
      return null;
    }
    Map bounds = new HashMap();
    for (Iterator ids = node.fieldNames(); ids.hasNext(); ) {
      String id = (String) ids.next();
      bounds.put(Integer.valueOf(id), ByteBuffer.wrap(Wire.bytes(node.required(id).textValue())));
    }
    return bounds;
  }

  private static ManifestFile manifestFile(PartitionSpec spec, JsonNode summaries) {
    List partitions = null;
    if (!summaries.isNull()) {
      partitions = new ArrayList();
      for (int i = 0; i < summaries.size(); i++) {
        partitions.add(new Summary(summaries.required(i)));
      }
    }
    return (ManifestFile)
        Proxy.newProxyInstance(
            ManifestFile.class.getClassLoader(), new Class[] {ManifestFile.class}, new Manifest(partitions));
  }

  /** A manifest that has files of all kinds, and field summaries; nobody may ask it for anything else. */
  public static class Manifest implements InvocationHandler {
    private final List partitions;

    public Manifest(List partitions) {
      this.partitions = partitions;
    }

    public Object invoke(Object proxy, Method method, Object[] arguments) {
      if (method.getName().equals("partitions")) {
        return partitions;
      } else if (method.getName().startsWith("has")) {
        return Boolean.TRUE;
      }
      throw new UnsupportedOperationException(method.getName());
    }
  }

  /** One field of a partition, as a manifest list sums it up. */
  public static class Summary implements ManifestFile.PartitionFieldSummary {
    private final JsonNode node;

    public Summary(JsonNode node) {
      this.node = node;
    }

    public boolean containsNull() {
      return node.required("contains_null").booleanValue();
    }

    public Boolean containsNaN() {
      JsonNode value = node.required("contains_nan");
      return value.isNull() ? null : Boolean.valueOf(value.booleanValue());
    }

    public ByteBuffer lowerBound() {
      return bound("lower_bound");
    }

    public ByteBuffer upperBound() {
      return bound("upper_bound");
    }

    public ManifestFile.PartitionFieldSummary copy() {
      return this;
    }

    private ByteBuffer bound(String name) {
      JsonNode value = node.required(name);
      return value.isNull() ? null : ByteBuffer.wrap(Wire.bytes(value.textValue()));
    }
  }
}
