/**
 * Reads the metadata and the names of external weights from the bytes of an .onnx file: ONNX Runtime's JavaScript API
 * exposes neither (contract/file.md).
 */

import { T2RError, printable, shown } from "./errors.js";

const MAX_METADATA = 64 << 20; // bytes
const MAX_INITIALIZERS = 1 << 20;
const GRAPH = 7, METADATA = 14; // fields of a model
const INITIALIZER = 5; // of a graph
const EXTERNAL = 13; // of a tensor
const utf8 = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });

/**
 * @param {Uint8Array} bytes the file
 * @returns {{metadata: Map<string, string>, weights: string[]}} its metadata, and the names of files with weights
 * @throws {T2RError} graph: not an ONNX file, a damaged one, or one with duplicate entries; metadata: more than 64 MiB;
 *   weights: a name with a folder
 */
export function readModelFile(bytes) {
  if (!(bytes instanceof Uint8Array)) throw damaged(shown(bytes));
  const metadata = new Map();
  let size = 0, weights = null;
  for (const { number, start, end } of fields(bytes, 0, bytes.length)) {
    if (number === GRAPH && weights !== null) throw damaged("two graphs in a file");
    if (number === GRAPH) weights = weightFiles(bytes, start, end);
    if (number !== METADATA) continue;
    size += end - start;
    if (size > MAX_METADATA) throw new T2RError("metadata", "at most 64 MiB of metadata", "more", "check where it is from");
    const [key, value] = entry(bytes, start, end);
    if (metadata.has(key)) throw damaged(`the key ${printable(key, 60)} twice`);
    metadata.set(key, value);
  }
  if (weights === null) throw damaged("a file without a graph in it");
  return { metadata, weights };
}

/** The fields of wire type 2 in a protobuf message: number, and the start and end of the content. */
function* fields(bytes, start, end) {
  let at = start;
  const varint = () => {
    let value = 0;
    for (let shift = 0; shift < 70; shift += 7) {
      if (at >= end) throw damaged("a number that is cut off");
      const byte = bytes[at++];
      value += (byte & 127) * 2 ** shift;
      if (byte < 128) return value;
    }
    throw damaged("a number of more than 10 bytes");
  };
  while (at < end) {
    const tag = varint(), type = tag % 8, number = Math.floor(tag / 8);
    if (number === 0) throw damaged("a field without a number");
    if (type === 0) varint();
    else {
      const length = { 1: 8, 5: 4 }[type] ?? (type === 2 ? varint() : NaN);
      if (!(length <= end - at)) throw damaged(type === 2 ? "a part that is cut off" : `a field of type ${type}`);
      at += length;
      if (type === 2) yield { number, start: at - length, end: at };
    }
  }
}

/** A message of a key (1) and a value (2). */
function entry(bytes, start, end) {
  const found = ["", ""];
  for (const field of fields(bytes, start, end)) {
    if (field.number === 1 || field.number === 2) found[field.number - 1] = text(bytes.subarray(field.start, field.end));
  }
  return found;
}

function text(bytes) {
  try {
    return utf8.decode(bytes);
  } catch {
    throw damaged("a text that is no UTF-8");
  }
}

function weightFiles(bytes, start, end) {
  const names = new Set();
  let count = 0;
  for (const tensor of fields(bytes, start, end)) {
    if (tensor.number !== INITIALIZER) continue;
    if (++count > MAX_INITIALIZERS) throw damaged(`more than ${MAX_INITIALIZERS} initializers`);
    for (const field of fields(bytes, tensor.start, tensor.end)) {
      if (field.number !== EXTERNAL) continue;
      const [key, value] = entry(bytes, field.start, field.end);
      if (key === "location") names.add(value);
    }
  }
  for (const name of names) {
    if (!isFileName(name)) {
      const received = printable(name, 80) || "an empty one";
      throw new T2RError("weights", "weights in a file beside the graph, by its name", received, "export the model again");
    }
  }
  return [...names];
}

/** Whether this names a file in a graph's own folder: an untrusted graph must not reference others. */
export function isFileName(name) {
  return typeof name === "string" && name !== "" && name !== "." && name !== ".." && !/[/\\:\p{C}\p{Zl}\p{Zp}]/u.test(name);
}

function damaged(received) {
  return new T2RError("graph", "an ONNX file", received, "copy it again, or export the model again");
}
