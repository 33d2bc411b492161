/**
 * Our own execution provider as a WebAssembly module (runtimes/provider/web), with the part of ONNX Runtime's interface that this
 * package uses: InferenceSession and Tensor. It has one thread. Tensors are in the module's memory until they are disposed of.
 */

import { loadModule } from "#platform";

import { T2RError } from "./errors.js";
import { product } from "./signature.js";

/** @typedef {{ name: string, type: string, shape: number[] }} Form of an input or output; a dimension of -1 is any */

/** By TensorProto.DataType. @type {Map<number, string>} */
const TYPES = new Map([[1, "float32"], [2, "uint8"], [3, "int8"], [6, "int32"], [7, "int64"], [9, "bool"], [10, "float16"]]);
const ARRAYS = {
  float32: Float32Array, uint8: Uint8Array, int8: Int8Array, int32: Int32Array, int64: BigInt64Array, bool: Uint8Array, float16: Uint16Array,
};
const MESSAGE = /^expected ([^]*?), received ([^]*); ([^;]*)$/;
const KINDS = /** @type {[import("./types.js").Kind, RegExp][]} */ ([
  ["graph", /^an ONNX file/], ["version", /^a version/], ["weights", /^the weights/], ["memory", /^memory/],
]);

/** The module's code, compiled once. @type {Promise<WebAssembly.Module> | null} */
let compiled = null;

/**
 * A new module, in place of that of ONNX Runtime: the graphs opened in it share memory and files.
 * @returns {Promise<any>}
 * @throws {T2RError} provider: there is no module
 */
export async function openModule() {
  try {
    compiled ??= loadModule().then((bytes) => WebAssembly.compile(bytes));
    return ortOf(await Machine.start(await compiled));
  } catch (error) {
    compiled = null;
    throw new T2RError("provider", "t2r.wasm beside the package's scripts", String(error.message ?? error), "build it with `make web-provider`");
  }
}

/** An instance and its memory. */
class Machine {
  #exports;
  files = new Set(); // names of files with weights

  static async start(module) {
    const machine = new Machine();
    const fail = (at, size) => {
      throw failure(new TextDecoder().decode(machine.bytes(at, size)));
    };
    // of a WASI, the C++ library wants a clock, and files for messages that are never written
    const system = { clock_time_get: () => 0, fd_write: () => 8, fd_seek: () => 8, fd_close: () => 8 };
    const made = /** @type {any} */ (await WebAssembly.instantiate(module, { t2r: { fail }, wasi_snapshot_preview1: system }));
    machine.#exports = made.exports;
    machine.#exports._initialize();
    return machine;
  }

  /** Call a function of the module. One that fails leaves it in the middle, so its stack is taken back. */
  call(name, ...given) {
    const { [name]: called, __stack_pointer: stack } = this.#exports, before = stack.value;
    try {
      return called(...given);
    } catch (error) {
      stack.value = before;
      throw error;
    }
  }

  /** Bytes of memory. */
  get size() {
    return this.#exports.memory.buffer.byteLength;
  }

