/** Continuous batching: texts that are added and removed between steps, of which each reads the weights once for all. */

import { Decoder } from "./decoder.js";
import { T2RError, isWhole, shown } from "./errors.js";
import { pickOfAll, requestOf } from "./generate.js";
import { History } from "./history.js";
import { Sampler } from "./sampler.js";
import { requireReadsTokens } from "./signature.js";

/**
 * Several texts at once, each a row of every state, and each the one that `generate` writes alone, but for rounding.
 *
 *     const batch = new Batch(decoder);
 *     for (const prompt of prompts) await batch.add(tokenizer.encode(prompt), 100);
 *     while (batch.sequences.length) for (const [handle, token] of await batch.step()) …
 */
export class Batch {
  #rows; // a decoder, of whose rows each is a text
  #texts = []; // {handle, request, history, token, left}
  #count = 0;
  #inUse = false;

  /**
   * @param {Decoder} decoder whose sessions are used, one call at a time; its own text is left alone
   * @throws {T2RError} batch: a graph of a fixed batch, or one whose caches grow, which would have to be of one length
   */
  constructor(decoder) {
    if (!(decoder instanceof Decoder)) throw new T2RError("graph", "a Decoder", shown(decoder), "open one, in this thread");
    const { signature } = decoder;
    requireReadsTokens(signature);
    if (signature.batch !== null) throw refused("a graph of any batch", `one of ${signature.batch}`, "export it without --batch");
    const grows = signature.states.some(({ shape }) => shape.includes("T"));
    if (grows) throw refused("states of one size", "caches that grow", "convert all layers, or take a decoder for each text");
    this.#rows = decoder.fork();
  }

  /** Handles of the texts that have not ended, oldest first. @returns {number[]} */
  get sequences() {
    return this.#texts.map(({ handle }) => handle);
  }

  /**
   * Add a text: read its prompt but for the last token, which the next step reads.
   * @param {import("./types.js").Tokens} prompt
   * @param {number} maxTokens
   * @param {import("./types.js").SamplingOptions} [options]
   * @returns {Promise<number>} its handle: 0, 1, 2, …
   * @throws {T2RError} as Decoder.generate; batch: more than fit into the limit of the states. All is as before then
   */
  async add(prompt, maxTokens, options = {}) {
    return this.#alone(async () => {
      const reader = this.#rows.fork();
      try {
        const request = requestOf(reader, new Sampler(options, reader.signature.generation), prompt, maxTokens);
        const { ids } = request, token = ids.at(-1), before = ids.slice(0, -1);
        if (before.length) await reader.prefill(before);
        await this.#rows.take([...this.#parts(this.#texts.keys()), [reader, [0]]]);
        this.#texts.push({ handle: this.#count, request, history: new History(before), token, left: maxTokens });
        return this.#count++;
      } finally {
        await reader.close();
      }
    });
  }

  /**
   * One token of every text. A text leaves the batch behind a stop token or `maxTokens`; and with -1 where its logits are not finite.
   * @returns {Promise<Map<number, number>>} handle → token, oldest first
   * @throws {T2RError} runtime: the graph does not run; no text has changed then
   */
  async step() {
    return this.#alone(async () => {
      const found = new Map(), size = this.#rows.signature.vocabSize;
      if (!this.#texts.length) return found;
      const logits = await this.#rows.step(this.#texts.map(({ token }) => token));
      this.#texts.forEach((text, n) => found.set(text.handle, chosen(text, logits.subarray(n * size, (n + 1) * size))));
      await this.#keep(({ request, token, left }) => token >= 0 && left > 0 && !request.stop.has(token));
      return found;
    });
  }

  /**
   * Remove a text.
   * @param {number} handle
   * @returns {Promise<Map<string, import("./types.js").State>>} its states, for Decoder.setState: all but its newest token have been read
   * @throws {T2RError} batch: none of this handle
   */
  async remove(handle) {
    return this.#alone(async () => {
      const row = this.#texts.findIndex((text) => text.handle === handle);
      if (row < 0) throw refused(`the handle of a text that has not ended: ${this.sequences.join(", ") || "none"}`, shown(handle), "take one of `add`");
      const other = this.#rows.fork();
      try {
        await other.take([[this.#rows, [row]]]);
        await this.#keep((text) => text.handle !== handle);
        return await other.state();
      } finally {
        await other.close();
      }
    });
  }

  /** Give the states back; the decoder stays open. @returns {Promise<void>} */
  async close() {
    await this.#alone(() => this.#rows.close());
    this.#texts = [];
  }

  /** Rows of texts, in their order; of an empty batch there is none. @returns {[Decoder, number[]][]} */
  #parts(rows) {
    const chosen = [...rows];
    return chosen.length ? [[this.#rows, chosen]] : [];
  }

  /** Leave the other texts out. */
  async #keep(stays) {
    const rows = [...this.#texts.keys()].filter((row) => stays(this.#texts[row]));
    if (rows.length && rows.length < this.#texts.length) await this.#rows.reorder(rows);
    this.#texts = rows.map((row) => this.#texts[row]);
  }

  /** Do one thing at a time: a decoder guards each of its calls, not what lies between two. */
  async #alone(work) {
    if (this.#inUse) throw new T2RError("state", "a batch that nobody else uses", "one in use", "wait for its end");
    this.#inUse = true;
    try {
      return await work();
    } finally {
      this.#inUse = false;
    }
  }
}

/** A text's next token, which it goes on with; -1 where its logits are not finite. */
function chosen(text, logits) {
  const { request: { sampler, banned }, history } = text;
  history.add([text.token]);
  text.left--;
  try {
    text.token = pickOfAll(sampler, logits, banned, () => history.latest);
  } catch (error) {
    if (!(error instanceof T2RError && error.kind === "graph")) throw error;
    text.token = -1;
  }
  return text.token;
}

function refused(expected, received, what) {
  return new T2RError("batch", expected, received, what);
}
