/** What a decoder is given to read, checked, as rows of one length: one row for each sequence. */

import { isList, numbersOf, vectorsOf } from "./arguments.js";
import { T2RError, isWhole } from "./errors.js";
import { requireReadsTokens, requireRoom, requireTokens } from "./signature.js";

/** @typedef {{ signature: import("./types.js").Signature, batch: number, position: number }} At where a decoder is */

/** One token for each sequence: a number, or (B,). @param {At} at */
export function columnOf(at, ids) {
  requireReadsTokens(at.signature);
  if (isList(ids)) requireRows(at, ids.length);
  const column = numbersOf(typeof ids === "number" ? [ids] : ids, "tokens");
  requireRows(at, column.length);
  return fitting(at, column.map((id) => [id]));
}

/** Tokens, (T,) or (B, T). @param {At} at */
export function rowsOf(at, ids) {
  requireReadsTokens(at.signature);
  const many = Array.isArray(ids) && isList(ids[0]);
  if (isList(ids)) requireRows(at, many ? ids.length : 1);
  const rows = Array.from(many ? ids : [ids], (row) => numbersOf(row, "tokens"));
  if (rows.some((row) => row.length !== rows[0].length)) throw uneven("rows of one length", rows.map((row) => row.length).join(", "));
  return fitting(at, rows);
}

/** Vectors, (B · T · inputSize). @param {At} at */
export function vectorRowsOf({ signature, batch: rows, position }, given) {
  const size = signature.inputSize;
  if (size === null) throw new T2RError("token", "token ids", "vectors", "pass token ids, or export with inputs_embeds");
  const whole = vectorsOf(given), length = whole.length / (rows * size);
  if (!isWhole(length, 1)) throw uneven(`vectors of ${size} elements, as many of each of ${rows} sequences`, `${whole.length} numbers`);
  requireRoom(signature, position, length);
  const at = (row, t) => whole.subarray((row * length + t) * size, (row * length + t + 1) * size);
  return Array.from({ length: rows }, (_, row) => Array.from({ length }, (_, t) => at(row, t)));
}

function fitting({ signature, position }, rows) {
  for (const row of rows) requireTokens(signature, row, "tokens");
  requireRoom(signature, position, rows[0].length);
  return rows;
}

function requireRows({ batch }, count) {
  if (count !== batch) throw uneven(`tokens of ${batch} sequences`, `${count}`);
}

function uneven(expected, received) {
  return new T2RError("batch", expected, received, "pass as many as the decoder has, or reset it");
}
