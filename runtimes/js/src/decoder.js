/** A step graph as a decoder: tokens in, logits out, and the states between them kept where nobody can forget them. */

import { isList, numbersOf, openOptions, vectorsOf, watchersOf } from "./arguments.js";
import { T2RError, isWhole, shown } from "./errors.js";
import { collected, requestOf, tokensOf } from "./generate.js";
import { Graphs } from "./graphs.js";
import { History } from "./history.js";
import { generationFeeds } from "./interface.js";
import { Sampler } from "./sampler.js";
import { readFile } from "./session.js";
import { checkStates, readSnapshot, writeSnapshot } from "./snapshot.js";
import { requireBatch, requireReadsTokens, requireRoom, requireTokens } from "./signature.js";
import { States } from "./states.js";
import { Tokenizer } from "./tokenizer.js";

const ROWS = 512; // tokens in one run: enough for a matrix product to be at its fastest, and a bound on its memory

export class Decoder {
  #graphs;
  #states;
  #positions = [0];
  #history = [new History()];
  #options;

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

  /** What the graph's metadata says. @returns {import("./types.js").Signature} */
  get signature() {
    return this.#graphs.step.signature;
  }

  /** Where it runs: cpu, wasm or webgpu. @returns {string} */
  get provider() {
    return this.#graphs.step.provider;
  }

  /** Whether `generate` is one run of a generation graph where nobody looks at each token. @returns {boolean} */
  get hasGenerationGraph() {
    return this.#options.generation !== false && this.#graphs.has("generate");
  }

  /** Number of sequences decoded side by side. */
  get batch() {
    return this.#positions.length;
  }

