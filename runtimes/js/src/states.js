/** The states of a graph between runs. Those of constant size have two buffers, which are swapped; on the GPU they stay there. */

import { T2RError, printable } from "./errors.js";
import { ARRAYS, bytesOf, gathered } from "./rows.js";
import { SIZES, dimensions, product } from "./signature.js";

const OUTPUTS = { logits: ["logits"], top: ["top_logits", "top_tokens"], largest: ["top_logits", "top_tokens", "log_sum"] };

/** @typedef {"logits" | "top" | "largest" | null} Wanted what is fetched beside the states */

export class States {
  #graph;
  #past = new Map(); // name → tensor
  #source = new Map(); // a translator's source states, which no step changes
  #spare = new Map(); // output tensors of states of constant size
  #before = new Map(); // the states before a run with `keep`, until the next run
  #slots; // per state: its name, its input, its output, and whether its size is constant

  constructor(graph) {
    this.#graph = graph;
    const slot = ({ name, shape }) => ({ name, past: `past_${name}`, present: `present_${name}`, constant: !shape.includes("T") });
    this.#slots = graph.signature.states.map(slot);
    // of ONNX Runtime's, only the binding of Node.js writes to preallocated outputs
    this.swaps = graph.provider === "cpu" || graph.provider === "t2r";
  }

