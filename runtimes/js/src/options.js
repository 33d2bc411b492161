/**
 * The options of the contract's two tables, in generation.md and translators.md: what the caller gives counts, else what the graph's
 * metadata says (`t2r.generation`), else the table's default.
 */

import { T2RError, isWhole, printable, shown } from "./errors.js";

const WHOLE = 2 ** 31 - 1; // the largest whole number of a search, and of a graph's metadata
const STEEPEST = 10; // the largest exponent of a length
const PENALTIES = {
  repetition_penalty: [1, (x) => Number.isFinite(x) && x >= 0.01 && x <= 100, "a repetition_penalty from 0.01 to 100"],
  no_repeat_ngram: [0, (x) => isWhole(x, 0, 64), "no_repeat_ngram from 0 (no limit) to 64"],
};

/** Of each option its default, which values it takes, and that in words. */
const SAMPLING = {
  temperature: [1, (x) => Number.isFinite(x) && x >= 0, "a temperature of 0 or more"],
  top_k: [0, (x) => isWhole(x), "top_k of 0 (no limit) or more"],
  top_p: [1, (x) => Number.isFinite(x) && x > 0 && x <= 1, "top_p above 0 and at most 1 (no limit)"],
  min_p: [0, (x) => Number.isFinite(x) && x >= 0 && x <= 1, "min_p from 0 (no limit) to 1"],
  ...PENALTIES,
};
const TEXT = {
  ...SAMPLING,
  seed: [null, (x) => (typeof x === "bigint" ? x >= 0n : isWhole(x)), "a seed of 0 or more"],
  stop_tokens: [null, () => true, ""], // checked where the vocabulary is known
};

const BEAM = {
  width: [4, (x) => isWhole(x, 1, WHOLE), "a width of at least 1"],
  max_tokens: [null, (x) => isWhole(x, 1, WHOLE), "max_tokens of at least 1"],
  min_tokens: [0, (x) => isWhole(x, 0, WHOLE), "min_tokens of at least 0"],
  length_penalty: [1, (x) => Number.isFinite(x) && Math.abs(x) <= STEEPEST, `a length_penalty from -${STEEPEST} to ${STEEPEST}`],
  early_stopping: [false, (x) => typeof x === "boolean" || x === "never", 'early_stopping true, false or "never"'],
  forced_end: [true, (x) => typeof x === "boolean", "forced_end true or false"],
  ...PENALTIES,
};
const SEARCH = { ...BEAM, n_best: [1, (x) => isWhole(x, 1, WHOLE), "n_best of at least 1"] };

/**
 * All options of a text.
 * @param {import("./index.js").SamplingOptions} given null and undefined are options that are not given
 * @param {Record<string, any> | null} generation the graph's; what is not in the table is passed over
 * @throws {T2RError} sampling: an option that is unknown or out of range
 */
export function samplingOf(given, generation = null) {
  return resolved(TEXT, given, generation);
}

/** All options of a search, as samplingOf; `max_tokens` null where nobody says more. */
export function beamOf(given, generation = null) {
  const options = resolved(SEARCH, given, generation);
  if (options.n_best > options.width) throw refused(`n_best of at most the width, ${options.width}`, shown(options.n_best));
  return options;
}

/** Whether a graph may have this as its options: known names, and values in range. */
export function isGeneration(value, translates) {
  if (typeof value !== "object" || value === null || Array.isArray(value)) return false;
  const table = translates ? BEAM : SAMPLING;
  return Object.entries(value).every(([name, one]) => Object.hasOwn(table, name) && table[name][1](one) && !(Number.isInteger(one) && one > WHOLE));
}

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
