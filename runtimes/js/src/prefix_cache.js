/** Caches decoder states of known text prefixes. */

import { adapterState } from "./adapters.js";
import { alone, numbersOf, watchersOf } from "./arguments.js";
import { Decoder } from "./decoder.js";
import { T2RError, isWhole, shown } from "./errors.js";
import { requireReadsTokens, requireRoom, requireTokens } from "./signature.js";

const SOONEST = 1e-3; // seconds since the last use, at least

/**
 * The states after a text, below those after the longest other text that begins it: `tokens` follow that one's, `length` is of the whole
 * text. Without a decoder, the start of texts.
 * @typedef {{ prefix: Kept | null, tokens: number[], length: number, bytes: number, used: number, decoder: Decoder | null, longer: Set<Kept> }} Kept
 */

/**
 * Keeps the states after texts, after answers, and in texts after every block of tokens. The size of recurrent states does not grow with
 * the position. A state cannot be truncated, so it serves only texts that begin with all tokens it has read.
 *
 *     const cache = new PrefixCache(decoder);
 *     await cache.generate([...system, ...question], 200); // reads all
 *     await cache.generate([...system, ...another], 200); // reads what follows the shared blocks
 */
export class PrefixCache {
  #decoder;
  #kept = /** @type {Set<Kept>} */ (new Set()); // oldest first
  #starts = new Map(); // adapter → the start of its texts, as states depend on it
  #adapter = null;
  #maxBytes;
  #block;
  #clock;
  #alone = alone("a prefix cache");

  /** Tokens of the last text that were in the cache. */
  reused = 0;

