/** Errors of the contract: a kind of a closed list, and one line of what was expected, what was received and what to do. */

/** @type {readonly import("./types.js").Kind[]} */
export const KINDS = Object.freeze([
  "file", "graph", "version", "metadata", "interface", "weights", "tokenizer", "token", "position", "batch", "snapshot",
  "sampling", "provider", "argument", "state", "memory", "runtime", "cancelled",
]);

const MOST = 300; // characters of untrusted text

/** An error that the user can fix. */
export class T2RError extends Error {
  /**
   * @param {import("./types.js").Kind} kind
   * @param {string} expected @param {string} received @param {string} what to do
   */
  constructor(kind, expected, received, what) {
    super(`expected ${expected}; received ${received}; ${what}`);
    this.name = "T2RError";
    /** @readonly */
    this.kind = kind;
  }
}

/** Untrusted text as one line: runs of control characters and spaces become one space, truncated. */
export function printable(value, most = MOST) {
  const text = String(value instanceof Error ? value.message : value).slice(0, 4 * most);
  const line = text.replace(/[\p{C}\p{Zl}\p{Zp}\s]+/gu, " ").trim();
  return line.length > most ? `${line.slice(0, most - 1)}…` : line;
}

/** A caller's argument in a few words; of arrays and objects only type and size. */
export function shown(value) {
  if (typeof value === "string") return `"${printable(value, 40)}"`;
  if (typeof value === "function") return "a function";
  if (typeof value !== "object" || value === null) return printable(value, 40);
  if (Array.isArray(value)) return `an array of ${value.length}`;
  return ArrayBuffer.isView(value) ? `${value.constructor.name} of ${value.byteLength} bytes` : "an object";
}

/** Whether a value is an integer in lowest … highest. */
export function isWhole(value, lowest = 0, highest = Number.MAX_SAFE_INTEGER) {
  return Number.isInteger(value) && value >= lowest && value <= highest;
}

/** The error of a missing or unreadable file. */
export function missing(name, why) {
  return new T2RError("file", `a file at ${printable(name, 200)}`, printable(why, 100), "check the path");
}
