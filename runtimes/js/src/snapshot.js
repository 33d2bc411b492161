/** Snapshot files of states, byte-identical in every language: contract/snapshots.md. */

import { checkAdapters } from "./adapters.js";
import { isList } from "./arguments.js";
import { T2RError, isWhole, printable, shown } from "./errors.js";
import { SIZES, product } from "./signature.js";
import { crc32, join, readZip, writeZip } from "./zip.js";

const HEAD = "t2r.json";
const MAX_HEAD = 1 << 16; // bytes
const MAGIC = [0x93, 0x4e, 0x55, 0x4d, 0x50, 0x59, 1, 0];
const MAX_HEADER = 10000; // characters, as in NumPy's reader
const DESCRS = { float32: "<f4", float16: "<f2", int8: "|i1", int32: "<i4", int64: "<i8" };
const DTYPES = Object.fromEntries(Object.entries(DESCRS).map(([dtype, descr]) => [descr, dtype]));
const HEADER = /^\{'descr': '(<[fi]\d)', 'fortran_order': (True|False), 'shape': \(((?:\d+, )*(?:\d+,?)?)\), \} *\n$/;

/**
 * @typedef {{dtype: string, dims: number[], bytes: Uint8Array}} State little-endian, row-major
 *
 * @param {import("./types.js").Signature} signature
 * @param {Map<string, State>} states in the signature's order
 * @param {number} position tokens read
 * @param {number | null} token chosen and not read
 * @returns {Uint8Array}
 */
export function writeSnapshot(signature, states, position, token = null) {
  if (token !== null && !isWhole(token, 0, signature.vocabSize - 1)) {
    throw refused(`a token in 0 … ${signature.vocabSize - 1}, or null`, shown(token), "pass one of this model");
  }
  const sha = JSON.stringify(signature.checkpointSha256);
  const last = token === null ? "" : `, "token": ${token}`;
  const head = `{"snapshot": 1, "checkpoint_sha256": ${sha}, "position": ${position}${last}}`;
  /** @type {[string, Uint8Array][]} */
  const members = [[HEAD, new TextEncoder().encode(head)]];
  for (const [name, state] of states) members.push([`${name}.npy`, join([npyHeader(state), state.bytes])]);
  return writeZip(members);
}

/** States by name; checks the fields of each. */
export function givenStates(states) {
  const isObject = (value) => typeof value === "object" && value !== null;
  const entries = states instanceof Map ? [...states] : isObject(states) && !isList(states) ? Object.entries(states) : null;
  const expected = "states by name, each {dtype, dims, bytes}", what = "take them from `state`";
  if (entries === null) throw new T2RError("snapshot", expected, shown(states), what);
  const wrong = entries.find(([name, state]) => typeof name !== "string" || !isObject(state) || !Array.isArray(state.dims) || !(state.bytes instanceof Uint8Array));
  if (wrong) throw new T2RError("snapshot", expected, `${shown(wrong[1])} as ${shown(wrong[0])}`, what);
  return new Map(entries);
}

function npyHeader({ dtype, dims }) {
  const shape = dims.length === 1 ? `${dims[0]},` : dims.join(", ");
  let text = `{'descr': '${DESCRS[dtype]}', 'fortran_order': False, 'shape': (${shape}), }`;
  text += " ".repeat(21 - String(dims[0] ?? "").length);
  text += " ".repeat((64 - ((10 + text.length + 1) % 64)) % 64) + "\n";
  return Uint8Array.from([...MAGIC, text.length % 256, text.length >> 8, ...new TextEncoder().encode(text)]);
}

/**
 * @param {Uint8Array} bytes the file
 * @param {import("./types.js").Signature} signature
 * @returns {{states: Map<string, State>, position: number, token: number | null}}
 * @throws {T2RError} snapshot: not a snapshot, a damaged one, or one of another model
 */
export function readSnapshot(bytes, signature) {
  try {
    const members = readZip(bytes);
    const head = members.get(HEAD);
    if (!head) throw new Error(`no ${HEAD} in it`);
    members.delete(HEAD);
    const { position, token } = readHead(head, signature);
    const states = new Map();
    for (const [name, member] of members) {
      if (!name.endsWith(".npy")) throw new Error(`${printable(name, 60)} is not an array`);
      states.set(name.slice(0, -4), readNpy(name, member.content));
    }
    checkStates(signature, states);
    for (const [name, { content, crc }] of members) {
      if (crc32(content) !== crc) throw new Error(`${printable(name, 60)} is damaged`);
    }
    return { states, position, token };
  } catch (error) {
    if (error instanceof T2RError) throw error;
    throw refused("a snapshot written by save_state", printable(error), "read the prompt again and save it");
  }
}

