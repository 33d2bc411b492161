/** Text to tokens and back, with the tokenizer stored in the graph: contract/text.md. */

import { AddedTokens } from "./added_tokens.js";
import { isList, numbersOf, watchersOf } from "./arguments.js";
import { PairEncoding } from "./bpe.js";
import { isChatTemplate, render } from "./chat.js";
import { T2RError, isWhole, printable, shown } from "./errors.js";
import { processorOf } from "./post_processor.js";
import { decodeTokens } from "./text_decoder.js";
import { normalizerOf } from "./text_normalizer.js";
import { splitterOf } from "./text_splitter.js";
import { looksOf, requireContent, requireTexts, workOf } from "./tokenizer_bounds.js";
import { readParts } from "./tokenizer_parts.js";
import { Unigram } from "./unigram.js";
import { Until } from "./until.js";

const UNFINISHED = /(?<!\ufffd)\ufffd+$/; // decoded from invalid or incomplete bytes
const MAX_UNFINISHED = 16; // characters: a longer run never completes
const CONTEXT = 32; // tokens that may affect the text of the next one

export class Tokenizer {
  #added;
  #split;
  #pieces;
  #looks;
  #process;
  #decoder;
  #bos;
  #ids; // text → id, of pieces
  #addedIds;
  #written; // id → decoded text, without special tokens; a normalized added token decodes to its normalized content
  #surfaces; // text → id, of pieces and of runs of unknown letters
  #unknown;
  #chat;

