/** Runs the recurrent decoders of t2r-export: the contract is runtimes/CONTRACT.md. */

export { Decoder } from "./decoder.js";
export { KINDS, T2RError } from "./errors.js";
export { readModelFile } from "./model_file.js";
export { Sampler } from "./sampler.js";
export { readSignature } from "./signature.js";
export { Tokenizer } from "./tokenizer.js";
export { Translator } from "./translator.js";