  get bytes() {
    return [...this.#past.values(), ...this.#source.values()].reduce((all, { type, dims }) => all + SIZES[type] * product(dims), 0);
  }

  /** Set every state to its initial value. */
  reset(batch) {
    const fresh = this.#graph.signature.states.map((spec) => [spec.name, initialState(spec, dimensions(spec, batch))]);
    this.#replace(fresh.map(([name, state]) => [name, this.#made(state)]));
  }

  /** Replace the states by given ones, which fit. */
  set(states) {
    const made = ({ name }) => [name, this.#made(states.get(name))];
    const { states: chained, sourceStates: constant } = this.#graph.signature;
    this.#replace(chained.map(made));
    this.#source = new Map((constant ?? []).map(made));
  }

  /** Replace one state by one of the same form. */
  assign(name, state) {
    this.#forget();
    this.#past.get(name).dispose?.();
    this.#past.set(name, this.#made(state));
  }

  /** Copies of all states: name → {dtype, dims, bytes}. */
  async fetch() {
    const found = new Map();
    for (const { name } of this.#graph.signature.allStates) {
      const tensor = this.#tensorOf(name);
      found.set(name, { dtype: tensor.type, dims: [...tensor.dims], bytes: (await bytesOf(tensor)).slice() });
    }
    return found;
  }

  /**
   * Replace the states with rows of States of the same graph, including this one.
   * @param {[States, number][]} rows
   * @throws {T2RError} batch: caches, or sources, of different lengths; nothing has changed then
   */
  async take(rows) {
    const { states, allStates } = this.#graph.signature, parts = new Map(); // name → its tensors, and a row of each
    for (const { name } of allStates) parts.set(name, rows.map(([from, row]) => [from.#tensorOf(name), row]));
    for (const [name, [[first], ...others]] of parts) {
      const uneven = others.some(([tensor]) => String(tensor.dims.slice(1)) !== String(first.dims.slice(1)));
      if (uneven) throw new T2RError("batch", `the state ${name} of one length in all sequences`, "different ones", "read as much of each");
    }
    const made = new Map();
    for (const [name, chosen] of parts) made.set(name, await gathered(this.#graph.ort, chosen));
    const entry = ({ name }) => /** @type {[string, any]} */ ([name, made.get(name)]);
    this.#replace(states.map(entry));
    this.#source = new Map(allStates.slice(states.length).map(entry));
  }

  /**
   * One run of a step or prefill graph: rows (B, N) of tokens, or of vectors, each a Float32Array.
   * @param {import("./session.js").Graph} graph
   * @param {number[][]} rows
   * @param {Wanted} wanted
   * @param {number | null} keep for a draft-check graph, the number of first tokens that the states include; `uncheck` can then undo the run
   * @returns {Promise<any>} the logits, owned by the caller; for "top" the largest, {logits, tokens}; for "largest" also {sums}; or undefined
   */
  async run(graph, rows, wanted, keep = null) {
    const dims = graph.signature.role === "step" ? [rows.length] : [rows.length, rows[0].length];
    const names = wanted === null ? [] : OUTPUTS[wanted], feeds = inputsOf(graph, rows.flat(), dims);
    if (keep !== null) feeds.keep = this.#tensor("int64", BigInt64Array.from(rows, () => BigInt(keep)), [rows.length]);
    const own = Object.values(feeds), [logits, tokens, sums] = await this.#chained(graph, feeds, names, keep !== null);
    for (const tensor of own) tensor.dispose?.();
    return tokens ? { logits, tokens: Int32Array.from(tokens, Number), ...(sums && { sums }) } : logits;
  }

  /** Go back to the states before the last run, which had `keep`. */
  uncheck() {
    for (const [name, old] of this.#before) {
      const written = this.#past.get(name);
      this.#past.set(name, old);
      if (this.#spare.get(name) === old) this.#spare.set(name, written);
      else written.dispose?.();
    }
    this.#before.clear();
  }

  /** Drop the states before the last run. */
  #forget() {
    for (const [name, old] of this.#before) if (this.#spare.get(name) !== old) old.dispose?.();
    this.#before.clear();
  }

  /** One run that reads and updates the states. Returns the data of the named outputs, owned by the caller. */
  async #chained(graph, feeds, names, undoable) {
    this.#forget();
    const fetches = {};
    for (const { name, past, present, constant } of this.#slots) {
      feeds[past] = this.#past.get(name);
      fetches[present] = this.swaps && constant ? this.#spareOf(name) : null;
    }
    for (const [name, tensor] of this.#source) feeds[name] = tensor;
    for (const name of names) fetches[name] = null;
    const found = await this.#ran(graph, feeds, this.swaps ? fetches : Object.keys(fetches));
    for (const { name, present } of this.#slots) {
      const old = this.#past.get(name), written = fetches[present];
      this.#past.set(name, written ?? found[present]); // the result for a preallocated output is a copy
      if (written) this.#spare.set(name, old);
      else if (!undoable) old.dispose?.();
      if (undoable) this.#before.set(name, old);
    }
    return Promise.all(names.map((name) => taken(found[name])));
  }

  async #ran(graph, feeds, fetches) {
    try {
      return await graph.session.run(feeds, fetches);
    } catch (error) {
      throw new T2RError("runtime", "a graph that runs", printable(error), "check it with t2r verify");
    }
  }

  dispose() {
    this.#replace([]);
  }

  #replace(entries) {
    this.#forget();
    for (const tensor of [...this.#past.values(), ...this.#source.values(), ...this.#spare.values()]) tensor.dispose?.();
    this.#source.clear();
    this.#past = new Map(entries);
    this.#spare.clear();
  }

  #tensorOf(name) {
    return this.#past.get(name) ?? this.#source.get(name);
  }

  #made({ dtype, dims, bytes }) {
    return this.#tensor(dtype, new ARRAYS[dtype](bytes.slice().buffer), dims);
  }

  #tensor(dtype, array, dims) {
    return new this.#graph.ort.Tensor(dtype, array, dims);
  }

  #spareOf(name) {
    const like = this.#past.get(name);
    const spare = this.#spare.get(name);
    if (spare && spare.dims.every((d, n) => d === like.dims[n])) return spare;
    return this.#tensor(like.type, new ARRAYS[like.type](product(like.dims)), like.dims);
  }
}

/** The numbers of a tensor, which is not used again. */
async function taken(tensor) {
  const data = await tensor.getData();
  tensor.dispose?.();
  return data;
}

/** The input of a run: tokens, or vectors, flattened. */
function inputsOf({ ort, signature: { inputSize: size } }, read, dims) {
  if (size === null) return { input_ids: new ort.Tensor("int64", BigInt64Array.from(read, BigInt), dims) };
  const numbers = new Float32Array(read.length * size);
  read.forEach((vector, n) => numbers.set(vector, n * size));
  return { inputs_embeds: new ort.Tensor("float32", numbers, [...dims, size]) };
}

/** The initial value of a state. */
export function initialState({ dtype, initial }, dims) {
  const value = dtype === "int64" ? BigInt(initial) : dtype === "float16" ? halfOf(initial) : initial;
  return { dtype, dims, bytes: new Uint8Array(new ARRAYS[dtype](product(dims)).fill(value).buffer) };
}

/** The bits of a number rounded to float16, ties to even. */
function halfOf(number) {
  const size = Math.abs(number), exponent = Math.max(Math.floor(Math.log2(size)), -14);
  const units = size / 2 ** (exponent - 10), whole = Math.floor(units), rest = units - whole;
  const rounded = whole + (rest > 0.5 || (rest === 0.5 && whole % 2 === 1) ? 1 : 0);
  return (number < 0 ? 0x8000 : 0) + (exponent + 14) * 1024 + rounded;
}
