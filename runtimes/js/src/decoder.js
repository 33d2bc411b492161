/** A step graph as a decoder: tokens in, logits out, and the states between them kept where nobody can forget them. */

import { T2RError, isWhole, printable } from "./errors.js";
import { collected, requestOf, tokensOf } from "./generate.js";
import { Graphs } from "./graphs.js";
import { History } from "./history.js";
import { generationFeeds } from "./interface.js";
import { Sampler } from "./sampler.js";
import { readFile } from "./session.js";
import { checkStates, readSnapshot, writeSnapshot } from "./snapshot.js";
import { requireBatch, requireRoom, requireTokens } from "./signature.js";
import { States } from "./states.js";
import { Tokenizer } from "./tokenizer.js";

const ROWS = 512; // tokens in one run: enough for a matrix product to be at its fastest, and a bound on its memory

export class Decoder {
  #graphs;
  #states;
  #positions = [0];
  #history = [new History()];
  #options;

  constructor(graphs, options) {
    this.#graphs = graphs;
    this.#options = options;
    this.#states = new States(graphs.step);
    this.#start(this.signature.batch ?? 1);
  }

  /**
   * Open a step graph, at the start of a text.
   * @param {string | URL | {graph: string, files: Record<string, Uint8Array>}} source
   * @param {import("./index.js").OpenOptions} options
   * @throws {T2RError} file, graph, version, weights, metadata, interface, provider
   */
  static async open(source, options = {}) {
    const roles = options.prefill === false ? [] : ["prefill"];
    return Graphs.open("decoder", source, options, roles, refuseTranslator, (graphs) => new Decoder(graphs, options));
  }

  /** What the graph's metadata says. */
  get signature() {
    return this.#graphs.step.signature;
  }

  /** Where it runs: cpu, wasm or webgpu. */
  get provider() {
    return this.#graphs.step.provider;
  }

  /** Whether `generate` is one run of a generation graph where nobody looks at each token. */
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

  /** Bytes of all states now. */
  get stateBytes() {
    return this.#states.bytes;
  }

  /** The tokenizer in the graph. @throws {T2RError} tokenizer: there is none, or it has a part that is not known here */
  tokenizer() {
    return Tokenizer.of(this.signature);
  }

