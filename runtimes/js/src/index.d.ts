/** Runs the recurrent decoders of t2r-export: the contract is runtimes/CONTRACT.md. */

export type Kind =
  | "file" | "graph" | "version" | "metadata" | "interface" | "weights" | "tokenizer" | "token" | "position" | "batch"
  | "snapshot" | "sampling" | "provider" | "argument" | "state" | "memory" | "runtime" | "cancelled";

export const KINDS: readonly Kind[];

/** What a user can put right: a kind, and one line of what was expected, what was received and what to do. */
export class T2RError extends Error {
  constructor(kind: Kind, expected: string, received: string, what: string);
  readonly kind: Kind;
}

export type Dtype = "float32" | "float16" | "int32" | "int64";

/** A state as the metadata lists it: "B" is the batch, "T" a length that grows, "M" that of the longest source. */
export interface StateSpec {
  readonly name: string;
  readonly dtype: Dtype;
  readonly shape: readonly (number | "B" | "T" | "M")[];
  readonly initial: number;
  readonly constant: boolean;
}

/** A graph's metadata: the keys of CONTRACT.md without their `t2r.`. */
export interface Signature {
  readonly states: readonly StateSpec[];
  readonly vocab_size: number;
  readonly bos_token: number | null;
  readonly eos_tokens: readonly number[];
  readonly batch: number | null;
  readonly max_positions: number | null;
  readonly past_end: string;
  readonly state_layout: string;
  readonly layers: readonly object[];
  readonly target: string;
  readonly quantization: string;
  readonly checkpoint_sha256: string;
  readonly producer: string;
  readonly tokenizer: string | null;
  readonly top_k: number | null;
  readonly role: "step" | "prefill" | "generate" | "encoder";
  readonly graphs: Readonly<Record<string, string>>;
  /** the options that hold where a caller gives none: of a text, or of a translator's search; null: the graph has none */
  readonly generation: Readonly<SamplingOptions & BeamOptions> | null;
  /** of a translator, as the next seven; null in a decoder alone's */
  readonly source_states: readonly StateSpec[] | null;
  readonly start_states?: readonly string[];
  readonly source_vocab_size?: number;
  readonly source_tokenizer?: string | null;
  readonly max_source?: number | null;
  readonly source_length?: number | null;
  readonly start_tokens?: readonly number[];
  readonly banned_tokens?: readonly number[];
  readonly allStates: readonly StateSpec[];
}

/** A path (Node), an address, or files in memory by their names. */
export type Source = string | URL | { graph: string; files: Record<string, Uint8Array> };

export interface OpenOptions {
  /** cpu (the default) or webgpu in Node; wasm (the default) or webgpu in a browser */
  provider?: "cpu" | "wasm" | "webgpu";
  /** threads inside an operator, in Node; in a browser set `ort.env.wasm.numThreads` */
  threads?: number;
  /** whether the prefill graph is opened where there is one; true unless told otherwise */
  prefill?: boolean;
  /** whether `generate` uses the generation graph where there is one; true unless told otherwise */
  generation?: boolean;
  /** the most that the states of one sequence may take; 2 GiB unless told otherwise */
  maxStateBytes?: number;
  /** called as the bytes of a file come from an address; total is null where the server does not say it */
  onProgress?: (progress: { file: string; loaded: number; total: number | null }) => void;
  /** the module of ONNX Runtime, where it is not onnxruntime-node or onnxruntime-web/webgpu */
  ort?: object;
}

/** contract/generation.md. An option that is not given, undefined or null, is the graph's, or else the default. */
export interface SamplingOptions {
  temperature?: number | null;
  top_k?: number | null;
  top_p?: number | null;
  min_p?: number | null;
  repetition_penalty?: number | null;
  no_repeat_ngram?: number | null;
  seed?: number | bigint | null;
  stop_tokens?: Tokens | null;
}

/** Who watches a text. */
export interface TextWatchers {
  /** called with each token; false ends the text */
  onToken?: ((token: number) => unknown) | null;
  /** ends the text within a token; its reason is thrown, an AbortError unless told otherwise */
  signal?: AbortSignal | null;
}

/** Who watches a search. */
export interface SearchWatchers {
  /** called with the newest token of each hypothesis after each step; false ends the search */
  onStep?: ((newest: number[]) => unknown) | null;
  /** ends the search within a step; its reason is thrown */
  signal?: AbortSignal | null;
}

/** Numbers of a state: little-endian, row after row. */
export interface State {
  dtype: Dtype;
  dims: number[];
  bytes: Uint8Array;
}

/** An array or a typed array; nothing is made into a number. */
export type Tokens =
  | readonly number[] | Int8Array | Uint8Array | Int16Array | Uint16Array | Int32Array | Uint32Array | Float32Array | Float64Array
  | BigInt64Array | BigUint64Array;