function readHead({ content, crc }, signature) {
  if (content.length > MAX_HEAD || crc32(content) !== crc) throw new Error(`${HEAD} is too large or damaged`);
  const head = JSON.parse(new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(content));
  if (typeof head !== "object" || head === null || !isPosition(head.position)) throw new Error(`${HEAD} is malformed`);
  if (head.snapshot !== 1) {
    throw refused("a snapshot of version 1", `version ${printable(head.snapshot, 40)}`, "read the prompt again and save it");
  }
  const ours = signature.checkpointSha256, theirs = head.checkpoint_sha256;
  if (theirs !== ours) {
    const received = `one of the checkpoint ${printable(theirs, 12)}`;
    throw refused(`a snapshot of the checkpoint ${ours.slice(0, 12)}`, received, "read the prompt again with this model");
  }
  const token = head.token ?? null;
  if (token !== null && !isWhole(token, 0, signature.vocabSize - 1)) throw new Error("a token that the model has not");
  return { position: head.position, token };
}

function isPosition(value) {
  return Number.isInteger(value) && value >= 0 && value < 2 ** 62;
}

function readNpy(name, bytes) {
  const what = printable(name, 60);
  if (bytes.length < 10 || MAGIC.some((byte, n) => bytes[n] !== byte)) throw new Error(`${what} is no array of version 1.0`);
  const length = bytes[8] + 256 * bytes[9];
  if (10 + length > bytes.length || length > MAX_HEADER) throw new Error(`${what} is cut off`);
  const found = HEADER.exec(String.fromCharCode(...bytes.subarray(10, 10 + length)));
  if (!found || !Object.hasOwn(DTYPES, found[1]) || found[2] !== "False") throw new Error(`${what} has another form`);
  const dims = found[3].split(",").map((part) => part.trim()).filter(Boolean).map(Number), dtype = DTYPES[found[1]];
  const size = product(dims) * SIZES[dtype];
  if (size !== bytes.length - 10 - length) throw new Error(`${what} is not as long as its header says`);
  return { dtype, dims, bytes: bytes.slice(10 + length) };
}

/**
 * Refuse states that are not the graph's, or differ in batch, cache length or source length.
 * @param {Map<string, State>} states
 * @returns {{batch: number, length: number}}
 */
export function checkStates(signature, states) {
  const names = new Set(signature.allStates.map((spec) => spec.name));
  const strange = [...states.keys()].filter((name) => !names.has(name));
  const missing = [...names].filter((name) => !states.has(name));
  const letters = signature.batch === null ? {} : { B: signature.batch };
  const wrong = missing.length || strange.length ? [] : signature.allStates.filter((spec) => !fits(spec, states.get(spec.name), letters));
  const problems = [
    ...missing.map((name) => `missing ${name}`), ...strange.map((name) => `unexpected ${name}`),
    ...wrong.map(({ name }) => `${name} ${described(states.get(name))}`),
  ];
  if (problems.length) {
    const expected = "the states of this graph, of one batch and one length of caches";
    throw refused(expected, printable(problems.join("; ")), "take them from the same model");
  }
  checkAdapters(signature, states);
  return { batch: letters.B ?? 1, length: letters.T ?? 0 };
}

function described({ dtype, dims, bytes }) {
  const shape = dims.length > 8 ? `${dims.length} numbers` : dims.map(shown).join(", ");
  return `${shown(dtype)} (${shape}) of ${bytes.length} bytes`;
}

function fits(spec, { dtype, dims, bytes }, letters) {
  if (dtype !== spec.dtype || dims.length !== spec.shape.length) return false;
  const shaped = spec.shape.every((want, n) => {
    if (typeof want !== "string") return dims[n] === want;
    letters[want] ??= dims[n];
    return dims[n] === letters[want] && isWhole(dims[n], want === "T" ? 0 : 1);
  });
  return shaped && bytes.length === SIZES[dtype] * product(dims);
}

function refused(expected, received, what) {
  return new T2RError("snapshot", expected, received, what);
}
