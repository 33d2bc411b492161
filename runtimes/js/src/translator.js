/** A translator's graphs: a source is encoded once, and its translation is searched token by token. */

import { checkpoint } from "./aborts.js";
import { numbersOf, openOptions, watchersOf } from "./arguments.js";
import { Copying } from "./copies.js";
import { T2RError, isWhole, printable, shown } from "./errors.js";
import { collected, requestOf, tokensOf } from "./generate.js";
import { Graphs } from "./graphs.js";
import { History } from "./history.js";
import { beamOf } from "./options.js";
import { Sampler } from "./sampler.js";
import { Search } from "./search.js";
import { dimensions, greatest, product, requireBatch } from "./signature.js";
import { checkStates } from "./snapshot.js";
import { States, initialState } from "./states.js";
import { Tokenizer } from "./tokenizer.js";

const GREEDY = { temperature: 0 };
const MAX_SOURCE = 4096; // tokens of a source: the scores of softmax attention grow with their square

export class Translator {
  #graphs;
  #states;
  #maxStateBytes;
  #maxSource;
  /** @type {Copying | null | undefined} */
  #copying;

  /** @private use Translator.open */
  constructor(graphs, maxStateBytes, maxSource = MAX_SOURCE) {
    this.#graphs = graphs;
    this.#maxStateBytes = maxStateBytes;
    this.#maxSource = maxSource;
    this.#states = new States(graphs.step);
  }

  /**
   * Open a translator's step graph and its encoder.
   * @param {import("./types.js").Source} source
   * @param {import("./types.js").OpenOptions} options
   * @returns {Promise<Translator>}
   * @throws {T2RError} as Decoder.open
   */
  static async open(source, options = {}) {
    const checked = openOptions(options), made = (graphs) => new Translator(graphs, checked.maxStateBytes, checked.maxSource);
    return Graphs.open("translator", source, checked, ["encoder"], requireTranslator, made);
  }

  /** The step graph's metadata. @returns {import("./types.js").Signature} */
  get signature() {
    return this.#graphs.step.signature;
  }

  /** Execution provider. @returns {string} */
  get provider() {
    return this.#graphs.step.provider;
  }

  /** The translations' tokenizer. */
  tokenizer() {
    return Tokenizer.of(this.signature);
  }

  /** The sources' tokenizer; the translations' if there is no separate one. */
  sourceTokenizer() {
    const own = this.signature.sourceTokenizer;
    return own === null ? this.tokenizer() : new Tokenizer(own);
  }

  /**
   * Read sources, tokens of each. Returns all states that their translations start from.
   * @param {readonly import("./types.js").Tokens[]} sources
   * @param {import("./types.js").CallOptions} [call]
   * @returns {Promise<Map<string, import("./types.js").State>>}
   * @throws {T2RError} token, position, batch
   */
  async encode(sources, call = {}) {
    const { signal } = watchersOf(call);
    return this.#graphs.alone(() => this.#encoded(sources, signal));
  }

  /**
   * One translation, greedy or sampled, as Decoder.stream: no token is forced, and the start tokens are not yielded. Of
   * the graph's options only penalties apply. Options are those of
   * contract/generation.md.
   * @param {import("./types.js").Tokens} source
   * @param {number} maxTokens
   * @param {import("./types.js").SamplingOptions} [options]
   * @param {import("./types.js").CallOptions} [call]
   * @returns {AsyncGenerator<number, void, void>}
   * @throws {T2RError} sampling, token, position, batch
   */
  async *stream(source, maxTokens, options = GREEDY, call = {}) {
    const { signal } = watchersOf(call);
    this.#graphs.enter();
    try {
      const sampler = new Sampler(options, this.signature.generation), history = new History();
      const states = await this.#encoded([source], signal);
      const request = requestOf({ signature: this.signature, batch: 1, position: 0 }, sampler, this.signature.startTokens, maxTokens);
      this.#states.set(states);
      const read = async ([row], wanted) => {
        if (signal) await checkpoint(signal);
        history.add(row);
        const newest = row.at(-1);
        for (const token of row.slice(0, -1)) await this.#states.run(this.#graphs.step, [[token]], null);
        return this.#states.run(this.#graphs.step, [[newest]], wanted);
      };
      yield* tokensOf(request, read, () => history.latest);
    } finally {
      this.#graphs.leave();
    }
  }

  /**
   * All tokens of `stream`.
   * @param {import("./types.js").Tokens} source
   * @param {number} maxTokens
   * @param {import("./types.js").SamplingOptions} [options]
   * @param {import("./types.js").TextWatchers} [watchers]
   * @returns {Promise<number[]>}
   */
  async generate(source, maxTokens, options = GREEDY, watchers = {}) {
    const found = watchersOf(watchers, "onToken");
    return collected(this.stream(source, maxTokens, options, { signal: found.signal }), found);
  }