  /**
   * @param {string} text a tokenizer.json
   * @param {number | null} bos stands in for an empty text
   * @param {import("./types.js").ChatTemplate | null} chat
   * @throws {T2RError} tokenizer
   */
  constructor(text, bos = null, chat = null) {
    if (chat !== null && !isChatTemplate(chat)) throw refused("a chat template with the texts of its tokens, or null", shown(chat));
    this.#chat = chat;
    const parts = readParts(text);
    if (bos !== null && !isWhole(bos)) throw refused("a token as bos, or null", shown(bos));
    this.#bos = bos;
    this.#decoder = parts.decoder;
    const { model, pieces, added_tokens: added } = parts, { type, vocab, unk_id: id, unk_token: token } = model;
    this.#ids = pieces;
    this.#addedIds = new Map(added.map(({ content, id }) => [content, id]));
    this.#surfaces = new Map(Object.entries(model.surfaces ?? {}));
    for (const text of this.#addedIds.keys()) this.#surfaces.delete(text);
    this.#unknown = type === "Unigram" ? id : this.#idOf(token);
    try {
      const normalize = normalizerOf(parts.normalizer);
      const contents = added.map(({ content, normalized }) => (normalized ? requireContent(normalize(content)) : content));
      this.#written = new Map();
      if (type === "Unigram") vocab.forEach(([text], n) => this.#written.set(n, text)); // one text may have several ids there
      else pieces.forEach((n, text) => this.#written.set(n, text));
      added.forEach((one, n) => this.#written.set(one.id, contents[n]));
      for (const one of added) if (one.special) this.#written.delete(one.id);
      this.#added = new AddedTokens(added, contents, normalize);
      this.#split = splitterOf(parts.pre_tokenizer);
      this.#process = processorOf(parts.post_processor);
      this.#pieces = piecesOf(model, pieces);
      this.#looks = looksOf(model, pieces);
    } catch (error) {
      throw error instanceof T2RError ? error : refused("the text of a tokenizer.json", error);
    }
  }

  /**
   * The tokenizer of a graph's metadata.
   * @param {Pick<import("./types.js").Signature, "tokenizer" | "bosToken"> & Partial<import("./types.js").Signature>} signature
   * @returns {Tokenizer}
   * @throws {T2RError} tokenizer: there is none, or one with an unknown part
   */
  static of(signature) {
    if (typeof signature !== "object" || signature === null) throw refused("the signature of a graph", shown(signature));
    const { tokenizer, bosToken, chatTemplate } = signature;
    if (tokenizer === null) throw refused("a graph with a tokenizer in it", "one without");
    return new Tokenizer(tokenizer, bosToken ?? null, chatTemplate ?? null);
  }

  /**
   * Token numbers, by default with special tokens around the text. An empty text is the BOS token.
   * @param {string} text
   * @param {{ specialTokens?: boolean }} [options]
   * @returns {number[]}
   * @throws {T2RError} tokenizer
   */
  encode(text, options = {}) {
    if (typeof options !== "object" || options === null) throw refused("options as an object", shown(options));
    const { specialTokens = true } = options;
    if (typeof text !== "string" || /[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]/.test(text)) {
      throw refused("text in UTF-8", typeof text === "string" ? "half a character" : shown(text));
    }
    const parts = this.#added.split(requireTexts([text])[0]), bounded = workOf(text, this.#looks);
    const own = parts.flatMap((part) => (typeof part === "number" ? part : this.#idsOf(part, bounded)));
    const ids = specialTokens ? this.#process(own) : own;
    if (!ids.length && this.#bos === null) throw refused("a text", "an empty one, of a model without a BOS token");
    return ids.length ? ids : [this.#bos];
  }

  #idsOf({ text, first }, bounded) {
    const pieces = this.#pieces(bounded(this.#split([text], first).filter(Boolean)));
    return pieces.map((piece) => this.#surfaces.get(piece) ?? this.#ids.get(piece) ?? this.#unknown).filter((id) => id !== undefined);
  }

  /**
   * Messages rendered by the model's chat template. Encode the result with `specialTokens: false`: the template adds them.
   * @param {readonly { role: string, content?: unknown }[]} messages oldest first, of plain JSON data
   * @param {{ addGenerationPrompt?: boolean, worker?: any, signal?: AbortSignal | null }} [options] whether to add the beginning of
   *   the model's answer, true by default; a worker as in WorkerOptions; and a signal, whose reason is thrown
   * @returns {Promise<string>}
   * @throws {T2RError} tokenizer: no template, or one that refuses these messages or exceeds a limit; no @huggingface/jinja
   */
  async chat(messages, options = {}) {
    if (this.#chat === null) throw new T2RError("tokenizer", "a model with a chat template", "one without", "write the prompt yourself");
    if (typeof options !== "object" || options === null) throw refused("options as an object", shown(options));
    const { addGenerationPrompt, worker, signal } = options;
    return render(this.#chat, messages, addGenerationPrompt ?? true, { worker, signal: watchersOf({ signal }).signal });
  }

  /** The token that ends a turn, in addition to the graph's; null if the template names none. @returns {number | null} */
  get endOfTurn() {
    return this.#idOf(this.#chat?.tokens.eos_token) ?? null;
  }

  #idOf(text) {
    return this.#ids.get(text) ?? this.#addedIds.get(text);
  }

  /** The text of tokens, without special ones. @param {Iterable<number>} ids @returns {string} @throws {T2RError} token */
  decode(ids) {
    if (typeof ids === "string" || typeof ids?.[Symbol.iterator] !== "function") throw notTokens(shown(ids));
    const tokens = [];
    for (const id of ids) {
      if (!isWhole(id)) throw notTokens(shown(id));
      const written = this.#written.get(id);
      if (written !== undefined) tokens.push(written);
    }
    return decodeTokens(tokens, this.#decoder);
  }

  /**
   * Streams the text of tokens that follow a prompt: `feed` each, then `end`.
   * @param {Iterable<number>} [prompt]
   * @returns {TextStream}
   */
  stream(prompt = []) {
    if (!isList(prompt) && typeof prompt?.[Symbol.iterator] !== "function") throw notTokens(shown(prompt));
    return new TextStream(this, numbersOf(isList(prompt) ? prompt : [...prompt], "tokens of a prompt"));
  }
}

/**
 * Turns tokens into text one by one, and never returns half a character: new tokens are decoded together with a few
 * before them (the context, whose text is returned already), and incomplete characters are held back.
 */
export class TextStream {
  #tokenizer;
  #context;
  #before;
  #pending;
  #given;
  #until = new Until([]);

  constructor(tokenizer, prompt) {
    this.#tokenizer = tokenizer;
    const tail = prompt.slice(-CONTEXT); // must not begin inside a character
    const cuts = [0, 1, 2, 3].map((skipped) => tail.slice(skipped));
    this.#startFrom(cuts.find((cut) => !tokenizer.decode(cut).startsWith("\ufffd")) ?? tail);
  }

  /**
   * End the text, from here on, before the first stop text that completes, the longest on ties. A possible beginning of
   * one is held back. They replace those of a former call, whose held text follows with the next token.
   * @param {readonly string[]} stops
   * @throws {T2RError} argument
   */
  stopAt(stops) {
    this.#until = new Until(stops, this.#until);
  }

  /** Whether a stop text has occurred; no text is returned after it. @returns {boolean} */
  get stopped() {
    return this.#until.found;
  }

  /** The text that a token completes; "" if it completes none. @param {number} token @returns {string} @throws {T2RError} token */
  feed(token) {
    if (!isWhole(token)) throw notTokens(shown(token));
    return this.#until.feed(this.#completed(token));
  }

  #completed(token) {
    this.#pending.push(token);
    const fresh = this.#new();
    let whole = fresh.replace(UNFINISHED, "");
    if (fresh.length - whole.length > MAX_UNFINISHED) whole = fresh;
    const out = whole.slice(this.#given);
    this.#given = Math.max(this.#given, whole.length);
    if (fresh && whole === fresh) this.#startFrom(this.#pending);
    else if (this.#pending.length > CONTEXT) this.#shorten(fresh.slice(this.#given));
    return out;
  }

  /** Bounds the pending tokens, which are many if tokens have no text, or all of them end within a character. */
  #shorten(held) {
    const text = this.#tokenizer.decode(this.#pending);
    if (text && text.endsWith(held)) {
      this.#startFrom(this.#pending);
      this.#before = text.slice(0, text.length - held.length);
    } else this.#pending.pop(); // it has no text, and none of the others has any that could be the context
  }

  /** The text held back, for the rest of a character or of a stop. @returns {string} */
  end() {
    return this.#until.feed(this.#rest()) + this.#until.end();
  }

  #rest() {
    const out = this.#new().slice(this.#given);
    this.#startFrom(this.#pending.length ? this.#pending : this.#context);
    return out;
  }

  #startFrom(context) {
    this.#context = context;
    this.#before = this.#tokenizer.decode(context);
    this.#pending = [];
    this.#given = 0;
  }

  #new() {
    const both = this.#tokenizer.decode([...this.#context, ...this.#pending]);
    if (both.startsWith(this.#before)) return both.slice(this.#before.length);
    return this.#tokenizer.decode(this.#pending); // its bytes change the context's text: decode it alone
  }
}

/** Returns a function that splits texts into pieces of the vocabulary. */
function piecesOf(model, pieces) {
  if (model.type === "Unigram") {
    const unigram = new Unigram(model);
    return (texts) => texts.flatMap((text) => unigram.encode(text));
  }
  /** @type {any} */ // callable, which its types cannot say
  const bpe = new PairEncoding(model, pieces);
  return (texts) => bpe(texts);
}

function notTokens(received) {
  return new T2RError("token", "tokens: whole numbers of at least 0", received, "use those that the tokenizer gives");
}

function refused(expected, received) {
  return new T2RError("tokenizer", expected, printable(received), "use the model's own tokenizer, or pass token numbers");
}
