// A reader for the metadata of an ONNX file (a small part of protobuf), because ONNX Runtime Web does not expose it.

const METADATA = 14; // ModelProto.metadata_props, entries of StringStringEntryProto
const KEY = 1, VALUE = 2;
const VARINT = 0, FIXED64 = 1, LENGTH_DELIMITED = 2, FIXED32 = 5;

/** Returns the metadata of a file's bytes as a Map, or null if they are not protobuf. */
export function readMetadata(bytes) {
  try {
    const entries = [...readFields(bytes)].filter(([field]) => field === METADATA);
    return new Map(entries.map(([, entry]) => {
      const parts = new Map(readFields(entry));
      return [decodeText(parts.get(KEY)), decodeText(parts.get(VALUE))];
    }));
  } catch {
    return null;
  }
}

const CHECKSUM_ENTRY = 89; // bytes of the last entry: tag, length, and "secondlook.checksum" with 64 hexadecimal digits

/** Returns whether a file's bytes are those that were exported: the last entry has the SHA-256 of all bytes before it. */
export async function isIntact(bytes) {
  const stated = readMetadata(bytes)?.get("secondlook.checksum");
  const digest = await crypto.subtle.digest("SHA-256", bytes.subarray(0, -CHECKSUM_ENTRY));
  return stated === Array.from(new Uint8Array(digest), (byte) => byte.toString(16).padStart(2, "0")).join("");
}

const decodeText = (bytes) => new TextDecoder("utf-8", { fatal: true }).decode(bytes);

/** Yields [number, content] of the fields of a message, skipping all but texts and messages. */
function* readFields(bytes) {
  let position = 0;
  const skip = (length) => {
    position += length;
    if (position > bytes.length) throw new RangeError("the file is cut short");
  };
  const readVarint = () => {
    let value = 0;
    for (let place = 1; ; place *= 128) {
      const byte = bytes[position];
      skip(1);
      value += (byte % 128) * place; // not shifted: lengths may exceed 31 bits
      if (byte < 128) return value;
    }
  };
  while (position < bytes.length) {
    const tag = readVarint();
    const kind = tag % 8;
    if (kind === LENGTH_DELIMITED) {
      const length = readVarint();
      const start = position;
      skip(length);
      yield [Math.floor(tag / 8), bytes.subarray(start, position)];
    } else if (kind === VARINT) readVarint();
    else if (kind === FIXED64) skip(8);
    else if (kind === FIXED32) skip(4);
    else throw new TypeError(`unknown kind of field: ${kind}`);
  }
}
