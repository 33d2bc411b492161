/** A decoder in a worker: the calling thread stays free during generation. */

import { connect } from "#platform";

import { numbersOf, watchersOf } from "./arguments.js";
import { T2RError, shown } from "./errors.js";
import { Tokenizer } from "./tokenizer.js";

/** As Decoder, without `fork` and `take`: each call runs in the decoder's own worker, and results are copies. */
export class WorkerDecoder {
  #worker;
  #waiting = new Map(); // call → its promise's functions, and handlers of earlier messages
  #count = 0;
  #now = { batch: 1, position: 0, stateBytes: 0 };
  #opened = null;
  #broken = null; // the error of all further calls

  /** @private use WorkerDecoder.open */
  constructor(worker) {
    const lost = (error) => this.#break(new T2RError("runtime", "a worker that runs", String(error?.message ?? error), "look at its script"));
    this.#worker = connect(worker, (message) => this.#hear(message), lost);
  }

  /**
   * Open a step graph in a new worker.
   * @param {import("./types.js").Source} source
   * @param {import("./types.js").WorkerOptions} options
   * @returns {Promise<WorkerDecoder>}
   * @throws {T2RError} as Decoder.open; runtime: a worker that does not start
   */
  static async open(source, options = {}) {
    if (typeof options !== "object" || options === null) throw new T2RError("provider", "options as an object", shown(options), "correct it");
    const { worker, ort, onProgress, signal: ends, ...more } = options, { signal } = watchersOf({ signal: ends });
    if (ort !== undefined && typeof ort !== "string" && !(ort instanceof URL)) {
      throw new T2RError("provider", "ort: the address of a module", shown(ort), "a worker imports its own");
    }
    const made = new WorkerDecoder(worker), abort = () => made.#end(signal?.reason);
    signal?.addEventListener("abort", abort);
    try {
      const given = { ...more, ort: ort && absolute(ort), progress: onProgress !== undefined };
      made.#opened = await made.#ask("open", [placed(source), given], { progress: onProgress });
      return made;
    } catch (error) {
      made.#end(error);
      throw error;
    } finally {
      signal?.removeEventListener("abort", abort);
    }
  }

  /** The graph's metadata. @returns {import("./types.js").Signature} */
  get signature() {
    return this.#opened.signature;
  }

  /** Execution provider: cpu, wasm, webgpu or t2r. @returns {string} */
  get provider() {
    return this.#opened.provider;
  }

  /** Number of sequences decoded side by side. @returns {number} */
  get batch() {
    return this.#now.batch;
  }

  /** Number of tokens read since the start, by the furthest sequence, when the last call ended. @returns {number} */
  get position() {
    return this.#now.position;
  }

  /** Bytes of all states when the last call ended. @returns {number} */
  get stateBytes() {
    return this.#now.stateBytes;
  }

  /** The tokenizer in the graph, in this thread. @throws {T2RError} tokenizer */
  tokenizer() {
    return Tokenizer.of(this.signature);
  }

  /** As Decoder.reset. @param {number} [batch] @returns {Promise<void>} */
  async reset(batch) {
    return this.#ask("reset", [batch]);
  }

  /** As Decoder.adapt. @param {string | null | readonly (string | null)[]} names @returns {Promise<void>} */
  async adapt(names) {
    return this.#ask("adapt", [names]);
  }

  /**
   * As Decoder.draft.
   * @param {boolean} lookup
   * @param {import("./types.js").CallOptions} [call]
   * @returns {Promise<void>}
   */
  async draft(lookup, call = {}) {
    return this.#ask("draft", [lookup], watchersOf(call));
  }

  /** As Decoder.step. @param {number | import("./types.js").Tokens} ids @returns {Promise<Float32Array>} */
  async step(ids) {
    return this.#ask("step", [ids]);
  }

  /**
   * As Decoder.prefill.
   * @param {import("./types.js").Tokens | readonly import("./types.js").Tokens[]} ids
   * @param {import("./types.js").CallOptions} [call]
   * @returns {Promise<Float32Array>}
   */
  async prefill(ids, call = {}) {
    return this.#ask("prefill", [ids], watchersOf(call));
  }

  /**
   * As Decoder.readVectors.
   * @param {Float32Array | Float64Array | readonly number[]} vectors
   * @param {import("./types.js").CallOptions} [call]
   * @returns {Promise<Float32Array>}
   */
  async readVectors(vectors, call = {}) {
    return this.#ask("readVectors", [vectors], watchersOf(call));
  }

  /**
   * As Decoder.topK.
   * @param {import("./types.js").Tokens | readonly import("./types.js").Tokens[]} ids
   * @param {import("./types.js").CallOptions} [call]
   * @returns {Promise<{ logits: Float32Array, tokens: Int32Array }>}
   */
  async topK(ids, call = {}) {
    return this.#ask("topK", [ids], watchersOf(call));
  }

  /** As Decoder.state. @returns {Promise<Map<string, import("./types.js").State>>} */
  async state() {
    return this.#ask("state", []);
  }

  /**
   * As Decoder.setState.
   * @param {Map<string, import("./types.js").State> | Record<string, import("./types.js").State>} states
   * @param {number} [position]
   * @returns {Promise<void>}
   */
  async setState(states, position) {
    return this.#ask("setState", [states, position]);
  }