  /**
   * The n best translations of a source, best first.
   * @param {import("./types.js").Tokens} source
   * @param {import("./types.js").BeamOptions} [beam]
   * @param {import("./types.js").SearchWatchers} [watchers]
   * @returns {Promise<import("./types.js").Translation[]>}
   * @throws {T2RError} token, position, sampling
   */
  async translate(source, beam = {}, watchers = {}) {
    const { watch, signal } = watchersOf(watchers, "onStep");
    return this.#graphs.alone(async () => {
      const { copy } = beamOf(beam, this.signature.generation), ids = this.#checked(source);
      const search = new Search(beam, this.signature, copy ? this.#copies(ids) : null);
      requireBatch(this.signature, search.rules.width, this.#maxStateBytes, ids.length);
      this.#states.set(await this.#encoded([ids], signal));
      const { step } = this.#graphs;
      let found;
      for (const token of this.signature.startTokens) found = await this.#states.run(step, [[token]], search.wanted);
      for (let before = 1; ; ) {
        const rows = search.advance(found);
        if (rows === null || (watch && (await watch(search.newest)) === false)) return search.translations;
        if (signal) await checkpoint(signal);
        if (rows.length !== before || rows.some((row, n) => row !== n)) await this.#states.take(rows.map((row) => [this.#states, row]));
        before = rows.length;
        found = await this.#states.run(step, search.newest.map((token) => [token]), search.wanted);
      }
    });
  }

  async close() {
    await this.#graphs.close(() => this.#states.dispose());
  }

  /** What the translation of a source copies. */
  #copies(ids) {
    if (this.#copying === undefined) this.#copying = Copying.of(this.signature);
    return this.#copying?.of(ids) ?? null;
  }

  async #encoded(sources, signal) {
    const { signature } = this;
    if (!Array.isArray(sources)) throw new T2RError("token", "an array of sources", shown(sources), "pass the tokens of each");
    if (!sources.length) throw new T2RError("token", "at least one source", "none", "pass some");
    const rows = [];
    for (const source of sources) rows.push(this.#checked(source)); // stops at the first hole
    const longest = greatest(rows.map((row) => row.length)), length = signature.sourceLength ?? longest;
    requireBatch(signature, rows.length, this.#maxStateBytes, longest);
    const size = signature.batch === null ? Math.max(1, Math.floor((this.#maxSource / length) ** 2)) : rows.length, parts = [];
    for (let first = 0; first < rows.length; first += size) {
      if (signal) await checkpoint(signal);
      parts.push(await this.#portion(rows.slice(first, first + size), length));
    }
    const states = new Map();
    for (const spec of signature.allStates) {
      const found = parts.map((part) => part.get(spec.name));
      states.set(spec.name, found[0] ? joined(found) : initialState(spec, dimensions(spec, rows.length)));
    }
    checkStates(signature, states);
    return states;
  }

  /** Encode some sources, padded to a length. Returns the states that the encoder outputs. */
  async #portion(rows, length) {
    const ids = new BigInt64Array(rows.length * length);
    rows.forEach((row, n) => ids.set(row.map(BigInt), n * length));
    const { ort, session } = this.#graphs.opened("encoder");
    const lengths = BigInt64Array.from(rows, (row) => BigInt(row.length));
    const feeds = {
      source_ids: new ort.Tensor("int64", ids, [rows.length, length]),
      source_lengths: new ort.Tensor("int64", lengths, [rows.length]),
    };
    const found = await ran(session, feeds, "an encoder graph"), states = new Map();
    for (const spec of this.signature.allStates) {
      const tensor = found[spec.constant ? spec.name : `present_${spec.name}`];
      if (tensor) states.set(spec.name, await copied(tensor));
    }
    return states;
  }

  #checked(source) {
    const ids = numbersOf(source, "a source of tokens"), most = this.signature.sourceVocabSize - 1;
    const wrong = ids.findIndex((id) => !isWhole(id, 0, most));
    if (wrong >= 0 || !ids.length) {
      throw new T2RError("token", `tokens of a source in 0 … ${most}`, wrong < 0 ? "none" : shown(ids[wrong]), "use sourceTokenizer()");
    }
    const longest = Math.min(this.#maxSource, this.signature.maxSource ?? Infinity);
    if (ids.length > longest) throw new T2RError("position", `a source of at most ${longest} tokens`, `${ids.length}`, "translate a shorter one");
    return ids;
  }
}

function requireTranslator({ sourceStates: sources, graphs }) {
  if (!sources || graphs.encoder === undefined) {
    throw new T2RError("graph", "a translator's step graph, which names its encoder", "another", "open it as a Decoder");
  }
}

async function ran(session, feeds, what) {
  try {
    return await session.run(feeds);
  } catch (error) {
    throw new T2RError("runtime", `${what} that runs`, printable(error), "check it with t2r verify");
  }
}

async function copied(tensor) {
  const data = await tensor.getData(), dims = [...tensor.dims];
  const bytes = new Uint8Array(data.buffer, data.byteOffset, data.byteLength).slice();
  tensor.dispose?.();
  return { dtype: tensor.type, dims, bytes: product(dims) ? bytes : new Uint8Array() };
}

/** The rows of states one after another; they are the first dimension. */
function joined(parts) {
  if (parts.length === 1) return parts[0];
  const [{ dtype, dims }] = parts, bytes = new Uint8Array(parts.reduce((sum, part) => sum + part.bytes.length, 0));
  let at = 0;
  for (const part of parts) {
    bytes.set(part.bytes, at);
    at += part.bytes.length;
  }
  return { dtype, dims: [parts.reduce((sum, part) => sum + part.dims[0], 0), ...dims.slice(1)], bytes };
}