  /** Number of tokens read since the start, by the furthest sequence. */
  get position() {
    return Math.max(...this.#positions);
  }

  /** Bytes of all states now. @returns {number} */
  get stateBytes() {
    return this.#states.bytes;
  }

  /** The tokenizer in the graph. @throws {T2RError} tokenizer: there is none, or it has a part that is not known here */
  tokenizer() {
    return Tokenizer.of(this.signature);
  }

  /**
   * Go back to the start of a text, with so many sequences from now on.
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
   * Read one token of each sequence: a number, or (B,). The logits of what comes next, (B · vocabulary).
   * @param {number | import("./types.js").Tokens} ids
   * @returns {Promise<Float32Array>}
   * @throws {T2RError} token, batch, position
   */
  async step(ids) {
    return this.#graphs.alone(() => this.#read(this.#column(ids), "logits"));
  }

  /**
   * Read a prompt (T,), or (B, T). The logits after its last token.
   * @param {import("./types.js").Tokens | readonly import("./types.js").Tokens[]} ids
   * @returns {Promise<Float32Array>}
   * @throws {T2RError} token, batch, position
   */
  async prefill(ids) {
    return this.#graphs.alone(() => this.#read(this.#rows(ids), "logits"));
  }

  /**
   * Of a graph that reads vectors: as `prefill`, of vectors (B · T · inputSize), row after row.
   * @param {Float32Array | Float64Array | readonly number[]} vectors
   * @returns {Promise<Float32Array>}
   * @throws {T2RError} token, batch, position
   */
  async readVectors(vectors) {
    return this.#graphs.alone(() => this.#read(this.#vectors(vectors), "logits"));
  }

  /**
   * Read ids as `prefill` does; the largest logits and their tokens, that the graph itself chose: (B · topK) each.
   * @param {import("./types.js").Tokens | readonly import("./types.js").Tokens[]} ids
   * @returns {Promise<{ logits: Float32Array, tokens: Int32Array }>}
   * @throws {T2RError} token, batch, position; graph: one that does not choose them
   */
  async topK(ids) {
    return this.#graphs.alone(() => {
      if (this.signature.topK === null) {
        throw new T2RError("graph", "a graph that chooses the largest logits", "one without", "export with --top-k");
      }
      return this.#read(this.#rows(ids), "top");
    });
  }

  /** Copies of all states, by name. @returns {Promise<Map<string, import("./types.js").State>>} */
  async state() {
    return this.#graphs.alone(() => this.#states.fetch());
  }

  /**
   * Go on from states of the same graph, after so many tokens.
   * @param {Map<string, import("./types.js").State> | Record<string, import("./types.js").State>} states
   * @param {number} [position]
   * @returns {Promise<void>}
   * @throws {T2RError} snapshot
   */
  async setState(states, position = 0) {
    return this.#graphs.alone(() => this.#place(givenStates(states), position));
  }

  /**
   * Another decoder of the same sessions, at the start of a text, to be closed by itself. One call at a time is in all of them.
   * @returns {Decoder}
   * @throws {T2RError} state: this one is closed
   */
  fork() {
    return new Decoder(this.#graphs.share(), this.#options);
  }

  /**
   * The rows of the states in this order: dropped, repeated or moved.
   * @param {readonly number[] | Int32Array | Uint32Array} rows
   * @returns {Promise<void>}
   * @throws {T2RError} batch
   */
  async reorder(rows) {
    return this.take([[this, rows]]);
  }

  /**
   * Become rows of decoders of the same sessions (`fork`), of this one too: those of each part behind those of the one before.
   * On WebGPU they are copied there.
   * @param {readonly (readonly [Decoder, readonly number[] | Int32Array | Uint32Array])[]} parts
   * @returns {Promise<void>}
   * @throws {T2RError} batch: no such rows, no such decoders, or caches of different lengths; state: a closed one
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
   * The states as a snapshot's bytes, which every runtime reads; `token` is one that was chosen and not read.
   * @param {number | null} [token]
   * @returns {Promise<Uint8Array>}
   * @throws {T2RError} snapshot
   */
  async saveState(token = null) {
    return this.#graphs.alone(async () => writeSnapshot(this.signature, await this.#states.fetch(), this.position, token));
  }

  /**
   * Go on from a snapshot: its bytes, or where it is. Gives its token, or null.
   * @param {Uint8Array | string | URL} source
   * @returns {Promise<number | null>}
   * @throws {T2RError} file, snapshot
   */
  async loadState(source) {
    return this.#graphs.alone(async () => {
      const bytes = source instanceof Uint8Array ? source : await readFile(source);
      const { states, position, token } = readSnapshot(bytes, this.signature);
      this.#place(states, position);
      return token;
    });
  }

  /**
   * The tokens that follow a prompt, as they come; a loop may break off. The last has been chosen and not read. Options are those of
   * contract/generation.md.
   * @param {import("./types.js").Tokens} prompt
   * @param {number} maxTokens
   * @param {import("./types.js").SamplingOptions} [options]
   * @returns {AsyncGenerator<number, void, void>}
   * @throws {T2RError} sampling, batch, token, position: nothing has been read then
   */
  async *stream(prompt, maxTokens, options = {}) {
    this.#graphs.enter();
    try {
      const request = this.#checked(prompt, maxTokens, options);
      yield* tokensOf(request, (rows, wanted) => this.#read(rows, wanted), () => this.#history[0].latest);
    } finally {
      this.#graphs.leave();
    }
  }

  /**
   * All of them. The last has been chosen and not read: the next call begins with it. Unwatched, a generation
   * graph, opened the first time, does all in one run; the tokens are the same.
   * @param {import("./types.js").Tokens} prompt
   * @param {number} maxTokens
   * @param {import("./types.js").SamplingOptions} [options]
   * @param {import("./types.js").TextWatchers} [watchers]
   * @returns {Promise<number[]>}
   */
  async generate(prompt, maxTokens, options = {}, watchers = {}) {
    const { watch, signal } = watchersOf(watchers, "onToken");
    if (!watch && !signal && this.hasGenerationGraph) {
      return this.#graphs.alone(() => this.#generated(this.#checked(prompt, maxTokens, options)));
    }
    return collected(this.stream(prompt, maxTokens, options), { watch, signal });
  }

  /** Give back what ONNX Runtime holds; whatever is asked of the decoder afterwards is an error of the kind state. */
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
    if (Math.min(...positions) < 0) {
      throw new T2RError("snapshot", "positions of at least 0", "a negative one", "take the states from a decoder or a snapshot");
    }
    this.#states.set(states);
    this.#positions = positions;
    this.#history = Array.from({ length: batch }, () => new History());
  }

  /** Parts as decoders and a row of each. @returns {[Decoder, number][]} */
  #rowsOf(parts) {
    if (!Array.isArray(parts)) throw batch("decoders and rows of each", shown(parts));
    const { signature } = this, { maxStateBytes: most } = this.#options, found = /** @type {[Decoder, number][]} */ ([]);
    requireBatch({ ...signature, batch: null }, parts.length, most); // so that no list is longer than rows may be
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

  /** Vectors as rows of them, checked. */
  #vectors(given) {
    const size = this.signature.inputSize, rows = this.batch;
    if (size === null) throw new T2RError("token", "token ids", "vectors", "give token ids, or export with inputs_embeds");
    const whole = vectorsOf(given), length = whole.length / (rows * size);
    if (!isWhole(length, 1)) throw batch(`vectors of ${size} elements, as many of each of ${rows} sequences`, `${whole.length} numbers`);
    requireRoom(this.signature, this.position, length);
    const at = (row, t) => whole.subarray((row * length + t) * size, (row * length + t + 1) * size);
    return Array.from({ length: rows }, (_, row) => Array.from({ length }, (_, t) => at(row, t)));
  }

  /** A token of each sequence, as rows, checked. */
  #column(ids) {
    requireReadsTokens(this.signature);
    if (isList(ids)) this.#requireRows(ids.length);
    const column = numbersOf(typeof ids === "number" ? [ids] : ids, "tokens");
    this.#requireRows(column.length);
    return this.#fitting(column.map((id) => [id]));
  }

  /** Tokens (T,) or (B, T) as rows of one length, checked. */
  #rows(ids) {
    requireReadsTokens(this.signature);
    const many = Array.isArray(ids) && isList(ids[0]);
    if (isList(ids)) this.#requireRows(many ? ids.length : 1);
    const rows = Array.from(many ? ids : [ids], (row) => numbersOf(row, "tokens"));
    if (rows.some((row) => row.length !== rows[0].length)) throw batch("rows of one length", rows.map((row) => row.length).join(", "));
    return this.#fitting(rows);
  }

  #fitting(rows) {
    for (const row of rows) requireTokens(this.signature, row, "tokens");
    requireRoom(this.signature, this.position, rows[0].length);
    return rows;
  }

  #requireRows(count) {
    if (count !== this.batch) throw batch(`tokens of ${this.batch} sequences`, `${count}`);
  }

  #checked(prompt, maxTokens, options) {
    requireReadsTokens(this.signature);
    return requestOf(this, new Sampler(options, this.signature.generation), prompt, maxTokens);
  }

  /** Read a prompt, and generate in one run, as `stream` does in many. */
  async #generated({ ids, sampler, stop, maxTokens }) {
    const graph = await this.#graphs.other("generate"), newest = ids.at(-1);
    if (ids.length > 1) await this.#read([ids.slice(0, -1)], null);
    const occurred = sampler.looksBack ? this.#history[0].latest : [];
    const feeds = generationFeeds(graph.ort, newest, sampler, maxTokens, stop, occurred);
    const tokens = await this.#states.generate(graph, feeds);
    this.#passed([[newest, ...tokens].slice(0, -1)]);
    if (tokens.at(-1) < 0) {
      throw new T2RError("graph", "finite logits", `NaN or infinity after ${this.position} tokens`, "check the graph with t2r verify");
    }
    return tokens;
  }

  /** These rows have been read. */
  #passed(rows) {
    rows.forEach((row, n) => {
      this.#positions[n] += row.length;
      if (this.signature.inputSize === null) this.#history[n].add(row); // penalties look back on tokens alone
    });
  }

  /** Read rows of tokens. A run that fails leaves what those before it have read. */
  async #read(rows, wanted) {
    const length = rows[0].length, prefill = this.#graphs.opened("prefill"), whole = prefill !== null && length > 1;
    const graph = whole ? prefill : this.#graphs.step, piece = whole ? Math.max(1, Math.floor(ROWS / rows.length)) : 1;
    let found;
    for (let at = 0; at < length; ) {
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

/** States by name, of which each has what a state has. */
function givenStates(states) {
  const isObject = (value) => typeof value === "object" && value !== null;
  const entries = states instanceof Map ? [...states] : isObject(states) && !isList(states) ? Object.entries(states) : null;
  const expected = "states by name, each {dtype, dims, bytes}", what = "take them from `state`";
  if (entries === null) throw new T2RError("snapshot", expected, shown(states), what);
  const wrong = entries.find(([name, state]) => typeof name !== "string" || !isObject(state) || !Array.isArray(state.dims) || !(state.bytes instanceof Uint8Array));
  if (wrong) throw new T2RError("snapshot", expected, `${shown(wrong[1])} as ${shown(wrong[0])}`, what);
  return new Map(entries);
}

function batch(expected, received, what = "give as many as the decoder has, or reset it") {
  return new T2RError("batch", expected, received, what);
}
