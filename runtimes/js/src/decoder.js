/** A step graph as a decoder: tokens in, logits out. The decoder keeps the states. */

import { checkpoint } from "./aborts.js";
import { ADAPTER, adapterState } from "./adapters.js";
import { Ahead } from "./ahead.js";
import { isList, openOptions, watchersOf } from "./arguments.js";
import { RunTimes } from "./drafts.js";
import { T2RError, isWhole, shown } from "./errors.js";
import { collected, requestOf, tokensOf } from "./generate.js";
import { Graphs } from "./graphs.js";
import { History } from "./history.js";
import { columnOf, rowsOf, vectorRowsOf } from "./inputs.js";
import { Sampler } from "./sampler.js";
import { readFile } from "./session.js";
import { checkStates, givenStates, readSnapshot, writeSnapshot } from "./snapshot.js";
import { greatest, requireBatch, requireReadsTokens } from "./signature.js";
import { States } from "./states.js";
import { Tokenizer } from "./tokenizer.js";

const ROWS = 512; // tokens per run: enough for full matrix product speed, and a bound on memory

export class Decoder {
  #graphs;
  #states;
  #positions = [0];
  #history = [new History()];
  #options;
  #drafts = /** @type {RunTimes | null} */ (null); // null: none are made

  /** @private use Decoder.open */
  constructor(graphs, options) {
    this.#graphs = graphs;
    this.#options = options;
    this.#states = new States(graphs.step);
    this.#start(this.signature.batch ?? 1);
  }

  /**
   * Open a step graph, at the start of a text.
   * @param {import("./types.js").Source} source
   * @param {import("./types.js").OpenOptions} options
   * @returns {Promise<Decoder>}
   * @throws {T2RError} file, graph, version, weights, metadata, interface, provider
   */
  static async open(source, options = {}) {
    const checked = openOptions(options), roles = checked.prefill === false ? [] : ["prefill"];
    return Graphs.open("decoder", source, checked, roles, refuseTranslator, (graphs) => new Decoder(graphs, checked));
  }

  /** The graph's metadata. @returns {import("./types.js").Signature} */
  get signature() {
    return this.#graphs.step.signature;
  }

  /** Execution provider: cpu, wasm, webgpu or t2r. @returns {string} */
  get provider() {
    return this.#graphs.step.provider;
  }

  /** Number of sequences decoded side by side. */
  get batch() {
    return this.#positions.length;
  }

  /** Number of tokens read since the start, by the furthest sequence. */
  get position() {
    return greatest(this.#positions);
  }

  /** Bytes of all states now. @returns {number} */
  get stateBytes() {
    return this.#states.bytes;
  }

  /** The tokenizer in the graph. @throws {T2RError} tokenizer: there is none, or one with an unknown part */
  tokenizer() {
    return Tokenizer.of(this.signature);
  }

  /**
   * Reset the states to the start of a text, for `batch` sequences.
   * @param {number} [batch]
   * @returns {Promise<void>}
   * @throws {T2RError} batch
   */
  async reset(batch = this.batch) {
    return this.#graphs.alone(() => {
      requireBatch(this.signature, batch, this.#options.maxStateBytes);
      this.#start(batch);
    });
  }

