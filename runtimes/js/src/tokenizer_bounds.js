/** Bounds of a tokenizer.json, computed before any part of it is built: the table of contract/text.md. */

import { T2RError, isWhole, printable } from "./errors.js";

export const MAX_TOKENIZER = 1 << 25; // bytes of its text
export const MAX_PARTS = 64; // of a component, including its Sequences
const MAX_TEXT = 1 << 26; // bytes of a text, and of any part's output
const MAX_ID = (1 << 24) - 1;
const MAX_PIECE = 1 << 12, MAX_UNIGRAM_PIECE = 1 << 8; // bytes; Unigram looks up pieces at every letter of a text
const MAX_ADDED = 1 << 16, MAX_ADDED_BYTES = 1 << 10, MAX_ADDED_TOTAL = 1 << 22;
const MAX_INSERTED = 1 << 8; // bytes that one part looks for, or inserts
const MAX_INSERTED_IDS = 1 << 8;
const MERGING = 16; // cost of a byte in a BPE, in bytes of a Unigram's longest piece
const MAX_WORK = 1 << 10, FREE_WORK = 1 << 24; // per byte of a text; minimum for any text
const MAX_GROWTH = { normalizer: 1 << 12, pre_tokenizer: 1 << 6, decoder: 1 << 6 }; // output bytes per input byte
/** Maximum output bytes per input byte of a part; 1 for parts not listed. */
const GROWTH = {
  normalizer: { NFC: () => 3, NFD: () => 3, NFKC: () => 11, NFKD: () => 11, Replace: ofReplace, Precompiled: ofPrecompiled },
  pre_tokenizer: { ByteLevel: ({ add_prefix_space: prefix = true }) => (prefix ? 4 : 2), Metaspace: ofMetaspace },
  decoder: { ByteLevel: () => 3, Replace: ofReplace },
};

/**
 * @param {object} model of a tokenizer.json, with a checked form
 * @param {Map<string, number>} pieces of its vocabulary, with their ids
 * @param {object[]} added its added tokens
 * @param {Record<string, object[]>} parts of each component, without its Sequences
 * @throws {T2RError} tokenizer
 */
export function requireBounds(model, pieces, added, parts) {
  const unigram = model.type === "Unigram";
  for (const [text, id] of pieces) {
    require(unigram ? MAX_UNIGRAM_PIECE : MAX_PIECE, sizeUpTo(text, MAX_UNIGRAM_PIECE), "bytes of a piece");
    requireId(id);
  }
  const taken = new Set(pieces.values());
  if (taken.size < pieces.size) throw refused("pieces with different ids", "one id for two pieces");
  for (const [component, most] of Object.entries(MAX_GROWTH)) {
    for (const part of parts[component]) requireShort(component, part);
    require(most, growthOf(component, parts[component])(1), `bytes for one from a ${component}`);
  }
  requireAdded(added, pieces, taken, unigram ? model.vocab.length : pieces.size, parts.normalizer);
  requireInserted(parts.post_processor);
}

/** Refuse an added token whose content, normalized, is too long. */
export function requireContent(normalized) {
  require(MAX_ADDED_BYTES, sizeUpTo(normalized, MAX_ADDED_BYTES), "bytes of an added token, normalized");
  return normalized;
}

function requireAdded(added, pieces, taken, count, normalizer) {
  require(MAX_ADDED, added.length, "added tokens");
  const fresh = new Map(), grown = growthOf("normalizer", normalizer);
  let total = 0;
  for (const { content, id, normalized } of added) {
    const size = sizeOf(content);
    require(MAX_ADDED_BYTES, size, "bytes of an added token");
    total += normalized ? grown(size) : size;
    require(MAX_ADDED_TOTAL, total, "bytes of all added tokens, normalized");
    if (!pieces.has(content) && !fresh.has(content)) fresh.set(content, count + fresh.size);
    const expected = pieces.get(content) ?? fresh.get(content);
    if (id !== expected) throw refused(`${expected} as the id of the added token ${printable(content, 40)}`, printable(id, 40));
  }
  for (const id of fresh.values()) {
    requireId(id);
    if (taken.has(id)) throw refused("tokens with different ids", "one id for a piece and an added token");
  }
}

function requireInserted(processors) {
  let count = 0;
  const inserted = (ids) => {
    require(MAX_INSERTED_IDS, (count += ids.length), "ids that a post_processor inserts");
    ids.forEach(requireId);
  };
  for (const { type, single, special_tokens: special, cls, sep } of processors) {
    if (type === "RobertaProcessing") inserted([cls[1], sep[1]]);
    if (type === "TemplateProcessing") for (const { SpecialToken: token } of single) if (token) inserted(special[token.id].ids);
  }
}

