/**
 * The public types other than classes. `npm run types` writes the declarations of all files into types/.
 *
 * @typedef {"file" | "graph" | "version" | "metadata" | "interface" | "weights" | "tokenizer" | "token" | "position" | "batch"
 *   | "snapshot" | "sampling" | "provider" | "argument" | "state" | "memory" | "runtime" | "cancelled"} Kind of an error
 *
 * @typedef {"float32" | "float16" | "int8" | "int32" | "int64"} Dtype
 *
 * @typedef {readonly number[] | Int8Array | Uint8Array | Int16Array | Uint16Array | Int32Array | Uint32Array | Float32Array
 *   | Float64Array | BigInt64Array | BigUint64Array} Tokens an array or a typed array; other types are not converted to numbers
 *
 * @typedef {string | URL | { graph: string, files: Record<string, Uint8Array> }} Source
 *   a path (Node), an address, or files in memory by their names
 */

/**
 * A state as the metadata lists it: "B" is the batch, "T" a length that grows, "M" that of the longest source.
 * @typedef {object} StateSpec
 * @property {string} name
 * @property {Dtype} dtype
 * @property {readonly (number | "B" | "T" | "M")[]} shape
 * @property {number} initial
 * @property {boolean} constant
 */

/**
 * Data of a state: little-endian, row-major.
 * @typedef {object} State
 * @property {Dtype} dtype
 * @property {number[]} dims
 * @property {Uint8Array} bytes
 */

/**
 * A jinja2 template, and the texts of the special tokens that it names.
 * @typedef {object} ChatTemplate
 * @property {string} template
 * @property {Readonly<Record<string, string>>} tokens
 */

/**
 * A graph's metadata: the keys of CONTRACT.md without their `t2r.`, in camelCase.
 * @typedef {object} Metadata
 * @property {readonly StateSpec[]} states
 * @property {number} vocabSize
 * @property {number | null} bosToken
 * @property {readonly number[]} eosTokens
 * @property {number | null} batch
 * @property {number | null} maxPositions
 * @property {string} pastEnd
 * @property {string} stateLayout
 * @property {readonly object[]} layers
 * @property {string} target
 * @property {string} quantization
 * @property {string} checkpointSha256
 * @property {string} producer
 * @property {string | null} tokenizer
 * @property {ChatTemplate | null} chatTemplate of a chat model
 * @property {number | null} inputSize elements of the vectors that `readVectors` takes; null: the graph reads tokens
 * @property {number | null} hiddenSize elements of the output `hidden`, which is not used here; null: there is none
 * @property {readonly string[] | null} adapters names of low-rank adapters, which `adapt` chooses; null: there are none
 * @property {number | null} topK
 * @property {"step" | "prefill" | "draft_check" | "encoder"} role
 * @property {Readonly<Record<string, string>>} graphs
 * @property {Readonly<SamplingOptions & BeamOptions> | null} generation default options of a
 *   generation, or of a translator's search; null: the graph has none
 * @property {readonly StateSpec[] | null} sourceStates of a translator, as the next seven; null for a decoder
 * @property {readonly string[]} [startStates]
 * @property {number} [sourceVocabSize]
 * @property {string | null} [sourceTokenizer]
 * @property {number | null} [maxSource]
 * @property {number | null} [sourceLength]
 * @property {readonly number[]} [startTokens]
 * @property {readonly number[]} [bannedTokens]
 * @property {readonly StateSpec[]} allStates
 *
 * @typedef {Readonly<Metadata>} Signature
 */

/**
 * @typedef {object} OpenOptions
 * @property {"cpu" | "wasm" | "webgpu" | "t2r"} [provider] cpu (the default) or webgpu in Node; wasm (the default) or webgpu in a browser;
 *   in both t2r, our own in WebAssembly, which needs no ONNX Runtime and has one thread
 * @property {number} [threads] inside an operator, in Node; in a browser set `ort.env.wasm.numThreads`
 * @property {boolean} [prefill] whether to open the prefill graph, if there is one; true by default
 * @property {number} [maxStateBytes] limit of one sequence's states; 2 GiB by default
 * @property {number} [maxSource] maximum tokens of a translator's source, besides the graph's own limit; 4,096 by default, 1.1 GB
 *   of attention scores in an encoder of 8 heads. Sources given together are encoded in portions with no more scores than one of
 *   this length, where the graph has no fixed batch
 * @property {(progress: { file: string, loaded: number, total: number | null }) => void} [onProgress] called as the bytes of a
 *   file arrive from an address; total is null if the server does not report it
 * @property {AbortSignal | null} [signal] ends downloads and opening; its reason is thrown, and nothing stays open
 * @property {object} [ort] the module of ONNX Runtime, if not onnxruntime-node, onnxruntime-web/wasm or onnxruntime-web/webgpu
 */

/**
 * As OpenOptions, but `ort` is the address of a module, which the worker imports; `worker` runs the script
 * t2r-runtime/worker, for bundlers that do not find it.
 * @typedef {Omit<OpenOptions, "ort"> & { ort?: string | URL, worker?: any }} WorkerOptions
 */

/**
 * Options of contract/generation.md. One that is undefined or null takes the graph's value, else the default.
 * @typedef {object} SamplingOptions
 * @property {number | null} [temperature]
 * @property {number | null} [topK]
 * @property {number | null} [topP]
 * @property {number | null} [minP]
 * @property {number | null} [repetitionPenalty]
 * @property {number | null} [noRepeatNgram]
 * @property {number | bigint | null} [seed]
 * @property {Tokens | null} [stopTokens]
 */

/**
 * Options of beam search: contract/translators.md. Missing ones are as in SamplingOptions.
 * @typedef {object} BeamOptions
 * @property {number | null} [width]
 * @property {number | null} [lengthPenalty]
 * @property {boolean | "never" | null} [earlyStopping]
 * @property {number | null} [maxTokens]
 * @property {number | null} [minTokens]
 * @property {boolean | null} [forcedEnd]
 * @property {number | null} [nBest]
 * @property {number | null} [repetitionPenalty]
 * @property {number | null} [noRepeatNgram]
 * @property {boolean | null} [copy] whether numbers and names of the source are copied: contract/copies.md
 */

/**
 * What ends a call of several runs: the signal's reason is thrown, an AbortError by default, between two runs. A decoder has then
 * read as many tokens as its position has, and continues from there.
 * @typedef {object} CallOptions
 * @property {AbortSignal | null} [signal]
 */

/**
 * Callback and signal of a generation.
 * @typedef {object} TextWatchers
 * @property {((token: number) => unknown) | null} [onToken] called with each token; false ends the text
 * @property {AbortSignal | null} [signal] ends the text, or the reading of its prompt, as in CallOptions
 */

/**
 * Callback and signal of a search.
 * @typedef {object} SearchWatchers
 * @property {((newest: number[]) => unknown) | null} [onStep] called with the newest token of each hypothesis after each step;
 *   false ends the search
 * @property {AbortSignal | null} [signal] ends the search within a step, as in CallOptions
 */

/**
 * Tokens of a translation, a final end token included, and its score; higher is better.
 * @typedef {object} Translation
 * @property {number[]} tokens
 * @property {number} score
 */

export {};