  /**
   * Choose the low-rank adapters that the tokens from now on use, until the next reset; rows keep theirs when they move.
   * @param {string | null | readonly (string | null)[]} names of `signature.adapters`, null for none: one for all sequences, or one of each
   * @returns {Promise<void>}
   * @throws {T2RError} argument
   */
  async adapt(names) {
    return this.#graphs.alone(() => {
      const state = adapterState(this, names);
      if (this.signature.adapters) this.#states.assign(ADAPTER, state);
    });
  }

  /**
   * Read one token per sequence: a number, or (B,). Returns the logits of the next token, (B · vocabulary).
   * @param {number | import("./types.js").Tokens} ids
   * @returns {Promise<Float32Array>}
   * @throws {T2RError} token, batch, position
   */
  async step(ids) {
    return this.#graphs.alone(() => this.#read(columnOf(this, ids), "logits"));
  }

  /**
   * Read a prompt (T,), or (B, T). Returns the logits after its last token.
   * @param {import("./types.js").Tokens | readonly import("./types.js").Tokens[]} ids
   * @param {import("./types.js").CallOptions} [call]
   * @returns {Promise<Float32Array>}
   * @throws {T2RError} token, batch, position
   */
  async prefill(ids, call = {}) {
    const { signal } = watchersOf(call);
    return this.#graphs.alone(() => this.#read(rowsOf(this, ids), "logits", signal));
  }

  /**
   * As `prefill`, for a graph that reads vectors: (B · T · inputSize), row-major.
   * @param {Float32Array | Float64Array | readonly number[]} vectors
   * @param {import("./types.js").CallOptions} [call]
   * @returns {Promise<Float32Array>}
   * @throws {T2RError} token, batch, position
   */
  async readVectors(vectors, call = {}) {
    const { signal } = watchersOf(call);
    return this.#graphs.alone(() => this.#read(vectorRowsOf(this, vectors), "logits", signal));
  }

  /**
   * As `prefill`, but returns the largest logits and their tokens, chosen by the graph: (B · topK) each.
   * @param {import("./types.js").Tokens | readonly import("./types.js").Tokens[]} ids
   * @param {import("./types.js").CallOptions} [call]
   * @returns {Promise<{ logits: Float32Array, tokens: Int32Array }>}
   * @throws {T2RError} token, batch, position; graph: one without top-k outputs
   */
  async topK(ids, call = {}) {
    const { signal } = watchersOf(call);
    return this.#graphs.alone(() => {
      if (this.signature.topK === null) {
        throw new T2RError("graph", "a graph that chooses the largest logits", "one without", "export with --top-k");
      }
      return this.#read(rowsOf(this, ids), "top", signal);
    });
  }

  /**
   * Whether `stream` and `generate`, from now on, guess the next tokens by what followed the latest ones before, and check several
   * guesses in one run of the draft-check graph. The text is the same except for rounding; a text has few guesses if they do not pay off.
   * @param {boolean} lookup
   * @param {import("./types.js").CallOptions} [call]
   * @returns {Promise<void>}
   * @throws {T2RError} graph: no draft-check graph; as Decoder.open, for that graph
   */
  async draft(lookup, call = {}) {
    const { signal } = watchersOf(call);
    if (typeof lookup !== "boolean") throw new T2RError("argument", "true or false", shown(lookup), "correct it");
    return this.#graphs.alone(async () => {
      if (lookup && this.signature.graphs.draft_check === undefined) {
        throw new T2RError("graph", "a draft-check graph beside the step graph", "none", "export with --draft-check");
      }
      if (lookup && !this.#graphs.opened("draft_check")) await this.#graphs.openBeside("draft_check", signal);
      this.#drafts = lookup ? (this.#drafts ?? new RunTimes()) : null;
    });
  }

  /** Copies of all states, by name. @returns {Promise<Map<string, import("./types.js").State>>} */
  async state() {
    return this.#graphs.alone(() => this.#states.fetch());
  }

  /**
   * Continue from states of the same graph, after `position` tokens.
   * @param {Map<string, import("./types.js").State> | Record<string, import("./types.js").State>} states
   * @param {number} [position]
   * @returns {Promise<void>}
   * @throws {T2RError} snapshot
   */
  async setState(states, position = 0) {
    return this.#graphs.alone(() => this.#place(givenStates(states), position));
  }

  /**
   * Another decoder of the same sessions, at the start of a text. The caller closes it. Only one of them runs a call at a time.
   * @returns {Decoder}
   * @throws {T2RError} state: this decoder is closed
   */
  fork() {
    return new Decoder(this.#graphs.share(), this.#options);
  }

  /**
   * Reorder the rows of the states. Rows may be dropped or repeated.
   * @param {readonly number[] | Int32Array | Uint32Array} rows
   * @returns {Promise<void>}
   * @throws {T2RError} batch
   */
  async reorder(rows) {
    return this.take([[this, rows]]);
  }

  /**
   * Replace the states with rows of decoders of the same sessions (`fork`), including this one, concatenated in order.
   * On WebGPU the copy stays on the GPU.
   * @param {readonly (readonly [Decoder, readonly number[] | Int32Array | Uint32Array])[]} parts
   * @returns {Promise<void>}
   * @throws {T2RError} batch: invalid rows or decoders, or caches of different lengths; state: a closed decoder
   */
  async take(parts) {
    return this.#graphs.alone(async () => {
      const rows = this.#rowsOf(parts);
      await this.#states.take(rows.map(([decoder, row]) => [decoder.#states, row]));
      [this.#positions, this.#history] = [
        rows.map(([decoder, row]) => decoder.#positions[row]), rows.map(([decoder, row]) => new History(decoder.#history[row].latest)),
      ];
    });
  }

  /**
   * The states as a snapshot's bytes, which every runtime reads; `token` is one that was chosen but not read.
   * @param {number | null} [token]
   * @returns {Promise<Uint8Array>}
   * @throws {T2RError} snapshot
   */
  async saveState(token = null) {
    return this.#graphs.alone(async () => writeSnapshot(this.signature, await this.#states.fetch(), this.position, token));
  }

  /**
   * Continue from a snapshot: its bytes, path or address. Returns its token, or null.
   * @param {Uint8Array | string | URL} source
   * @param {import("./types.js").CallOptions} [call]
   * @returns {Promise<number | null>}
   * @throws {T2RError} file, snapshot
   */
  async loadState(source, call = {}) {
    const { signal } = watchersOf(call);
    return this.#graphs.alone(async () => {
      const bytes = source instanceof Uint8Array ? source : await readFile(source, signal);
      const { states, position, token } = readSnapshot(bytes, this.signature);
      this.#place(states, position);
      return token;
    });
  }

  /**
   * Yield the tokens that follow a prompt. The caller may break early. The last token is chosen but not read; with drafts, others
   * may be unread until the stream ends, which `position` tells. Options are those of contract/generation.md.
   * @param {import("./types.js").Tokens} prompt
   * @param {number} maxTokens
   * @param {import("./types.js").SamplingOptions} [options]
   * @param {import("./types.js").CallOptions} [call]
   * @returns {AsyncGenerator<number, void, void>}
   * @throws {T2RError} sampling, batch, token, position: before anything is read
   */
  async *stream(prompt, maxTokens, options = {}, call = {}) {
    const { signal } = watchersOf(call);
    this.#graphs.enter();
    try {
      const request = this.#checked(prompt, maxTokens, options), history = this.#history[0];
      const ahead = this.#drafts && new Ahead(this.#runs(signal), [...history.latest, ...request.ids], this.#drafts);
      const read = (rows, wanted) => this.#read(rows, wanted, signal);
      yield* tokensOf(request, read, () => (ahead ? ahead.text : history).latest, ahead);
    } finally {
      this.#graphs.leave();
    }
  }

  /**
   * All tokens of `stream`. The last is chosen but not read: begin the next call with it.
   * @param {import("./types.js").Tokens} prompt
   * @param {number} maxTokens
   * @param {import("./types.js").SamplingOptions} [options]
   * @param {import("./types.js").TextWatchers} [watchers]
   * @returns {Promise<number[]>}
   */
  async generate(prompt, maxTokens, options = {}, watchers = {}) {
    const { watch, signal } = watchersOf(watchers, "onToken");
    return collected(this.stream(prompt, maxTokens, options, { signal }), { watch, signal });
  }

  /** Release what ONNX Runtime holds; later calls throw an error of kind state. */
  async close() {
    await this.#graphs.close(() => this.#states.dispose());
  }

  #start(batch) {
    this.#states.reset(batch);
    this.#positions = new Array(batch).fill(0);
    this.#history = Array.from({ length: batch }, () => new History());
  }

  #place(states, position) {
    if (!isWhole(position)) throw new T2RError("snapshot", "a position of at least 0", shown(position), "correct it");
    const { batch, length } = checkStates(this.signature, states);
    requireBatch(this.signature, batch, this.#options.maxStateBytes);
    const counted = states.get("position");
    const positions = counted ? [...new Int32Array(counted.bytes.slice().buffer)] : new Array(batch).fill(length || position);
    if (positions.some((one) => one < 0)) {
      throw new T2RError("snapshot", "positions of at least 0", "a negative one", "take the states from a decoder or a snapshot");
    }
    this.#states.set(states);
    this.#positions = positions;
    this.#history = Array.from({ length: batch }, () => new History());
  }

  /** Parts as pairs of a decoder and a row, checked. @returns {[Decoder, number][]} */
  #rowsOf(parts) {
    if (!Array.isArray(parts)) throw batch("decoders and rows of each", shown(parts));
    const { signature } = this, { maxStateBytes: most } = this.#options, found = /** @type {[Decoder, number][]} */ ([]);
    requireBatch({ ...signature, batch: null }, parts.length, most); // bounds the length of the list
    for (const part of parts) {
      if (!(Array.isArray(part) && part[0] instanceof Decoder)) throw batch("a decoder and its rows in each part", shown(part));
      const [decoder, rows] = part;
      decoder.#graphs.requireOpen();
      if (decoder.#graphs.step !== this.#graphs.step) throw batch("decoders of the same sessions", "another", "fork one");
      if (!isList(rows)) throw batch("rows: an array of numbers", shown(rows));
      requireBatch({ ...signature, batch: null }, found.length + rows.length, most);
      for (const row of Array.from(rows)) {
        if (!isWhole(row, 0, decoder.batch - 1)) throw batch(`rows in 0 … ${decoder.batch - 1}`, shown(row));
        found.push([decoder, row]);
      }
    }
    requireBatch(signature, found.length, most);
    return found;
  }

  /** @returns {import("./ahead.js").Runs} */
  #runs(signal) {
    const { maxPositions: most, pastEnd: end } = this.signature, graph = this.#graphs.opened("draft_check");
    return {
      read: (tokens, wanted) => this.#read([tokens], wanted, signal),
      check: async (tokens, keep, wanted) => {
        if (signal) await checkpoint(signal);
        return this.#states.run(graph, [tokens], wanted, keep);
      },
      checked: (tokens) => this.#passed([tokens]),
      uncheck: () => this.#states.uncheck(),
      room: () => (most !== null && end === "refuse" ? most - this.position : Infinity),
    };
  }

  #checked(prompt, maxTokens, options) {
    requireReadsTokens(this.signature);
    return requestOf(this, new Sampler(options, this.signature.generation), prompt, maxTokens);
  }

  /** Record that these rows have been read. */
  #passed(rows) {
    rows.forEach((row, n) => {
      this.#positions[n] += row.length;
      if (this.signature.inputSize === null) this.#history[n].add(row); // penalties apply to tokens only
    });
  }

  /** Read rows of tokens. If a run fails, or `signal` ends the call between two, the effects of earlier runs remain. */
  async #read(rows, wanted, signal = null) {
    const length = rows[0].length, prefill = this.#graphs.opened("prefill"), whole = prefill !== null && length > 1;
    const graph = whole ? prefill : this.#graphs.step, piece = whole ? Math.max(1, Math.floor(ROWS / rows.length)) : 1;
    let found;
    for (let at = 0; at < length; ) {
      if (signal) await checkpoint(signal);
      const many = Math.min(piece, length - at);
      const part = rows.map((row) => row.slice(at, at + many));
      const last = at + many >= length;
      found = await this.#states.run(graph, part, last ? wanted : null);
      this.#passed(part);
      at += many;
    }
    return found;
  }
}

function refuseTranslator({ sourceStates: sources }) {
  if (sources) throw new T2RError("graph", "the graph of a decoder alone", "a translator's", "open it as a Translator");
}

function batch(expected, received, what = "pass as many as the decoder has, or reset it") {
  return new T2RError("batch", expected, received, what);
}
