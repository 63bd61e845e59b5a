import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.JsonNodeFactory;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.lang.reflect.InvocationTargetException;
import java.nio.ByteBuffer;
import org.apache.iceberg.PartitionSpec;
import org.apache.iceberg.PartitionSpecParser;
import org.apache.iceberg.Schema;
import org.apache.iceberg.SchemaParser;
import org.apache.iceberg.SingleValueParser;
import org.apache.iceberg.SortOrderParser;
import org.apache.iceberg.TableMetadataParser;
import org.apache.iceberg.expressions.Literal;
import org.apache.iceberg.transforms.Transform;
import org.apache.iceberg.transforms.Transforms;
import org.apache.iceberg.types.Conversions;
import org.apache.iceberg.types.Type;
import org.apache.iceberg.types.Types;

/**
 * Asks Iceberg Java: a request and its answer are JSON.
 *
 * <p>Spark's own compiler (Janino) compiles these classes when the judge is called, so that no JDK is needed; it knows no
 * lambdas and forgets type arguments, hence the raw types. They are Java because Python's bridge to it turns every number
 * into an Integer or a Double, which Iceberg's methods refuse, and costs a call for every value.
 */
public class Judge {
  private static final JsonNodeFactory NODES = JsonNodeFactory.instance;
  private static final ObjectMapper JSON = new ObjectMapper();

  /** The answer of `Class.method` to one request: `{"answer": ...}`, or `{"error": class, "message": text}`. */
  public String ask(String operation, String request) throws Exception {
    return JSON.writeValueAsString(answer(operation, JSON.readTree(request)));
  }

  /** The answers to many requests for one operation. */
  public String askEach(String operation, String requests) throws Exception {
    JsonNode nodes = JSON.readTree(requests);
    ArrayNode answers = NODES.arrayNode();
    for (int i = 0; i < nodes.size(); i++) {
      answers.add(answer(operation, nodes.required(i)));
    }
    return JSON.writeValueAsString(answers);
  }

  private JsonNode answer(String operation, JsonNode request) {
    ObjectNode answer = NODES.objectNode();
    int dot = operation.indexOf('.');
    try {
      Class room = Class.forName(operation.substring(0, dot), true, Judge.class.getClassLoader());
      Object value =
          room.getMethod(operation.substring(dot + 1), new Class[] {JsonNode.class})
              .invoke(null, new Object[] {request});
      answer.set("answer", (JsonNode) value);
    } catch (InvocationTargetException wrapper) {
      Throwable cause = wrapper.getCause();
      answer.put("error", cause.getClass().getName());
      answer.put("message", String.valueOf(cause.getMessage()));
      answer.put("trace", java.util.Arrays.toString(cause.getStackTrace()));
    } catch (Throwable problem) {
      answer.put("error", problem.getClass().getName());
      answer.put("message", String.valueOf(problem.getMessage()));
    }
    return answer;
  }

  /** Table metadata from its JSON text, written again. */
  public static JsonNode readMetadata(JsonNode request) {
    return NODES.textNode(TableMetadataParser.toJson(TableMetadataParser.fromJson(request.required("json").textValue())));
  }

  /** A schema, written again. */
  public static JsonNode readSchema(JsonNode request) throws Exception {
    return JSON.readTree(SchemaParser.toJson(schema(request)));
  }

  /** A partition spec of a schema, written again, and its partition type. */
  public static JsonNode readSpec(JsonNode request) throws Exception {
    PartitionSpec spec = spec(request);
    ObjectNode answer = NODES.objectNode();
    answer.set("spec", JSON.readTree(PartitionSpecParser.toJson(spec)));
    answer.set("type", JSON.readTree(SchemaParser.toJson(spec.partitionType().asSchema())));
    return answer;
  }

  /** A sort order of a schema, written again. */
  public static JsonNode readSortOrder(JsonNode request) throws Exception {
    return JSON.readTree(
        SortOrderParser.toJson(SortOrderParser.fromJson(schema(request), request.required("order").toString())));
  }

  /** A value as the bytes of a bound. */
  public static JsonNode toBytes(JsonNode request) {
    Type type = Types.fromPrimitiveString(request.required("type").textValue());
    ByteBuffer bytes = Conversions.toByteBuffer(type, Wire.fromWire(type, request.required("value"), false));
    return NODES.textNode(Wire.hex(bytes));
  }

  /** The value of the bytes of a bound. */
  public static JsonNode fromBytes(JsonNode request) {
    Type type = Types.fromPrimitiveString(request.required("type").textValue());
    ByteBuffer bytes = ByteBuffer.wrap(Wire.bytes(request.required("bytes").textValue()));
    return Wire.toWire(type, Conversions.fromByteBuffer(type, bytes));
  }

  /** A value as the JSON of a default. */
  public static JsonNode toJson(JsonNode request) {
    Type type = Types.fromPrimitiveString(request.required("type").textValue());
    return NODES.textNode(SingleValueParser.toJson(type, Wire.fromWire(type, request.required("value"), false)));
  }

  /** The value of the JSON of a default. */
  public static JsonNode fromJson(JsonNode request) {
    Type type = Types.fromPrimitiveString(request.required("type").textValue());
    return Wire.toWire(type, SingleValueParser.fromJson(type, request.required("json").textValue()));
  }

  /** A value transformed: the result's type, the result, and its text in paths. */
  public static JsonNode transform(JsonNode request) {
    Type type = Types.fromPrimitiveString(request.required("type").textValue());
    Transform transform = Transforms.fromString(request.required("transform").textValue());
    Type resultType = transform.getResultType(type);
    Object result = transform.bind(type).apply(Wire.fromWire(type, request.required("value"), false));
    ObjectNode answer = NODES.objectNode();
    answer.put("type", resultType.toString());
    answer.set("value", Wire.toWire(resultType, result));
    answer.put("text", transform.toHumanString(resultType, result));
    return answer;
  }

  /** The directory of a partition. */
  public static JsonNode partitionPath(JsonNode request) {
    PartitionSpec spec = spec(request);
    return NODES.textNode(spec.partitionToPath(Wire.record(spec.partitionType(), request.required("partition"), false)));
  }

  /** What a literal becomes in a column of a type: the value, or the class of what it became instead. */
  public static JsonNode literal(JsonNode request) {
    Type type = Types.fromPrimitiveString(request.required("type").textValue());
    Literal literal = Literal.of((CharSequence) request.required("text").textValue()).to(type);
    return literal == null ? NODES.nullNode() : Wire.toWire(type, literal.value());
  }

  static Schema schema(JsonNode request) {
    return SchemaParser.fromJson(request.required("schema").toString());
  }

  static PartitionSpec spec(JsonNode request) {
    return PartitionSpecParser.fromJson(schema(request), request.required("spec").toString());
  }
}