/** A step graph, opened, with the states of a text. One call at a time: a second one meanwhile is an error. */
export class Decoder {
  private constructor();
  /** @throws {T2RError} file, graph, version, weights, metadata, interface, provider */
  static open(source: Source, options?: OpenOptions): Promise<Decoder>;
  readonly signature: Signature;
  readonly provider: string;
  /** whether `generate` without an onToken and a signal is one run of a generation graph */
  readonly hasGenerationGraph: boolean;
  /** sequences decoded side by side */
  readonly batch: number;
  /** tokens read since the start, by the furthest sequence; a prompt that failed was read up to here */
  readonly position: number;
  /** bytes of all states now */
  readonly stateBytes: number;
  tokenizer(): Tokenizer;
  reset(batch?: number): Promise<void>;
  /** Read one token of each sequence: logits of what comes next, (B · vocabulary). @throws {T2RError} token, batch, position */
  step(ids: number | Tokens): Promise<Float32Array>;
  /** Read a prompt (T,), or (B, T): the logits after its last token. */
  prefill(ids: Tokens | readonly Tokens[]): Promise<Float32Array>;
  /** As `prefill`: the largest logits, and their tokens, (B · top_k) each, that the graph itself chose. */
  topK(ids: Tokens | readonly Tokens[]): Promise<{ logits: Float32Array; tokens: Int32Array }>;
  state(): Promise<Map<string, State>>;
  setState(states: Map<string, State> | Record<string, State>, position?: number): Promise<void>;
  /** Drop, repeat or move sequences. */
  reorder(rows: Tokens): Promise<void>;
  /** The states as a snapshot that every runtime reads; `token` is one that was chosen and not read. */
  saveState(token?: number | null): Promise<Uint8Array>;
  /** Go on from a snapshot, its bytes or where it is; gives its token. @throws {T2RError} file, snapshot */
  loadState(source: Uint8Array | string | URL): Promise<number | null>;
  /** The tokens that follow a prompt, as they come; the last has been chosen and not read. */
  stream(prompt: Tokens, maxTokens: number, options?: SamplingOptions): AsyncGenerator<number, void, void>;
  /**
   * All of them. An `onToken` that gives false, or the signal, ends the text within a token. Without either, a generation
   * graph that lies beside does all in one run; it is opened the first time.
   */
  generate(
    prompt: Tokens,
    maxTokens: number,
    options?: SamplingOptions,
    watchers?: TextWatchers,
  ): Promise<number[]>;
  close(): Promise<void>;
}

export interface TextStream {
  /** The text that a token completes; "" if it completes none. */
  feed(token: number): string;
  /** What was still waiting for the rest of a character. */
  end(): string;
}

export class Tokenizer {
  /** @param text a tokenizer.json @param bos stands in for an empty text @throws {T2RError} tokenizer */
  constructor(text: string, bos?: number | null);
  static of(signature: Pick<Signature, "tokenizer" | "bos_token">): Tokenizer;
  encode(text: string, options?: { specialTokens?: boolean }): number[];
  decode(ids: Iterable<number>): string;
  stream(prompt?: Iterable<number>): TextStream;
}

/** How a translation is searched: contract/translators.md. What is not given is as in SamplingOptions. */
export interface BeamOptions {
  width?: number | null;
  length_penalty?: number | null;
  early_stopping?: boolean | "never" | null;
  max_tokens?: number | null;
  min_tokens?: number | null;
  forced_end?: boolean | null;
  n_best?: number | null;
  repetition_penalty?: number | null;
  no_repeat_ngram?: number | null;
}

/** Its tokens, one that ended it the last of them, and its score, of which more is better. */
export interface Translation {
  tokens: number[];
  score: number;
}

/** A translator's step graph and its encoder. One call at a time. */
export class Translator {
  private constructor();
  /** @throws {T2RError} as Decoder.open */
  static open(source: Source, options?: OpenOptions): Promise<Translator>;
  readonly signature: Signature;
  readonly provider: string;
  /** of the translations */
  tokenizer(): Tokenizer;
  /** of the sources, which is the translations' where they have none of their own */
  sourceTokenizer(): Tokenizer;
  /** All states that the translations of these sources start from. @throws {T2RError} token, position, batch */
  encode(sources: readonly Tokens[]): Promise<Map<string, State>>;
  /**
   * One translation as it comes, greedy unless options are given: no token is forced, and the start tokens are not given.
   * Of the graph's options its penalties hold.
   * @throws {T2RError} sampling, token, position, batch
   */
  stream(source: Tokens, maxTokens: number, options?: SamplingOptions): AsyncGenerator<number, void, void>;
  /** All of its tokens. An `onToken` that gives false, or the signal, ends the text within a token. */
  generate(
    source: Tokens,
    maxTokens: number,
    options?: SamplingOptions,
    watchers?: TextWatchers,
  ): Promise<number[]>;
  /**
   * The n best translations of a source, best first.
   * @throws {T2RError} token, position, sampling
   */
  translate(
    source: Tokens,
    beam?: BeamOptions,
    watchers?: SearchWatchers,
  ): Promise<Translation[]>;
  close(): Promise<void>;
}

/** Chooses the tokens of one text: the rules, and the noise of one seed. */
export class Sampler {
  /** @param generation a graph's, `Signature.generation` */
  constructor(options?: SamplingOptions, generation?: Signature["generation"]);
  draws: number;
  readonly seed: number;
  readonly looksBack: boolean;
  /** how many of the largest logits are enough to choose from; 0 is all */
  readonly limit: number;
  /** @param tokens whose logits these are, where they are not all: the `limit` largest, or more of them */
  pick(logits: Float32Array, text?: Tokens, tokens?: Tokens | null): number;
}

/** The metadata of an .onnx file and the names of its files of weights, from its bytes. */
export function readModelFile(bytes: Uint8Array): { metadata: Map<string, string>; weights: string[] };

/** A graph's metadata, checked. */
export function readSignature(metadata: Map<string, string>, maxStateBytes?: number): Signature;
