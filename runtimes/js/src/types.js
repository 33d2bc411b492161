/**
 * The public types that are no classes. `npm run types` writes the declarations of all files into types/.
 *
 * @typedef {"file" | "graph" | "version" | "metadata" | "interface" | "weights" | "tokenizer" | "token" | "position" | "batch"
 *   | "snapshot" | "sampling" | "provider" | "argument" | "state" | "memory" | "runtime" | "cancelled"} Kind of an error
 *
 * @typedef {"float32" | "float16" | "int32" | "int64"} Dtype
 *
 * @typedef {readonly number[] | Int8Array | Uint8Array | Int16Array | Uint16Array | Int32Array | Uint32Array | Float32Array
 *   | Float64Array | BigInt64Array | BigUint64Array} Tokens an array or a typed array; nothing is made into a number
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
 * Numbers of a state: little-endian, row after row.
 * @typedef {object} State
 * @property {Dtype} dtype
 * @property {number[]} dims
 * @property {Uint8Array} bytes
 */

/**
 * A program in jinja2's language, and the texts of the special tokens that it names.
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
 * @property {number | null} topK
 * @property {"step" | "prefill" | "draft_check" | "generate" | "encoder"} role
 * @property {Readonly<Record<string, string>>} graphs
 * @property {Readonly<SamplingOptions & BeamOptions> | null} generation the options that hold where a caller gives none: of
 *   a text, or of a translator's search; null: the graph has none
 * @property {readonly StateSpec[] | null} sourceStates of a translator, as the next seven; null in a decoder alone's
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
 * @property {"cpu" | "wasm" | "webgpu"} [provider] cpu (the default) or webgpu in Node; wasm (the default) or webgpu in a browser
 * @property {number} [threads] inside an operator, in Node; in a browser set `ort.env.wasm.numThreads`
 * @property {boolean} [prefill] whether the prefill graph is opened where there is one; true unless told otherwise
 * @property {boolean} [generation] whether `generate` uses the generation graph where there is one; true unless told otherwise
 * @property {number} [maxStateBytes] the most that the states of one sequence may take; 2 GiB unless told otherwise
 * @property {(progress: { file: string, loaded: number, total: number | null }) => void} [onProgress] called as the bytes of a
 *   file come from an address; total is null where the server does not say it
 * @property {object} [ort] the module of ONNX Runtime, where it is not onnxruntime-node or onnxruntime-web/webgpu
 */

/**
 * As OpenOptions, but `ort` is the address of a module, which the worker imports; and the worker itself, whose script is
 * t2r-runtime/worker, where a bundler does not find that by itself.
 * @typedef {Omit<OpenOptions, "ort"> & { ort?: string | URL, worker?: any }} WorkerOptions
 */

/**
 * contract/generation.md. An option that is not given, undefined or null, is the graph's, or else the default.
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
 * How a translation is searched: contract/translators.md. What is not given is as in SamplingOptions.
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
 */

/**
 * Who watches a text.
 * @typedef {object} TextWatchers
 * @property {((token: number) => unknown) | null} [onToken] called with each token; false ends the text
 * @property {AbortSignal | null} [signal] ends the text within a token; its reason is thrown, an AbortError unless told otherwise
 */

/**
 * Who watches a search.
 * @typedef {object} SearchWatchers
 * @property {((newest: number[]) => unknown) | null} [onStep] called with the newest token of each hypothesis after each step;
 *   false ends the search
 * @property {AbortSignal | null} [signal] ends the search within a step; its reason is thrown
 */

/**
 * Its tokens, one that ended it the last of them, and its score, of which more is better.
 * @typedef {object} Translation
 * @property {number[]} tokens
 * @property {number} score
 */

export {};
