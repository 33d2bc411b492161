/** Caches decoder states of shared text prefixes. */

import { adapterState } from "./adapters.js";
import { numbersOf, watchersOf } from "./arguments.js";
import { Decoder } from "./decoder.js";
import { T2RError, isWhole, shown } from "./errors.js";
import { requireReadsTokens, requireRoom, requireTokens } from "./signature.js";

/**
 * Keeps the states after blocks of tokens. The size of recurrent states does not grow with the position. A state cannot be truncated, so
 * it serves only texts that begin with all tokens it has read.
 *
 *     const cache = new PrefixCache(decoder);
 *     await cache.generate([...system, ...question], 200); // reads all
 *     await cache.generate([...system, ...another], 200); // reads what follows the shared blocks
 */
export class PrefixCache {
  #decoder;
  #kept = new Map(); // id of the previous block and this block → {id, decoder}, least recently used first
  #count = 0;
  #adapter = null;
  #start = 0; // takes the place of the block before the first: 0, or minus the number of the adapter, as states depend on it
  #maxBytes;
  #block;

  /** Tokens of the last text that were in the cache. */
  reused = 0;

  /**
   * @param {Decoder} decoder for the cache's exclusive use
   * @param {{ maxBytes?: number, block?: number }} [options] limit of the kept states' bytes, 2^28, and tokens per block, 256
   * @throws {T2RError} snapshot: an option out of its range; graph: not a decoder
   */
  constructor(decoder, options = {}) {
    if (!(decoder instanceof Decoder)) throw new T2RError("graph", "a Decoder", shown(decoder), "open one, in this thread");
    requireReadsTokens(decoder.signature);
    if (typeof options !== "object" || options === null) throw refused("options as an object", options);
    const { maxBytes = 2 ** 28, block = 256 } = options;
    if (!isWhole(maxBytes)) throw refused("maxBytes of at least 0", maxBytes);
    if (!isWhole(block, 1)) throw refused("a block of at least 1", block);
    [this.#decoder, this.#maxBytes, this.#block] = [decoder, maxBytes, block];
  }

  /**
   * Choose the low-rank adapter of the texts from now on; states of one are never used with another.
   * @param {string | null} name one of `signature.adapters`; null for none
   * @returns {void}
   * @throws {T2RError} argument
   */
  adapt(name) {
    const { bytes } = adapterState({ signature: this.#decoder.signature, batch: 1 }, name);
    [this.#adapter, this.#start] = [name, -new Int32Array(bytes.buffer)[0]];
  }

  /** Bytes of the kept states. @returns {number} */
  get keptBytes() {
    return [...this.#kept.values()].reduce((all, { decoder }) => all + decoder.stateBytes, 0);
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
    const decoder = this.#decoder, text = numbersOf(ids, "tokens");
    await this.#begin();
    requireTokens(decoder.signature, text, "tokens");
    requireRoom(decoder.signature, 0, text.length);
    const size = this.#block, blocks = Math.floor((text.length - 1) / size), keys = [];
    let at = 0, newest = null;
    const block = () => text.slice(at * size, (at + 1) * size), key = () => `${newest?.id ?? this.#start}:${block()}`;
    for (let next; at < blocks && (next = this.#kept.get(key())); at++) {
      keys.push(key());
      newest = next;
    }
    this.reused = at * size;
    this.#use(keys);
    if (newest) await decoder.take([[newest.decoder, [0]]]);
    try {
      for (let fits = true; at < blocks; at++) {
        await decoder.prefill(block(), call);
        fits = fits && await this.#makeRoom(decoder.stateBytes, keys.length);
        if (!fits) continue; // nor do longer prefixes
        keys.push(key());
        newest = { id: ++this.#count, decoder: decoder.fork() };
        await newest.decoder.take([[decoder, [0]]]);
        this.#kept.set(keys.at(-1), newest);
      }
    } finally {
      this.#use(keys);
    }
    return decoder.prefill(text.slice(blocks * size), call);
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
    if (text.length > 1) await this.read(text.slice(0, -1), { signal });
    else await this.#begin();
    return this.#decoder.generate(text.slice(-1), maxTokens, options, watchers);
  }

  /** Empty the cache; the decoder stays open. @returns {Promise<void>} */
  async clear() {
    for (const { decoder } of this.#kept.values()) await decoder.close();
    this.#kept.clear();
  }

  /** Go to the start of a text. */
  async #begin() {
    await this.#decoder.reset(1);
    await this.#decoder.adapt(this.#adapter);
  }

  /** Mark a text's blocks as most recently used, the first block as the newest. */
  #use(keys) {
    for (const key of keys.toReversed()) {
      const found = this.#kept.get(key);
      if (!found) continue; // its states could not be taken
      this.#kept.delete(key);
      this.#kept.set(key, found);
    }
  }

  /** Evict until one more fits, but none of the newest `used`, which are shorter prefixes of its text. Tells whether it fits. */
  async #makeRoom(bytes, used) {
    if (bytes > this.#maxBytes) return false; // would evict all others and still not fit
    let left = this.keptBytes;
    for (const [key, { decoder }] of this.#kept) {
      if (left + bytes <= this.#maxBytes) return true;
      if (this.#kept.size === used) return false;
      left -= decoder.stateBytes;
      this.#kept.delete(key);
      await decoder.close();
    }
    return true;
  }
}

function refused(expected, received) {
  return new T2RError("snapshot", expected, shown(received), "correct it");
}