  /** As Decoder.reorder. @param {readonly number[] | Int32Array | Uint32Array} rows @returns {Promise<void>} */
  async reorder(rows) {
    return this.#ask("reorder", [rows]);
  }

  /** As Decoder.saveState. @param {number | null} [token] @returns {Promise<Uint8Array>} */
  async saveState(token) {
    return this.#ask("saveState", [token]);
  }

  /**
   * As Decoder.loadState.
   * @param {Uint8Array | string | URL} source
   * @param {import("./types.js").CallOptions} [call]
   * @returns {Promise<number | null>}
   */
  async loadState(source, call = {}) {
    return this.#ask("loadState", [source instanceof Uint8Array ? source : absolute(source)], watchersOf(call));
  }

  /**
   * As Decoder.stream: the worker waits at each token for the loop to ask for the next.
   * @param {import("./types.js").Tokens} prompt
   * @param {number} maxTokens
   * @param {import("./types.js").SamplingOptions} [options]
   * @param {import("./types.js").CallOptions} [call]
   * @returns {AsyncGenerator<number, void, void>}
   */
  async *stream(prompt, maxTokens, options = {}, call = {}) {
    const { signal } = watchersOf(call);
    let give, go = (_) => {}, next = new Promise((resolve) => (give = resolve));
    const onToken = (token) => new Promise((resolve) => {
      go = resolve;
      give({ token });
    });
    const done = this.generate(prompt, maxTokens, options, { onToken, signal }).then(() => give({}), (error) => give({ error }));
    try {
      for (;;) {
        const { token, error } = await next;
        if (error) throw error;
        if (token === undefined) return;
        next = new Promise((resolve) => (give = resolve));
        yield token;
        go(true);
      }
    } finally {
      go(false);
      await done;
    }
  }

  /**
   * As Decoder.generate. With watchers, the worker waits at each token for `onToken`, so a text ends at the same token.
   * @param {import("./types.js").Tokens} prompt
   * @param {number} maxTokens
   * @param {import("./types.js").SamplingOptions} [options]
   * @param {import("./types.js").TextWatchers} [watchers]
   * @returns {Promise<number[]>}
   */
  async generate(prompt, maxTokens, options = {}, watchers = {}) {
    const { watch, signal } = watchersOf(watchers, "onToken");
    let failed = /** @type {{ error: any } | null} */ (null);
    const token = async (id) => {
      try {
        return (await watch?.(id)) !== false;
      } catch (error) {
        failed = { error };
        return false;
      }
    };
    const args = [numbersOf(prompt, "a prompt of tokens"), maxTokens, options, watch !== null];
    const tokens = await this.#ask("generate", args, { token, signal });
    if (failed) throw failed.error;
    return tokens;
  }

  /** Release what ONNX Runtime holds, and end the worker. Idempotent. */
  async close() {
    if (this.#broken) return;
    await this.#ask("close", []);
    this.#end(new T2RError("state", "an open decoder", "one that is closed", "open the graph again"));
  }

  /**
   * Make a call in the worker.
   * @param {string} call
   * @param {any[]} args
   * @param {{ signal?: AbortSignal | null, token?: Function, progress?: Function }} [heard] what ends it, and what hears its messages
   */
  async #ask(call, args, { signal = null, ...heard } = {}) {
    if (this.#broken) throw this.#broken;
    const id = ++this.#count, abort = () => this.#worker.post({ id, abort: true });
    signal?.addEventListener("abort", abort);
    try {
      return await new Promise((resolve, reject) => {
        this.#waiting.set(id, { resolve, reject, aborted: () => reject(signal?.reason), ...heard });
        this.#worker.hold(true);
        try {
          this.#worker.post({ id, call, args, abortable: signal !== null });
        } catch (error) {
          this.#left(id);
          reject(new T2RError("argument", `what a worker can be given for ${call}`, String(error.message), "pass plain data"));
        }
      });
    } finally {
      signal?.removeEventListener("abort", abort);
    }
  }

  async #hear({ id, value, error, aborted, now, token, progress }) {
    const call = this.#waiting.get(id);
    if (!call) return;
    if (progress) call.progress(progress);
    else if (token !== undefined) this.#worker.post({ id, answer: await call.token(token) });
    else {
      this.#left(id);
      if (now) this.#now = now;
      if (aborted) call.aborted();
      else if (error) call.reject(remade(error));
      else call.resolve(value);
    }
  }

  #left(id) {
    this.#waiting.delete(id);
    if (!this.#waiting.size) this.#worker.hold(false);
  }

  /** Reject all calls, pending and later. */
  #break(error) {
    this.#broken ??= error;
    for (const { reject } of this.#waiting.values()) reject(this.#broken);
    this.#waiting.clear();
  }

  #end(error) {
    this.#break(error);
    this.#worker.end();
  }
}

/** A source with an absolute address: the worker's own address differs. */
function placed(source) {
  const named = source && typeof source === "object" && "files" in source;
  return named || (typeof source !== "string" && !(source instanceof URL)) ? source : absolute(source);
}

function absolute(source) {
  const base = globalThis.location?.href;
  return base ? new URL(String(source), base).href : String(source);
}

/** Rebuild an error from the worker. */
function remade({ kind, message, stack }) {
  const error = kind ? new T2RError(kind, "", "", "") : new Error();
  return Object.assign(error, { message, stack });
}
