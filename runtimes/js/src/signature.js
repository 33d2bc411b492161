/** A step graph's metadata as plain data, checked: CONTRACT.md, "Metadata". */

import { areAdapters } from "./adapters.js";
import { isChatTemplate } from "./chat.js";
import { T2RError, isWhole, printable, shown } from "./errors.js";
import { isFileName } from "./model_file.js";
import { camel, camelCased } from "./names.js";
import { isGeneration } from "./options.js";

const CONTRACT = 1;
const PREFIX = "t2r.";
const MAX_VOCABULARY = 1 << 24;
export const MAX_STATE_BYTES = 2 ** 31; // of all states at a batch of 1
const BATCH_STATES = 8; // times the limit of one sequence: that of a batch
export const ROLES = ["step", "prefill", "draft_check", "encoder"];
const MOST = { float32: 3.4028234663852886e38, float16: 65504, int8: 127, int32: 2 ** 31 - 1, int64: 2 ** 53 };
const MAX_DIMENSIONS = 16;
const MAX_DEPTH = 128; // levels of arrays and objects in a value
const MAX_SOURCE_LENGTH = 1 << 20; // tokens
const MAX_SPECIAL = 1024; // start tokens or banned tokens
const OF_STATES = ["name", "dtype", "shape", "initial", "constant"];
export const SIZES = { float32: 4, float16: 2, int8: 1, int32: 4, int64: 8 };
const KEYS = [
  "states", "vocab_size", "bos_token", "eos_tokens", "batch", "max_positions", "past_end", "state_layout", "layers", "target",
  "quantization", "checkpoint_sha256", "producer", "tokenizer", "top_k", "role", "graphs",
];
const OF_SOURCES = [
  "source_states", "start_states", "source_vocab_size", "source_tokenizer", "max_source", "source_length", "start_tokens",
  "banned_tokens",
];
const OPTIONAL = ["generation", "chat_template", "input_size", "hidden_size", "adapters"];

/**
 * @param {Map<string, string>} metadata
 * @param {number} maxStateBytes limit of one sequence's states
 * @returns {import("./types.js").Signature} frozen; its names are the keys in camelCase
 * @throws {T2RError} metadata: a missing key (named), a malformed value, larger states; version: another contract
 */
export function readSignature(metadata, maxStateBytes = MAX_STATE_BYTES) {
  if (!(metadata instanceof Map) || !(maxStateBytes >= 0)) {
    throw bad("metadata as a Map, and a number of bytes", `${shown(metadata)} and ${shown(maxStateBytes)}`, "take it from readModelFile");
  }
  if (!metadata.has(PREFIX + "contract")) {
    throw bad("a step graph with t2r metadata", "a graph without the key t2r.contract", "export the model with t2r-export");
  }
  const contract = read(metadata, "contract");
  if (contract !== CONTRACT) {
    const received = `version ${printable(JSON.stringify(contract), 40)}`;
    throw new T2RError("version", `contract version ${CONTRACT}`, received, "export the model again, or use its runtime");
  }
  const keys = metadata.has(PREFIX + "source_states") ? [...KEYS, ...OF_SOURCES] : KEYS;
  const found = Object.fromEntries(keys.map((key) => [key, read(metadata, key)]));
  const [generation, chat, size, hidden, adapters] = OPTIONAL.map((key) => (metadata.has(PREFIX + key) ? read(metadata, key) : undefined));
  const problem = malformed({ ...found, generation, chat_template: chat, input_size: size, hidden_size: hidden, adapters });
  if (problem) throw bad("metadata of the contract's form", `a bad value of ${problem}`, "export the model again");
  const states = [...found.states, ...(found.source_states ?? [])];
  requireBounded(states, maxStateBytes);
  const options = generation ? camelCased(generation) : null;
  const given = { generation: options, chatTemplate: chat ?? null, inputSize: size ?? null, hiddenSize: hidden ?? null };
  const own = { ...given, adapters: adapters ?? null, sourceStates: found.source_states ?? null, allStates: states };
  return /** @type {any} */ (Object.freeze({ ...camelCased(found), ...own }));
}

function read(metadata, key) {
  const text = metadata.get(PREFIX + key);
  if (typeof text !== "string") throw bad(`the metadata key t2r.${key}`, "a graph without it", "export the model again");
  let value;
  try {
    value = JSON.parse(text);
  } catch (error) {
    throw bad(`JSON in the metadata key t2r.${key}`, printable(error, 100), "export the model again");
  }
  if (!isShallow(value)) throw bad(`JSON of at most ${MAX_DEPTH} levels in the metadata key t2r.${key}`, "more", "export the model again");
  return value;
}

