/** Checks the types of a caller's arguments before use: a length may be any number, an array full of holes. */

import { T2RError, isWhole, printable, shown } from "./errors.js";

/** Whether this is an array or a typed array. */
export function isList(value) {
  return Array.isArray(value) || (ArrayBuffer.isView(value) && !(value instanceof DataView));
}

/**
 * A copy of a list of numbers.
 * @param {any} value an array, or a typed array, of int64 too
 * @param {string} what its name in messages
 * @throws {T2RError} token: not a list, or an element that is not a number
 */
export function numbersOf(value, what) {
  if (!isList(value)) throw notNumbers(what, shown(value));
  if (!Array.isArray(value)) return Array.from(value, Number);
  const wrong = value.findIndex((one) => typeof one !== "number"); // stops at the first hole
  if (wrong >= 0) throw notNumbers(what, `${shown(value[wrong])} at place ${wrong}`);
  return value.slice();
}

/**
 * A copy of the elements of vectors.
 * @param {ArrayLike<number>} value an array, or a typed array
 * @returns {Float32Array}
 * @throws {T2RError} token: not a list of numbers, an empty one, or a number that is not finite
 */
export function vectorsOf(value) {
  const numbers = isList(value) && Array.prototype.every.call(value, (one) => typeof one === "number") ? Float32Array.from(value) : null;
  const received = numbers === null ? shown(value) : numbers.length === 0 ? "none" : numbers.every(Number.isFinite) ? null : "NaN or infinity";
  if (received !== null) throw new T2RError("token", "vectors: an array of finite numbers", received, "pass what the front end computes");
  return numbers;
}

/**
 * Check what watches a call: its signal, and the callback of this name, if it takes one.
 * @param {any} watchers
 * @param {"onToken" | "onStep" | null} callback
 * @returns {{ watch: ((news: any) => unknown) | null, signal: AbortSignal | null }}
 * @throws {T2RError} argument: a wrong type; the signal's reason, if it is aborted
 */
export function watchersOf(watchers, callback = null) {
  const names = callback ? [callback, "signal"] : ["signal"], all = names.join(" and ");
  if (typeof watchers !== "object" || watchers === null || isList(watchers)) throw badArgument(`an object of ${all}`, shown(watchers));
  const strange = Object.keys(watchers).find((name) => !names.includes(name));
  if (strange !== undefined) throw badArgument(all, printable(strange, 60));
  const watch = callback ? (watchers[callback] ?? null) : null, signal = watchers.signal ?? null;
  if (watch !== null && typeof watch !== "function") throw badArgument(`a function as ${callback}, or null`, shown(watch));
  if (signal !== null && !isSignal(signal)) throw badArgument("an AbortSignal, or null", shown(signal));
  signal?.throwIfAborted();
  return { watch, signal };
}

function isSignal(value) {
  return typeof value?.throwIfAborted === "function" && typeof value.addEventListener === "function";
}

const OPEN = {
  provider: [(x) => typeof x === "string", "a name"],
  threads: [(x) => isWhole(x, 1, 1024), "from 1 to 1024"],
  prefill: [(x) => typeof x === "boolean", "true or false"],
  maxStateBytes: [(x) => typeof x === "number" && x >= 0, "a number of bytes"],
  maxSource: [(x) => isWhole(x, 1, Number.MAX_SAFE_INTEGER), "a whole number of tokens from 1"],
  onProgress: [(x) => typeof x === "function", "a function"],
  signal: [(x) => x === null || isSignal(x), "an AbortSignal, or null"],
  ort: [(x) => typeof x?.InferenceSession?.create === "function" && typeof x?.Tensor === "function", "the module of ONNX Runtime"],
};

/** The options of opening a graph, without undefined ones. @throws {T2RError} provider: an unknown or bad one; the signal's reason */
export function openOptions(options) {
  if (typeof options !== "object" || options === null || Array.isArray(options)) throw badOption("options as an object", shown(options));
  const given = Object.entries(options).filter(([, value]) => value !== undefined);
  for (const [name, value] of given) {
    if (!Object.hasOwn(OPEN, name)) throw badOption(`options of ${Object.keys(OPEN).join(", ")}`, printable(name, 60));
    const [check, expected] = OPEN[name];
    if (!check(value)) throw badOption(`${name}: ${expected}`, shown(value));
  }
  options.signal?.throwIfAborted();
  return Object.fromEntries(given);
}

/**
 * Runs one operation at a time: a decoder guards single calls, not sequences of them.
 * @param {string} who in messages
 * @returns {<T>(work: () => Promise<T>) => Promise<T>} throws T2RError (state) while another operation runs
 */
export function alone(who) {
  let inUse = false;
  return async (work) => {
    if (inUse) throw new T2RError("state", `${who} that nobody else uses`, "one in use", "wait for its end");
    inUse = true;
    try {
      return await work();
    } finally {
      inUse = false;
    }
  };
}

function badArgument(expected, received) {
  return new T2RError("argument", expected, received, "correct it");
}

function badOption(expected, received) {
  return new T2RError("provider", expected, received, "correct it");
}

function notNumbers(what, received) {
  return new T2RError("token", `${what}: an array of numbers`, received, "encode a text with the model's own tokenizer");
}
