/** Runs the recurrent decoders of t2r-export: the contract is runtimes/CONTRACT.md. */

export { Batch } from "./batch.js";
export { Decoder } from "./decoder.js";
export { KINDS, T2RError } from "./errors.js";
export { readModelFile } from "./model_file.js";
export { PrefixCache } from "./prefix_cache.js";
export { Sampler } from "./sampler.js";
export { readSignature } from "./signature.js";
export { splitSentences } from "./sentences.js";
export { Tokenizer } from "./tokenizer.js";
export { Translator } from "./translator.js";
export { WorkerDecoder } from "./worker_decoder.js";

/**
 * @typedef {import("./types.js").BeamOptions} BeamOptions
 * @typedef {import("./types.js").CallOptions} CallOptions
 * @typedef {import("./types.js").ChatTemplate} ChatTemplate
 * @typedef {import("./types.js").Dtype} Dtype
 * @typedef {import("./types.js").Kind} Kind
 * @typedef {import("./types.js").OpenOptions} OpenOptions
 * @typedef {import("./types.js").SamplingOptions} SamplingOptions
 * @typedef {import("./types.js").SearchWatchers} SearchWatchers
 * @typedef {import("./types.js").Signature} Signature
 * @typedef {import("./types.js").Source} Source
 * @typedef {import("./types.js").State} State
 * @typedef {import("./types.js").StateSpec} StateSpec
 * @typedef {import("./types.js").TextWatchers} TextWatchers
 * @typedef {import("./types.js").Tokens} Tokens
 * @typedef {import("./types.js").Translation} Translation
 * @typedef {import("./types.js").WorkerOptions} WorkerOptions
 */
