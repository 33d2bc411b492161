/** Chooses a token from logits, bit-exact to contract/generation.md. */

import { isList, numbersOf } from "./arguments.js";
import { T2RError, shown } from "./errors.js";
import { samplingOf } from "./options.js";

const GOLDEN = 0x9e3779b9; // 2^32 over the golden ratio
const FEW = 256; // up to this k, insertion is cheaper than a sort

/** Chooses the tokens of one text, by its options and the noise of one seed; each draw takes the next noise. */
export class Sampler {
  /**
   * @param {import("./types.js").SamplingOptions} options
   * @param {import("./types.js").Signature["generation"]} generation the graph's options, for those missing in `options`
   * @throws {T2RError} sampling
   */
  constructor(options = {}, generation = null) {
    /** All options, completed by the graph's and the defaults. @readonly */
    this.options = samplingOf(options, generation);
    const { seed } = this.options;
    /** @readonly @type {number} of 32 bits */
    this.seed = seed === null ? crypto.getRandomValues(new Uint32Array(1))[0] : word(seed);
    this.draws = 0;
  }

  /** Whether a choice depends on earlier tokens. @returns {boolean} */
  get looksBack() {
    return this.options.repetitionPenalty !== 1 || this.options.noRepeatNgram > 0;
  }

  /** How many of the largest logits are enough to choose from; 0: all, as penalties need. @returns {number} */
  get limit() {
    return this.looksBack ? 0 : this.options.temperature === 0 ? 1 : this.options.topK;
  }

  /**
   * Choose a token from logits (vocabulary,); a logit of -inf is never chosen.
   * @param {Float32Array} logits
   * @param {ArrayLike<number>} text earlier tokens, oldest first
   * @param {ArrayLike<number> | null} tokens those of the logits, if these are only the `limit` largest, or more; else null
   * @returns {number}
   * @throws {T2RError} graph: logits that are not finite
   */
  pick(logits, text = [], tokens = null) {
    requirePick(logits, text, tokens);
    if (tokens !== null) [logits, tokens] = rising(logits, tokens);
    let best = largest(logits);
    if (this.looksBack) {
      logits = penalized(logits, text, this.options.repetitionPenalty, this.options.noRepeatNgram);
      best = largest(logits);
    }
    const draw = this.draws++, token = (place) => (tokens === null ? place : tokens[place]);
    if (this.options.temperature === 0 || this.options.topK === 1) return token(best);
    const key = mix(mix((this.seed + GOLDEN) >>> 0) + draw), score = scored(logits, best, this.options);
    let chosen = -1, highest = -Infinity;
    for (const place of allowed(logits, score, this.options)) {
      const value = score(place) + gumbel(key, token(place));
      if (value > highest || chosen < 0) [chosen, highest] = [place, value];
    }
    return token(chosen);
  }
}

function requirePick(logits, text, tokens) {
  const isRow = (logits instanceof Float32Array || logits instanceof Float64Array) && logits.length > 0;
  if (!isRow) throw refused("logits: a Float32Array of at least one", shown(logits));
  if (Array.isArray(text)) numbersOf(text, "a text");
  else if (!isList(text)) throw refused("a text of tokens", shown(text));
  if (tokens !== null && !(isList(tokens) && tokens.length === logits.length)) throw refused(`the tokens of ${logits.length} logits`, shown(tokens));
  if (Array.isArray(tokens)) numbersOf(tokens, "tokens");
}

function refused(expected, received) {
  return new T2RError("sampling", expected, received, "correct it");
}

/** Argmax, the lowest index on ties. */
export function largest(logits) {
  let best = 0;
  for (let i = 0; i < logits.length; i++) {
    if (logits[i] > logits[best]) best = i;
    else if (Number.isNaN(logits[i])) throw notFinite(logits[i], i);
  }
  if (!Number.isFinite(logits[best])) throw notFinite(logits[best], best);
  return best;
}

function notFinite(value, token) {
  return new T2RError("graph", "finite logits", `${value} at token ${token}`, "check the graph with t2r verify");
}

