/**
 * The options of the contract's two tables, in generation.md and translators.md: the caller's value, else that of the graph's
 * metadata (`t2r.generation`), else the table's default.
 */

import { T2RError, isWhole, printable, shown } from "./errors.js";
import { camel, snake } from "./names.js";

const WHOLE = 2 ** 31 - 1; // largest integer option of a search, and of a graph's metadata
const STEEPEST = 10; // largest magnitude of lengthPenalty
const PENALTIES = {
  repetitionPenalty: [1, (x) => Number.isFinite(x) && x >= 0.01 && x <= 100, "a repetitionPenalty from 0.01 to 100"],
  noRepeatNgram: [0, (x) => isWhole(x, 0, 64), "noRepeatNgram from 0 (no limit) to 64"],
};

/** Option → its default, a check of its values, and their range in words. */
const SAMPLING = {
  temperature: [1, (x) => Number.isFinite(x) && x >= 0, "a temperature of 0 or more"],
  topK: [0, (x) => isWhole(x), "topK of 0 (no limit) or more"],
  topP: [1, (x) => Number.isFinite(x) && x > 0 && x <= 1, "topP above 0 and at most 1 (no limit)"],
  minP: [0, (x) => Number.isFinite(x) && x >= 0 && x <= 1, "minP from 0 (no limit) to 1"],
  ...PENALTIES,
};
const TEXT = {
  ...SAMPLING,
  seed: [null, (x) => (typeof x === "bigint" ? x >= 0n : isWhole(x)), "a seed of 0 or more"],
  stopTokens: [null, () => true, ""], // checked where the vocabulary is known
};

const BEAM = {
  width: [4, (x) => isWhole(x, 1, WHOLE), "a width of at least 1"],
  maxTokens: [null, (x) => isWhole(x, 1, WHOLE), "maxTokens of at least 1"],
  minTokens: [0, (x) => isWhole(x, 0, WHOLE), "minTokens of at least 0"],
  lengthPenalty: [1, (x) => Number.isFinite(x) && Math.abs(x) <= STEEPEST, `a lengthPenalty from -${STEEPEST} to ${STEEPEST}`],
  earlyStopping: [false, (x) => typeof x === "boolean" || x === "never", 'earlyStopping true, false or "never"'],
  forcedEnd: [true, (x) => typeof x === "boolean", "forcedEnd true or false"],
  ...PENALTIES,
};
const SEARCH = { ...BEAM, copy: [true, (x) => typeof x === "boolean", "copy true or false"], nBest: [1, (x) => isWhole(x, 1, WHOLE), "nBest of at least 1"] };

/**
 * All options of a generation.
 * @param {import("./types.js").SamplingOptions} given null and undefined count as missing
 * @param {Record<string, any> | null} generation the graph's options; unknown ones are ignored
 * @returns {Readonly<Required<import("./types.js").SamplingOptions>>}
 * @throws {T2RError} sampling: an option that is unknown or out of range
 */
export function samplingOf(given, generation = null) {
  return resolved(TEXT, given, generation);
}

/**
 * All options of a search, as samplingOf; `maxTokens` is null if nothing sets it.
 * @returns {Required<import("./types.js").BeamOptions>}
 */
export function beamOf(given, generation = null) {
  const options = resolved(SEARCH, given, generation);
  if (options.nBest > options.width) throw refused(`nBest of at most the width, ${options.width}`, shown(options.nBest));
  return options;
}

/** Whether a graph's options are valid: known names in snake_case, and values in range. */
export function isGeneration(value, translates) {
  if (typeof value !== "object" || value === null || Array.isArray(value)) return false;
  const table = translates ? BEAM : SAMPLING;
  const isKnown = (name) => Object.hasOwn(table, camel(name)) && snake(camel(name)) === name;
  return Object.entries(value).every(([name, one]) => isKnown(name) && table[camel(name)][1](one) && !(Number.isInteger(one) && one > WHOLE));
}

/** @returns {any} */
function resolved(table, given, generation) {
  if (typeof given !== "object" || given === null || Array.isArray(given)) throw refused("options as an object", shown(given));
  for (const [name, value] of Object.entries(given)) {
    if (!Object.hasOwn(table, name)) throw refused(`options of ${Object.keys(table).join(", ")}`, printable(name, 60));
    const [, check, expected] = table[name];
    if (value !== null && value !== undefined && !check(value)) throw refused(expected, shown(value));
  }
  const choice = ([name, [standard]]) => [name, given[name] ?? generation?.[name] ?? standard];
  return Object.fromEntries(Object.entries(table).map(choice));
}

function refused(expected, received) {
  return new T2RError("sampling", expected, received, "correct it");
}
