import com.fasterxml.jackson.databind.JsonNode;
import java.math.BigDecimal;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.List;
import org.apache.iceberg.expressions.Expression;
import org.apache.iceberg.expressions.Expressions;

/**
 * Filters from their JSON: `true`, `false`, `["and", l, r]`, `["or", l, r]`, `["not", c]`, and predicates as
 * `["LT", "column", literal ...]` with the names of Expression.Operation; a literal is `{kind: text}`.
 */
public class Filters {
  public static Expression parse(JsonNode node) {
    if (node.isNull()) {
      return Expressions.alwaysTrue();
    } else if (node.isBoolean()) {
      return node.booleanValue() ? (Expression) Expressions.alwaysTrue() : (Expression) Expressions.alwaysFalse();
    }
    String kind = node.required(0).textValue();
    if (kind.equals("and")) {
      return Expressions.and(parse(node.required(1)), parse(node.required(2)));
    } else if (kind.equals("or")) {
      return Expressions.or(parse(node.required(1)), parse(node.required(2)));
    } else if (kind.equals("not")) {
      return Expressions.not(parse(node.required(1)));
    }
    return predicate(Expression.Operation.valueOf(kind), node);
  }

  private static Expression predicate(Expression.Operation operation, JsonNode node) {
    String column = node.required(1).textValue();
    List values = new ArrayList();
    for (int i = 2; i < node.size(); i++) {
      values.add(literal(node.required(i)));
    }
    if (operation == Expression.Operation.IN || operation == Expression.Operation.NOT_IN) {
      return Expressions.predicate(operation, column, (Iterable) values);
    } else if (values.isEmpty()) {
      return Expressions.predicate(operation, column);
    }
    return Expressions.predicate(operation, column, values.get(0));
  }

  private static Object literal(JsonNode node) {
    String kind = (String) node.fieldNames().next();
    String text = node.required(kind).asText();
    if (kind.equals("boolean")) {
      return Boolean.valueOf(text);
    } else if (kind.equals("int")) {
      return Integer.valueOf(text);
    } else if (kind.equals("long")) {
      return Long.valueOf(text);
    } else if (kind.equals("double")) {
      return Double.valueOf(text);
    } else if (kind.equals("decimal")) {
      return new BigDecimal(text);
    } else if (kind.equals("bytes")) {
      return ByteBuffer.wrap(Wire.bytes(text));
    }
    return text;
  }
}
