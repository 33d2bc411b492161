/** Continuous batching: texts are added and removed between steps; a step reads the weights once for all of them. */

import { alone, watchersOf } from "./arguments.js";
import { Decoder } from "./decoder.js";
import { T2RError, isWhole, shown } from "./errors.js";
import { pickOfAll, requestOf } from "./generate.js";
import { History } from "./history.js";
import { Sampler } from "./sampler.js";
import { requireReadsTokens } from "./signature.js";

/**
 * Generates several texts at once, each in one row of the states. Each equals what `generate` writes alone, up to rounding.
 *
 *     const batch = new Batch(decoder);
 *     for (const prompt of prompts) await batch.add(tokenizer.encode(prompt), 100);
 *     while (batch.sequences.length) for (const [handle, token] of await batch.step()) …
 */
export class Batch {
  #rows; // a decoder with one row per text
  #texts = []; // {handle, request, history, token, left}
  #count = 0;
  #alone = alone("a batch");

  /**
   * @param {Decoder} decoder whose sessions are used, one call at a time; its states do not change
   * @throws {T2RError} batch: a graph of a fixed batch, or with growing caches, which would all need one length
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
   * Add a text: read its prompt except the last token, which the next step reads.
   * @param {import("./types.js").Tokens} prompt
   * @param {number} maxTokens
   * @param {import("./types.js").SamplingOptions} [options]
   * @param {import("./types.js").CallOptions} [call]
   * @returns {Promise<number>} its handle: 0, 1, 2, …
   * @throws {T2RError} as Decoder.generate; batch: more than the limit of state bytes. Nothing has changed then
   */
  async add(prompt, maxTokens, options = {}, call = {}) {
    watchersOf(call);
    return this.#alone(async () => {
      const reader = this.#rows.fork();
      try {
        const request = requestOf(reader, new Sampler(options, reader.signature.generation), prompt, maxTokens);
        const { ids } = request, token = ids.at(-1), before = ids.slice(0, -1);
        if (before.length) await reader.prefill(before, call);
        await this.#rows.take([...this.#parts(this.#texts.keys()), [reader, [0]]]);
        this.#texts.push({ handle: this.#count, request, history: new History(before), token, left: maxTokens });
        return this.#count++;
      } finally {
        await reader.close();
      }
    });
  }

  /**
   * Choose one token per text. A text leaves the batch after a stop token or `maxTokens`, or with -1 if its logits are not finite.
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
   * @throws {T2RError} batch: no such handle
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

  /** Release the states; the decoder stays open. @returns {Promise<void>} */
  async close() {
    await this.#alone(() => this.#rows.close());
    this.#texts = [];
  }

  /** Rows as parts for Decoder.take; none for an empty batch. @returns {[Decoder, number[]][]} */
  #parts(rows) {
    const chosen = [...rows];
    return chosen.length ? [[this.#rows, chosen]] : [];
  }

  /** Drop all texts but those that `stays` accepts. */
  async #keep(stays) {
    const rows = [...this.#texts.keys()].filter((row) => stays(this.#texts[row]));
    if (rows.length && rows.length < this.#texts.length) await this.#rows.reorder(rows);
    this.#texts = rows.map((row) => this.#texts[row]);
  }
}

/** Choose a text's next token and update the text; -1 if its logits are not finite. */
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