/** Whether arrays and objects are inside each other in at most MAX_DEPTH levels: comparing and copying them recurses. */
function isShallow(value) {
  let level = [value];
  for (let depth = 0; level.length && depth <= MAX_DEPTH; depth++) {
    level = level.flatMap((one) => (typeof one === "object" && one !== null ? Object.values(one) : []));
  }
  return !level.length;
}

/** The first key with a malformed value; untrusted JSON can hold anything. */
function malformed(s) {
  const text = (value) => typeof value === "string";
  const optional = (value, check) => value === null || check(value);
  const count = (value) => isWhole(value, 1);
  const token = (value) => isWhole(value, 0, s.vocab_size - 1);
  const list = (values, check) => Array.isArray(values) && values.every(check);
  const special = (values) => list(values, token) && values.length <= MAX_SPECIAL;
  const checks = {
    vocab_size: () => isWhole(s.vocab_size, 1, MAX_VOCABULARY),
    states: () => list(s.states, (state) => isState(state, "T", false)) && unique(s.states.map((state) => state.name)),
    bos_token: () => optional(s.bos_token, token),
    eos_tokens: () => list(s.eos_tokens, token),
    batch: () => optional(s.batch, count),
    max_positions: () => optional(s.max_positions, count),
    past_end: () => text(s.past_end) && /^(refuse|clamp|wrap:[1-9]\d{0,8})$/.test(s.past_end),
    layers: () => list(s.layers, isObject),
    "state_layout, target, quantization, checkpoint_sha256 or producer": () =>
      [s.target, s.quantization, s.checkpoint_sha256, s.producer].every(text),
    tokenizer: () => optional(s.tokenizer, text),
    top_k: () => optional(s.top_k, (k) => isWhole(k, 1, s.vocab_size)),
    chat_template: () => s.chat_template === undefined || s.chat_template === null || isChatTemplate(s.chat_template),
    generation: () => s.generation === undefined || isGeneration(s.generation, s.source_states !== undefined),
    input_size: () => s.input_size === undefined || isWhole(s.input_size, 1, MAX_VOCABULARY),
    hidden_size: () => s.hidden_size === undefined || isWhole(s.hidden_size, 1, MAX_VOCABULARY),
    adapters: () => s.adapters === undefined || areAdapters(s.adapters, s.states),
    role: () => ROLES.includes(s.role),
    graphs: () => isObject(s.graphs) && Object.values(s.graphs).every(isFileName) &&
      (s.role === "step" || !Object.keys(s.graphs).length),
    source_states: () => s.source_states === undefined
      ? s.role !== "encoder"
      : list(s.source_states, (state) => isState(state, "M", true)) && unique(s.source_states.map((state) => state.name)),
    start_states: () => !s.source_states ||
      (list(s.start_states, (name) => s.states.some((state) => state.name === name)) && unique(s.start_states)),
    source_vocab_size: () => !s.source_states || isWhole(s.source_vocab_size, 1, MAX_VOCABULARY),
    source_tokenizer: () => !s.source_states || optional(s.source_tokenizer, text),
    max_source: () => !s.source_states || optional(s.max_source, count),
    source_length: () => !s.source_states ||
      optional(s.source_length, (length) => s.max_source !== null && isWhole(length, s.max_source, MAX_SOURCE_LENGTH)),
    start_tokens: () => !s.source_states || (special(s.start_tokens) && s.start_tokens.length > 0),
    banned_tokens: () => !s.source_states || special(s.banned_tokens),
  };
  return Object.keys(checks).find((key) => !checks[key]());
}

function isState(state, letter, constant) {
  if (!isObject(state) || typeof state.name !== "string" || !state.name || state.constant !== constant) return false;
  if (Object.keys(state).length !== OF_STATES.length || !OF_STATES.every((key) => Object.hasOwn(state, key))) return false;
  const [first, ...dims] = Array.isArray(state.shape) ? state.shape : [null], whole = !String(state.dtype).startsWith("float");
  const named = !constant || state.name.startsWith("source_");
  const shaped = first === "B" && dims.length < MAX_DIMENSIONS && dims.every((d) => d === letter || isWhole(d, 1));
  return named && shaped && dims.filter((d) => d === letter).length <= 1 && Object.hasOwn(SIZES, state.dtype) &&
    Number.isFinite(state.initial) && Math.abs(state.initial) <= MOST[state.dtype] && (!whole || Number.isInteger(state.initial));
}