/** Logits after both penalties, in their own precision. */
export function penalized(logits, text, penalty, ngram) {
  let changed = logits;
  if (penalty !== 1) {
    changed = logits.slice();
    const factor = logits instanceof Float32Array ? Math.fround(penalty) : penalty;
    for (const token of new Set(text)) {
      const old = logits[token];
      changed[token] = old > 0 ? old / factor : old * factor;
    }
  }
  if (!(ngram > 0 && ngram <= text.length)) return changed;
  const left = changed.slice(), end = text.length - ngram + 1;
  for (let start = 0; start < end; start++) {
    let begun = true;
    for (let i = 0; begun && i < ngram - 1; i++) begun = text[start + i] === text[end + i];
    if (begun) left[text[start + ngram - 1]] = -Infinity;
  }
  return left.some((logit) => logit > -Infinity) ? left : changed;
}

/** Logits and their tokens, sorted by ascending token. @returns {[Float32Array, number[]]} */
function rising(logits, tokens) {
  const order = Array.from(tokens, (_, place) => place).sort((a, b) => tokens[a] - tokens[b]);
  return [Float32Array.from(order, (place) => logits[place]), order.map((place) => tokens[place])];
}

/** Maps a place to its score: (logit - largest) / temperature. */
function scored(logits, best, { temperature }) {
  const top = logits[best];
  return (place) => (logits[place] - top) / temperature;
}

/** Places of logits that may be chosen, ascending. Typed arrays: a large vocabulary leaves no room for objects. */
function allowed(logits, score, { topK, topP, minP }) {
  let places = new Uint32Array(logits.length).map((_, place) => place);
  if (topK > 0 && topK < places.length) {
    const edge = kthLargest(logits, topK);
    let ties = edge > -Infinity ? topK - logits.filter((logit) => logit > edge).length : 0; // ties keep the lowest tokens
    places = places.filter((place) => logits[place] > edge || (logits[place] === edge && ties-- > 0));
  }
  if (topP < 1) places = nucleus(places, logits, score, topP);
  return minP > 0 ? places.filter((place) => score(place) >= Math.log(minP)) : places;
}

/** The k-th largest: one pass over a sorted buffer for small k, else a sort. */
function kthLargest(logits, k) {
  if (k > FEW) return logits.slice().sort()[logits.length - k];
  const most = logits.slice(0, k).sort();
  for (let n = k; n < logits.length; n++) {
    if (!(logits[n] > most[0])) continue;
    let place = 0;
    for (; place + 1 < k && most[place + 1] < logits[n]; place++) most[place] = most[place + 1];
    most[place] = logits[n];
  }
  return most[0];
}

/** The most probable of these places whose sum reaches `topP`, ascending. */
function nucleus(places, logits, score, topP) {
  const weights = new Float64Array(places.length);
  let total = 0;
  for (let n = 0; n < places.length; n++) total += weights[n] = Math.exp(score(places[n]));
  // weights below this sum to less than 1 - topP: dropped before the sort, the slowest part
  const least = ((1 - topP) * total) / places.length, order = places.filter((_, n) => weights[n] >= least);
  order.sort((a, b) => logits[b] - logits[a] || a - b);
  let before = 0, kept = 0;
  while (kept < order.length && before < topP * total) before += Math.exp(score(order[kept++]));
  return order.subarray(0, kept).sort();
}

/** Standard Gumbel noise of a token under the key of a draw. */
function gumbel(key, token) {
  return -Math.log(-Math.log((mix((key + token) >>> 0) + 0.5) / 2 ** 32));
}

/** MurmurHash3's finalizer, of 32 bits. */
export function mix(x) {
  x >>>= 0;
  x = Math.imul(x ^ (x >>> 16), 0x85ebca6b);
  x = Math.imul(x ^ (x >>> 13), 0xc2b2ae35);
  return (x ^ (x >>> 16)) >>> 0;
}

/** A seed of any size as one of 32 bits; itself if it is less than 2^32. */
export function word(seed) {
  const words = [];
  for (let rest = BigInt(seed); words.length === 0 || rest > 0n; rest >>= 32n) words.push(Number(rest & 0xffffffffn));
  return words.reduceRight((r, w) => (mix(r) ^ w) >>> 0, 0);
}