  bytes(at, size) {
    return new Uint8Array(this.#exports.memory.buffer, at, size);
  }

  /** A copy of bytes in memory: its address. @param {Uint8Array} bytes @param {"allocate" | "reserve"} by reserve: for a file, which stays */
  placed(bytes, by = "allocate") {
    const at = this.call(by, bytes.length) >>> 0;
    this.bytes(at, bytes.length).set(bytes);
    return at;
  }

  allocated(size) {
    return this.call("allocate", size) >>> 0;
  }

  /** The values that the module describes at an address. @returns {Form[]} */
  values(at) {
    const view = new DataView(this.#exports.memory.buffer), word = () => view.getInt32((at += 4) - 4, true), found = [];
    at >>>= 0;
    for (let left = word(); left > 0; left--) {
      const begin = word() >>> 0, size = word(), type = TYPES.get(word()), shape = Array.from({ length: word() }, word);
      found.push({ name: new TextDecoder().decode(this.bytes(begin, size)), type, shape });
    }
    return found;
  }
}

function failure(text) {
  const [, expected, received, advice] = MESSAGE.exec(text) ?? [null, "a call that ends", text, "report it"];
  const [kind] = KINDS.find(([, words]) => words.test(expected)) ?? ["provider"];
  return new T2RError(kind, expected, received, advice.replace(/the provider cpu$/, "another provider"));
}

/** What stands for ONNX Runtime's module. */
function ortOf(machine) {
  class Tensor {
    location = "cpu";
    /** @type {string} */ type;
    /** @type {number[]} */ dims;
    #at;

    /** @param {string} type @param {any} data an array of its type, which is copied, or its address here @param {number[]} dims */
    constructor(type, data, dims) {
      [this.type, this.dims] = [type, dims];
      this.#at = typeof data === "number" ? data : machine.placed(new Uint8Array(data.buffer, data.byteOffset, data.byteLength));
    }

    get address() {
      if (this.#at === null) throw new Error("a tensor that was disposed of");
      return this.#at;
    }

    /** A copy. */
    get data() {
      const size = product(this.dims) * ARRAYS[this.type].BYTES_PER_ELEMENT;
      return new ARRAYS[this.type](machine.bytes(this.address, size).slice().buffer);
    }

    async getData() {
      return this.data;
    }

    dispose() {
      if (this.#at !== null) machine.call("free", this.#at);
      this.#at = null;
    }
  }

  class InferenceSession {
    #handle;
    #words; // memory for what a run passes: dimensions, then addresses of inputs and outputs
    #rank;
    /** @type {Form[]} */ inputMetadata;
    /** @type {Form[]} */ outputMetadata;
    /** @type {string[]} */ inputNames;
    /** @type {string[]} */ outputNames;

    /** Only `create` calls this. */
    constructor(handle) {
      this.#handle = handle;
      [this.inputMetadata, this.outputMetadata] = [0, 1].map((which) => machine.values(machine.call("values", handle, which)));
      [this.inputNames, this.outputNames] = [this.inputMetadata, this.outputMetadata].map((values) => values.map(({ name }) => name));
      this.#rank = this.inputMetadata.reduce((sum, { shape }) => sum + shape.length, 0);
      this.#words = machine.allocated(4 * (this.#rank + this.inputNames.length + this.outputNames.length));
    }

    /** @param {Uint8Array} bytes @param {{ externalData?: { path: string, data: Uint8Array }[] }} options */
    static async create(bytes, { externalData = [] } = {}) {
      for (const { path, data } of externalData) {
        const name = new TextEncoder().encode(path);
        machine.call("add_file", machine.placed(name), name.length, machine.placed(data, "reserve"), data.length);
        machine.files.add(path);
      }
      return new InferenceSession(machine.call("open", machine.placed(bytes, "reserve"), bytes.length));
    }

    /** Number of operations of the last run. */
    get operations() {
      return machine.call("operations", this.#handle);
    }

    /**
     * @param {Record<string, Tensor>} feeds
     * @param {Record<string, Tensor | null> | string[]} [fetches] all outputs by default; a tensor is written, the others are new
     */
    async run(feeds, fetches = this.outputNames) {
      const wanted = Array.isArray(fetches) ? Object.fromEntries(fetches.map((name) => [name, null])) : fetches;
      const given = this.inputMetadata.map((form) => fed(feeds[form.name], form));
      this.#put(0, given.flatMap(({ dims }) => dims));
      const forms = machine.values(machine.call("plan", this.#handle, this.#words)), found = {}, made = [];
      try {
        const addresses = forms.map(({ type, shape: dims }, n) => {
          const name = this.outputNames[n];
          if (!(name in wanted)) return 0;
          const size = product(dims) * ARRAYS[type].BYTES_PER_ELEMENT;
          if (!wanted[name]) made.push((found[name] = new Tensor(type, machine.allocated(size), dims)));
          else found[name] = fed(wanted[name], { name, type, shape: dims });
          return found[name].address;
        });
        const inputs = this.#words + 4 * this.#rank;
        this.#put(this.#rank, [...given.map(({ address }) => address), ...addresses]);
        machine.call("run", this.#handle, inputs, inputs + 4 * given.length);
      } catch (error) {
        for (const tensor of made) tensor.dispose();
        throw error;
      }
      return found;
    }

    #put(first, numbers) {
      new Uint32Array(machine.bytes(this.#words, 0).buffer, this.#words + 4 * first, numbers.length).set(numbers);
    }

    async release() {
      if (this.#handle !== null) machine.call("close", this.#handle);
      this.#handle = null;
    }
  }

  /** A tensor that has a value's type and shape. */
  function fed(tensor, { name, type, shape }) {
    const fits = tensor instanceof Tensor && tensor.type === type && tensor.dims.length === shape.length &&
      shape.every((size, n) => size < 0 || size === tensor.dims[n]);
    if (!fits) throw new Error(`${name} is not ${type} (${shape})`);
    return tensor;
  }

  return { InferenceSession, Tensor, files: machine.files, memory: () => machine.size };
}