  /** Go back to the start of a text, with so many sequences from now on. @throws {T2RError} batch */
  async reset(batch = this.batch) {
    return this.#graphs.alone(() => {
      requireBatch(this.signature, batch, this.#options.maxStateBytes);
      this.#start(batch);
    });
  }

  /** Read one token of each sequence: a number, or (B,). The logits of what comes next, float32 (B · vocabulary). */
  async step(ids) {
    return this.#graphs.alone(() => this.#read(this.#rows(typeof ids === "number" ? [ids] : ids, true), "logits"));
  }

  /** Read a prompt (T,), or (B, T). The logits after its last token. @throws {T2RError} token, batch, position */
  async prefill(ids) {
    return this.#graphs.alone(() => this.#read(this.#rows(ids, false), "logits"));
  }

  /** Read ids as `prefill` does; the largest logits and their tokens, that the graph itself chose: (B · top_k) each. */
  async topK(ids) {
    return this.#graphs.alone(() => {
      if (this.signature.top_k === null) {
        throw new T2RError("interface", "a graph that chooses the largest logits", "one without", "export with --top-k");
      }
      return this.#read(this.#rows(ids, false), "top");
    });
  }

  /** Copies of all states: name → {dtype, dims, bytes}. */
  async state() {
    return this.#graphs.alone(() => this.#states.fetch());
  }

  /** Go on from states of the same graph, after so many tokens. @throws {T2RError} snapshot */
  async setState(states, position = 0) {
    return this.#graphs.alone(() => this.#place(new Map(states instanceof Map ? states : Object.entries(states)), position));
  }

  /** The rows of the states in this order: dropped, repeated or moved. @throws {T2RError} batch */
  async reorder(rows) {
    return this.#graphs.alone(async () => {
      const chosen = Array.from(rows ?? []);
      requireBatch(this.signature, chosen.length, this.#options.maxStateBytes);
      const wrong = chosen.find((row) => !isWhole(row, 0, this.batch - 1));
      if (wrong !== undefined) throw batch(`rows in 0 … ${this.batch - 1}`, printable(wrong, 40));
      await this.#states.reorder(chosen);
      this.#positions = chosen.map((row) => this.#positions[row]);
      this.#history = chosen.map((row) => new History(this.#history[row].latest));
    });
  }

  /** The states as a snapshot's bytes; `token` is one that was chosen and not read. @throws {T2RError} snapshot */
  async saveState(token = null) {
    return this.#graphs.alone(async () => writeSnapshot(this.signature, await this.#states.fetch(), this.position, token));
  }

  /** Go on from a snapshot: its bytes, or where it is. Gives its token, or null. @throws {T2RError} file, snapshot */
  async loadState(source) {
    return this.#graphs.alone(async () => {
      const bytes = source instanceof Uint8Array ? source : await readFile(source);
      const { states, position, token } = readSnapshot(bytes, this.signature);
      this.#place(states, position);
      return token;
    });
  }

  /**
   * The tokens that follow a prompt, as they come; a loop may break off. Options are those of CONTRACT.md, "Generate".
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
   * All of them. The last has been chosen and not read: the next call begins with it. Without a callback and a signal a
   * generation graph, opened the first time, does all in one run; the tokens are the same.
   * @param callback called with each token; false ends the text
   * @param {AbortSignal} signal ends the text within a token
   */
  async generate(prompt, maxTokens, options = {}, callback = null, signal = null) {
    if (!callback && !signal && this.hasGenerationGraph) {
      return this.#graphs.alone(() => this.#generated(this.#checked(prompt, maxTokens, options)));
    }
    return collected(this.stream(prompt, maxTokens, options), callback, signal);
  }

  /** Give back what ONNX Runtime holds; whatever is asked of the decoder afterwards is an error of the kind graph. */
  async close() {
    await this.#graphs.close(() => this.#states.dispose());
  }

  #start(batch) {
    this.#states.reset(batch);
    this.#positions = new Array(batch).fill(0);
    this.#history = Array.from({ length: batch }, () => new History());
  }

  #place(states, position) {
    if (!isWhole(position)) throw new T2RError("snapshot", "a position of at least 0", printable(position, 40), "correct it");
    const { batch, length } = checkStates(this.signature, states);
    requireBatch(this.signature, batch, this.#options.maxStateBytes);
    const counted = states.get("position");
    const positions = counted ? [...new Int32Array(counted.bytes.slice().buffer)] : new Array(batch).fill(length || position);
    if (Math.min(...positions) < 0) {
      throw new T2RError("snapshot", "positions of at least 0", "a negative one", "take the states from a decoder or a snapshot");
    }
    this.#states.set(states, batch);
    this.#positions = positions;
    this.#history = Array.from({ length: batch }, () => new History());
  }

  /** Tokens as B rows of one length, checked. */
  #rows(ids, single) {
    const list = Array.from(ids ?? [], (row) => (typeof row === "object" && row !== null ? Array.from(row, Number) : row));
    const rows = single ? list.map((id) => [id]) : Array.isArray(list[0]) ? list : [list];
    if (rows.length !== this.batch) throw batch(`tokens of ${this.batch} sequences`, `${rows.length}`);
    if (rows.some((row) => row.length !== rows[0].length)) throw batch("rows of one length", rows.map((row) => row.length).join(", "));
    requireTokens(this.signature, rows.flat(), "tokens");
    requireRoom(this.signature, this.position, rows[0].length);
    return rows;
  }

  #checked(prompt, maxTokens, options) {
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
      throw new T2RError("graph", "finite logits", `others after ${this.position} tokens`, "check the graph with t2r verify");
    }
    return tokens;
  }

  /** These rows have been read. */
  #passed(rows) {
    rows.forEach((row, n) => {
      this.#positions[n] += row.length;
      this.#history[n].add(row);
    });
  }

  /** Read rows of tokens; the states are as before if that fails in the first run. */
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

function refuseTranslator({ source_states: sources }) {
  if (sources) throw new T2RError("graph", "the graph of a decoder alone", "a translator's", "open it as a Translator");
}

function batch(expected, received) {
  return new T2RError("batch", expected, received, "give as many as the decoder has, or reset it");
}