function isObject(value) {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

function unique(names) {
  return new Set(names).size === names.length;
}

/** A state's shape with its letters replaced by numbers. */
export function dimensions(state, batch, length = 0, source = 1) {
  const letters = { B: batch, T: length, M: source };
  return state.shape.map((d) => (typeof d === "string" ? letters[d] : d));
}

/** Number of elements of a tensor of this shape. */
export function product(shape) {
  return shape.reduce((all, d) => all * d, 1);
}

/** The greatest of any number of numbers: a call takes some 100,000 arguments at most. @param {readonly number[]} numbers */
export function greatest(numbers) {
  return numbers.reduce((before, one) => Math.max(before, one));
}

function requireBounded(states, most) {
  const sizes = states.map((state) => SIZES[state.dtype] * product(dimensions(state, 1, 1)));
  const total = sizes.reduce((all, size) => all + size, 0);
  if (total > most) {
    const longest = greatest(sizes), name = printable(states[sizes.indexOf(longest)].name, 50);
    const received = `${total} bytes, ${name} alone ${longest}`;
    throw bad(`states of at most ${most} bytes a sequence`, received, "check where it is from, or raise maxStateBytes");
  }
}

/** Refuse a batch that the graph does not take; `source` is the length of a translator's longest source. */
export function requireBatch(signature, batch, maxStateBytes = MAX_STATE_BYTES, source = 1) {
  const fixed = signature.batch;
  if (!isWhole(batch, 1) || (fixed !== null && batch !== fixed)) {
    const expected = fixed === null ? "a batch of at least 1" : `a batch of ${fixed}, for which the graph was exported`;
    throw new T2RError("batch", expected, shown(batch), "choose another, or export without a fixed batch");
  }
  requireMemory(signature, batch, maxStateBytes, source);
}

/** Refuse a batch whose states and logits are together too large. */
export function requireMemory(signature, batch, maxStateBytes = MAX_STATE_BYTES, source = 1) {
  const bytes = (state) => SIZES[state.dtype] * product(dimensions(state, 1, 0, source));
  const one = signature.allStates.reduce((all, state) => all + bytes(state), 0);
  if (batch * (one + 4 * (signature.vocabSize + (signature.inputSize ?? 0))) > BATCH_STATES * maxStateBytes) {
    throw new T2RError("batch", `states of at most ${BATCH_STATES * maxStateBytes} bytes`, `a batch of ${batch}`, "choose a smaller one");
  }
}

/** Refuse a graph that reads vectors instead of tokens. */
export function requireReadsTokens({ inputSize: size }) {
  if (size === null) return;
  const received = `one that reads vectors of ${size} elements (inputs_embeds)`;
  throw new T2RError("graph", "a graph that reads token ids", received, "read vectors with readVectors, or export a graph of tokens");
}

/** Refuse tokens outside the vocabulary, or fewer than `least`. */
export function requireTokens(signature, ids, what, least = 1) {
  const most = signature.vocabSize - 1;
  const wrong = ids.findIndex((id) => !isWhole(id, 0, most));
  if (wrong >= 0 || ids.length < least) {
    const received = wrong < 0 ? "none" : shown(ids[wrong]);
    throw new T2RError("token", `${what} in 0 … ${most}`, received, "use the model's own tokenizer");
  }
}

/** Refuse to read `more` tokens if the model's positions end before. */
export function requireRoom({ maxPositions: most, pastEnd: end }, position, more) {
  if (most !== null && end === "refuse" && position + more > most) {
    const received = `${position} read and ${more} more`;
    throw new T2RError("position", `at most ${most} tokens, where the model's positions end`, received, "reset, or read less");
  }
}

/** The first metadata key in which a companion differs from the step graph, or undefined. */
export function differs(step, other, role) {
  if (other.role !== role) return "role";
  const own = ["role", "graphs", "tokenizer", "source_tokenizer"];
  const wanted = { ...step, generation: null, chatTemplate: null };
  if (role === "encoder") wanted.hiddenSize = null;
  const shared = [...KEYS, ...OF_SOURCES, ...OPTIONAL].filter((key) => !own.includes(key));
  return shared.find((key) => JSON.stringify(wanted[camel(key)]) !== JSON.stringify(other[camel(key)]));
}

function bad(expected, received, what) {
  return new T2RError("metadata", expected, received, what);
}