function requireShort(component, part) {
  const { type, content, prepend, replacement, pattern } = part;
  for (const text of [content, prepend, replacement, pattern?.String]) {
    if (text !== undefined) require(MAX_INSERTED, sizeUpTo(text, MAX_INSERTED), `bytes in one place of a ${type}`);
  }
  if (type === "Replace" && pattern.String === "") throw refused("a pattern of a Replace that is not empty", "an empty one");
  const one = { Metaspace: replacement, Strip: component === "decoder" ? content : undefined }[type];
  if (one !== undefined && Array.from(one).length !== 1) throw refused(`one character in a ${type}`, printable(one, 40));
}

/** Returns a function from input bytes to maximum output bytes of all parts. */
function growthOf(component, parts) {
  const steps = parts.map((part) => {
    if (part.type === "Prepend") return [1, sizeOf(part.prepend)];
    return [GROWTH[component][part.type]?.(part) ?? 1, 0];
  });
  return (size) => steps.reduce((bytes, [times, more]) => bytes * times + more, size);
}

function ofReplace({ pattern, content }) {
  return Math.max(1, sizeOf(content) / (pattern.String === undefined ? 1 : sizeOf(pattern.String)));
}

/** The longest replacement; they follow the trie, zero-terminated. */
function ofPrecompiled({ precompiled_charsmap: map }) {
  const bytes = atob(map ?? ""), trie = [3, 2, 1, 0].reduce((all, n) => 256 * all + bytes.charCodeAt(n), 0);
  let longest = 1;
  for (let start = 4 + trie; start < bytes.length; ) {
    const end = bytes.indexOf("\0", start), next = end < 0 ? bytes.length : end;
    longest = Math.max(longest, next - start);
    start = next + 1;
  }
  return longest;
}

function ofMetaspace({ replacement, prepend_scheme: scheme }) {
  return sizeOf(replacement) * (scheme === "never" ? 1 : 2);
}

/** A part's outputs of all texts, as one list. @throws {T2RError} tokenizer: more than the bound, before all of it is made */
export function madeOf(texts, part) {
  const out = [], budget = new Budget();
  texts.forEach((text, n) => {
    for (const made of part(text, n)) {
      budget.take(made.length);
      out.push(made);
    }
  });
  return requireTexts(out);
}

/** Refuse texts whose total exceeds the bound. @throws {T2RError} tokenizer */
export function requireTexts(texts) {
  const units = texts.reduce((all, text) => all + text.length, 0);
  if (3 * units > MAX_TEXT) requireSmall(texts.reduce((all, text) => all + sizeOf(text), 0));
  return texts;
}

/** Throws as soon as the total must exceed the bound: a code unit is a byte or more. */
export class Budget {
  #units = 0;

  take(units) {
    requireSmall((this.#units += units));
  }
}

function requireSmall(bytes) {
  require(MAX_TEXT, bytes, "bytes of a text, and of what any part makes of it");
}

/** How often a model visits each byte that reaches it. */
export function looksOf({ type }, pieces) {
  if (type !== "Unigram") return MERGING;
  let longest = 1;
  for (const text of pieces.keys()) longest = Math.max(longest, sizeOf(text));
  return longest;
}

/** Returns a function that bounds the texts that reach a model while one is encoded. @throws {T2RError} tokenizer: too much work */
export function workOf(text, looks) {
  const most = Math.floor(Math.max(FREE_WORK, MAX_WORK * sizeOf(text)) / looks);
  let made = 0;
  return (texts) => {
    for (const one of texts) require(most, (made += sizeOf(one)), "bytes that reach the model of a tokenizer");
    return texts;
  };
}

/** Bytes of a text as UTF-8. */
function sizeOf(text) {
  let bytes = text.length;
  for (let n = 0; n < text.length; n++) {
    const unit = text.charCodeAt(n);
    if (unit > 0x7f) bytes += unit > 0x7ff && (unit < 0xd800 || unit > 0xdfff) ? 2 : 1; // a surrogate: half of four bytes
  }
  return bytes;
}

/** As sizeOf, or a lower bound if the size is at most `most`. */
function sizeUpTo(text, most) {
  return 3 * text.length <= most ? text.length : sizeOf(text);
}

function requireId(id) {
  if (!isWhole(id, 0, MAX_ID)) throw refused(`token ids in 0 … ${MAX_ID}`, printable(id, 40));
}

function require(most, number, what) {
  if (!(number <= most)) throw refused(`at most ${most} ${what}`, `${Math.ceil(number)}`);
}

function refused(expected, received) {
  return new T2RError("tokenizer", expected, received, "use the tokenizer that the model was trained with");
}