  /**
   * Evicts the least valuable states first: the value is the number of tokens that would have to be read again, from the longest kept
   * prefix of the same text, per byte and per second since the last use (LNC-R, Scheuermann et al. 1996).
   * @param {Decoder} decoder for the cache's exclusive use
   * @param {{ maxBytes?: number, block?: number }} [options] limit of the kept states' bytes, 2^28, and tokens per block, 256
   * @param {() => number} [clock] in seconds
   * @throws {T2RError} snapshot: an option out of its range; graph: not a decoder
   */
  constructor(decoder, options = {}, clock = () => performance.now() / 1000) {
    if (!(decoder instanceof Decoder)) throw new T2RError("graph", "a Decoder", shown(decoder), "open one, in this thread");
    requireReadsTokens(decoder.signature);
    if (typeof options !== "object" || options === null) throw refused("options as an object", options);
    const { maxBytes = 2 ** 28, block = 256 } = options;
    if (!isWhole(maxBytes)) throw refused("maxBytes of at least 0", maxBytes);
    if (!isWhole(block, 1)) throw refused("a block of at least 1", block);
    if (typeof clock !== "function") throw refused("a function as clock", clock);
    [this.#decoder, this.#maxBytes, this.#block, this.#clock] = [decoder, maxBytes, block, clock];
  }

  /**
   * Choose the low-rank adapter of the texts from now on; states of one are never used with another.
   * @param {string | null} name one of `signature.adapters`; null for none
   * @returns {void}
   * @throws {T2RError} argument
   */
  adapt(name) {
    adapterState({ signature: this.#decoder.signature, batch: 1 }, name); // refuses unknown ones
    this.#adapter = name;
  }

  /** Bytes of the kept states. @returns {number} */
  get keptBytes() {
    return [...this.#kept].reduce((all, { bytes }) => all + bytes, 0);
  }

  /**
   * Read a text from its start.
   * @param {import("./types.js").Tokens} ids
   * @param {import("./types.js").CallOptions} [call]
   * @returns {Promise<Float32Array>} the logits after it
   * @throws {T2RError} as Decoder.prefill; the decoder has then read the first tokens of this text, as many as its position says
   */
  async read(ids, call = {}) {
    watchersOf(call);
    const text = numbersOf(ids, "tokens");
    return this.#alone(async () => this.#read(await this.#begin(), text, text.length - 1, call)); // the logits need a token
  }

  /**
   * As Decoder.generate, from the start of a text.
   * @param {import("./types.js").Tokens} ids
   * @param {number} maxTokens
   * @param {import("./types.js").SamplingOptions} [options]
   * @param {import("./types.js").TextWatchers} [watchers]
   * @returns {Promise<number[]>}
   */
  async generate(ids, maxTokens, options = {}, watchers = {}) {
    const text = numbersOf(ids, "a prompt of tokens"), { signal } = watchersOf(watchers, "onToken");
    return this.#alone(async () => {
      const start = await this.#begin();
      if (text.length > 1) await this.#read(start, text.slice(0, -1), text.length - 1, { signal });
      const written = await this.#decoder.generate(text.slice(-1), maxTokens, options, watchers);
      await this.#keep(start, [...text, ...written], this.#decoder.position); // the last token has not been read
      return written;
    });
  }

  /** Empty the cache; the decoder stays open. @returns {Promise<void>} */
  async clear() {
    await this.#alone(async () => {
      for (const { decoder } of this.#kept) await decoder.close();
      this.#kept.clear();
      this.#starts.clear();
    });
  }

  /** Go to the start of a text. */
  async #begin() {
    const adapter = this.#adapter;
    this.reused = 0;
    await this.#decoder.reset(1);
    await this.#decoder.adapt(adapter);
    if (!this.#starts.has(adapter)) this.#starts.set(adapter, { length: 0, longer: new Set() });
    return this.#starts.get(adapter);
  }

  /** Read a text after its longest known prefix of at most `length` tokens. */
  async #read(start, text, length, call) {
    const decoder = this.#decoder;
    requireTokens(decoder.signature, text, "tokens");
    requireRoom(decoder.signature, 0, text.length);
    const known = find(start, text, length);
    if (known.decoder) await decoder.take([[known.decoder, [0]]]);
    [known.used, this.reused] = [this.#clock(), known.length];
    let logits;
    for (let at = known.length, end; at < text.length; at = end) {
      end = Math.min(at + this.#block - (at % this.#block), text.length);
      logits = await decoder.prefill(text.slice(at, end), call);
      await this.#keep(start, text, end);
    }
    return logits;
  }

  /** Keep the states after the first tokens of a text, unless those of others are worth more. */
  async #keep(start, text, length) {
    const now = this.#clock(), bytes = this.#decoder.stateBytes;
    let prefix = find(start, text, length);
    if (prefix.length === length) prefix.used = now;
    if (prefix.length === length || bytes > this.#maxBytes) return;
    while (this.keptBytes + bytes > this.#maxBytes) {
      const value = (one) => valueOf(one.tokens.length, one.bytes, now - one.used);
      const least = [...this.#kept].reduce((least, one) => (value(one) < value(least) ? one : least));
      if (valueOf(length - prefix.length, bytes, 0) < value(least)) return;
      await this.#evict(least);
      prefix = find(start, text, length);
    }
    const decoder = this.#decoder.fork();
    try {
      await decoder.take([[this.#decoder, [0]]]);
    } catch (error) {
      await decoder.close();
      throw error;
    }
    this.#kept.add(added({ prefix, tokens: text.slice(prefix.length, length), length, bytes, used: now, decoder, longer: new Set() }));
  }

  /** Those below it are then below its prefix. */
  async #evict(gone) {
    this.#kept.delete(gone);
    gone.prefix.longer.delete(gone);
    for (const one of gone.longer) {
      [one.prefix, one.tokens] = [gone.prefix, [...gone.tokens, ...one.tokens]];
      gone.prefix.longer.add(one);
    }
    await gone.decoder.close();
  }
}

/** The states after the longest known prefix of at most `length` tokens. @returns {Kept} */
function find(start, text, length) {
  let found = start;
  for (let next = start; next; ) {
    found = next;
    next = [...found.longer].find((one) => one.length <= length && one.tokens.every((token, n) => token === text[found.length + n]));
  }
  return found;
}

/** Place new states below their prefix, and longer texts that begin with theirs below them. */
function added(one) {
  for (const other of one.prefix.longer) {
    if (other.length < one.length || one.tokens.some((token, n) => token !== other.tokens[n])) continue;
    one.prefix.longer.delete(other);
    one.longer.add(Object.assign(other, { prefix: one, tokens: other.tokens.slice(one.tokens.length) }));
  }
  one.prefix.longer.add(one);
  return one;
}

function valueOf(tokens, bytes, age) {
  return tokens / bytes / Math.max(age, SOONEST);
}

function refused(expected, received) {
  return new T2RError("snapshot", expected, shown(received), "correct it");
}
