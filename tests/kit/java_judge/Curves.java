import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.JsonNodeFactory;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import org.apache.iceberg.types.Type;
import org.apache.iceberg.types.Types;
import org.apache.iceberg.util.HilbertByteUtils;
import org.apache.iceberg.util.ZOrderByteUtils;

/** Places on the curves of `rewrite_data_files`: values as ordered bytes, and several columns' bytes as one. */
public class Curves {
  private static final JsonNodeFactory NODES = JsonNodeFactory.instance;

  /** What a column gives to the curve for a value; strings and binary as many bytes as the request says. */
  public static JsonNode ordered(JsonNode request) {
    Type type = Types.fromPrimitiveString(request.required("type").textValue());
    int length = request.required("length").intValue();
    Object value = Wire.fromWire(type, request.required("value"), false);
    Type.TypeID id = type.typeId();
    ByteBuffer buffer = ByteBuffer.allocate(8);
    if (id == Type.TypeID.INTEGER || id == Type.TypeID.DATE) {
      return hex(ZOrderByteUtils.intToOrderedBytes(((Integer) value).intValue(), buffer));
    } else if (id == Type.TypeID.FLOAT) {
      return hex(ZOrderByteUtils.floatToOrderedBytes(((Float) value).floatValue(), buffer));
    } else if (id == Type.TypeID.DOUBLE) {
      return hex(ZOrderByteUtils.doubleToOrderedBytes(((Double) value).doubleValue(), buffer));
    } else if (id == Type.TypeID.STRING) {
      buffer = ByteBuffer.allocate(length);
      return hex(
          ZOrderByteUtils.stringToOrderedBytes(
              value.toString(), length, buffer, StandardCharsets.UTF_8.newEncoder()));
    } else if (id == Type.TypeID.BINARY) {
      ByteBuffer bytes = (ByteBuffer) value;
      return hex(ZOrderByteUtils.byteTruncateOrFill(bytes.array(), length, ByteBuffer.allocate(length)));
    }
    return hex(ZOrderByteUtils.longToOrderedBytes(((Long) value).longValue(), buffer));
  }

  /** The place of a row whose columns gave these bytes: on the z-order curve, or on Hilbert's. */
  public static JsonNode place(JsonNode request) {
    JsonNode texts = request.required("columns");
    byte[][] columns = new byte[texts.size()][];
    int size = 0;
    for (int i = 0; i < columns.length; i++) {
      columns[i] = Wire.bytes(texts.required(i).textValue());
      size += columns[i].length;
    }
    if (request.required("kind").textValue().equals("hilbert")) {
      return NODES.textNode(Wire.hex(HilbertByteUtils.hilbertIndex(columns, 64)));
    }
    size = Math.min(size, request.required("max_bytes").intValue());
    return NODES.textNode(Wire.hex(ZOrderByteUtils.interleaveBits(columns, size, ByteBuffer.allocate(size))));
  }

  private static JsonNode hex(ByteBuffer buffer) {
    return NODES.textNode(Wire.hex(buffer.array()));
  }
}
