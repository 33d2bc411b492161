/** Text to tokens and back, with the tokenizer that travels inside the graph: contract/text.md. */

import { BPE } from "@huggingface/tokenizers";

import { AddedTokens } from "./added_tokens.js";
import { isList, numbersOf } from "./arguments.js";
import { T2RError, isWhole, printable, shown } from "./errors.js";
import { processorOf } from "./post_processor.js";
import { decodeTokens } from "./text_decoder.js";
import { normalizerOf } from "./text_normalizer.js";
import { splitterOf } from "./text_splitter.js";
import { looksOf, requireContent, requireTexts, workOf } from "./tokenizer_bounds.js";
import { readParts } from "./tokenizer_parts.js";
import { Unigram } from "./unigram.js";

const UNFINISHED = /(?<!\ufffd)\ufffd+$/; // what a decoder writes for bytes that are no character, or not yet one
const MAX_UNFINISHED = 16; // characters: a longer row of these will never be any
const CONTEXT = 32; // tokens of a prompt that may matter for the text of the next one

export class Tokenizer {
  #added;
  #split;
  #pieces;
  #looks;
  #process;
  #decoder;
  #bos;
  #ids; // of each text
  #written; // what each id decodes to, special ones left out; an added token that is normalized is written as it is found
  #unknown;

  /**
   * @param {string} text a tokenizer.json
   * @param {number | null} bos stands in for an empty text
   * @throws {T2RError} tokenizer
   */
  constructor(text, bos = null) {
    const parts = readParts(text);
    if (bos !== null && !isWhole(bos)) throw refused("a token as bos, or null", shown(bos));
    this.#bos = bos;
    this.#decoder = parts.decoder;
    const { model, pieces, added_tokens: added } = parts, { type, vocab, unk_id: id, unk_token: token } = model;
    this.#ids = new Map(pieces);
    for (const one of added) this.#ids.set(one.content, one.id);
    this.#unknown = type === "Unigram" ? id : this.#ids.get(token);
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
      this.#pieces = piecesOf(model);
      this.#looks = looksOf(model, pieces);
    } catch (error) {
      throw error instanceof T2RError ? error : refused("the text of a tokenizer.json", error);
    }
  }

  /** The tokenizer of a graph's metadata. @throws {T2RError} tokenizer: there is none, or one with an unknown part */
  static of(signature) {
    if (typeof signature !== "object" || signature === null) throw refused("the signature of a graph", shown(signature));
    const { tokenizer, bos_token } = signature;
    if (tokenizer === null) throw refused("a graph with a tokenizer in it", "one without");
    return new Tokenizer(tokenizer, bos_token ?? null);
  }

  /** Token numbers, with the special tokens around a text unless told otherwise. An empty text is the BOS token. */
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
    return pieces.map((piece) => this.#ids.get(piece) ?? this.#unknown).filter((id) => id !== undefined);
  }

  /** The text of tokens, without special ones. */
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

  /** Text of the tokens that follow a prompt, as they come: `feed` each, and `end` at last. */
  stream(prompt = []) {
    if (!isList(prompt) && typeof prompt?.[Symbol.iterator] !== "function") throw notTokens(shown(prompt));
    return new TextStream(this, numbersOf(isList(prompt) ? prompt : [...prompt], "tokens of a prompt"));
  }
}

/**
 * Turns tokens into text one by one, and never hands out half a character: new tokens are decoded together with a few
 * before them (the context, whose text is out already), and what may wait for its last bytes stays inside.
 */
class TextStream {
  #tokenizer;
  #context;
  #before;
  #pending;
  #given;

  constructor(tokenizer, prompt) {
    this.#tokenizer = tokenizer;
    const tail = prompt.slice(-CONTEXT); // not beginning inside a character
    const cuts = [0, 1, 2, 3].map((skipped) => tail.slice(skipped));
    this.#startFrom(cuts.find((cut) => !tokenizer.decode(cut).startsWith("\ufffd")) ?? tail);
  }

  /** The text that a token completes; "" if it completes none. */
  feed(token) {
    if (!isWhole(token)) throw notTokens(shown(token));
    this.#pending.push(token);
    const fresh = this.#new();
    let whole = fresh.replace(UNFINISHED, "");
    if (fresh.length - whole.length > MAX_UNFINISHED) whole = fresh;
    const out = whole.slice(this.#given);
    this.#given = Math.max(this.#given, whole.length);
    if (fresh && whole === fresh) this.#startFrom(this.#pending);
    return out;
  }

  /** What was still waiting for the rest of a character. */
  end() {
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
    return this.#tokenizer.decode(this.#pending); // bytes that spoil the context's last ones: alone they read right
  }
}

/** What cuts texts to tokens of the vocabulary. */
function piecesOf(model) {
  if (model.type === "Unigram") {
    const unigram = new Unigram(model);
    return (texts) => texts.flatMap((text) => unigram.encode(text));
  }
  const bpe = new BPE(model);
  return (texts) => bpe(texts);
}

function notTokens(received) {
  return new T2RError("token", "tokens: whole numbers of at least 0", received, "use those that the tokenizer gives");
}

function refused(expected, received) {
  return new T2RError("tokenizer", expected, printable(received), "use the model's own tokenizer, or give token numbers");
}
