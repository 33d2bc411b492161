/** The parts of a tokenizer.json that this runtime takes: CONTRACT.md, "Text". What else there is, is refused by name. */

import { T2RError, printable } from "./errors.js";
import { BEHAVIORS, REGEXES } from "./text_splitter.js";

const MAX_DEPTH = 16;
const MAX_PARTS = 256;
const MAX_ADDED = 1 << 16;
const MAX_SPECIAL = 64; // special tokens around a text
const MAX_INSERTED = 100; // characters that one part puts in a place
const MAX_GROWTH = 1 << 16; // of all of them together
const TYPES = {
  normalizer: ["Sequence", "NFC", "NFD", "NFKC", "NFKD", "Strip", "Prepend", "Replace", "Precompiled"],
  pre_tokenizer: ["Sequence", "ByteLevel", "Metaspace", "Split", "Digits", "Punctuation", "Whitespace", "WhitespaceSplit"],
  decoder: ["Sequence", "ByteLevel", "ByteFallback", "Fuse", "Metaspace", "Replace", "Strip"],
  post_processor: ["Sequence", "TemplateProcessing", "RobertaProcessing", "ByteLevel"],
};
const LISTS = { normalizer: "normalizers", pre_tokenizer: "pretokenizers", decoder: "decoders", post_processor: "processors" };

/**
 * @param {string} text a tokenizer.json
 * @returns {object} what it says, all of whose parts are known
 * @throws {T2RError} tokenizer: malformed, or a part that is not known here, by its name
 */
export function readParts(text) {
  let found;
  try {
    found = JSON.parse(text);
  } catch (error) {
    throw refused("the text of a tokenizer.json", error);
  }
  if (!isObject(found) || !isObject(found.model)) throw refused("a tokenizer.json with a model", "something else");
  checkModel(found.model);
  for (const place of Object.keys(TYPES)) checkParts(place, found[place] ?? null);
  const added = found.added_tokens ?? [];
  const isAdded = (token) => isObject(token) && typeof token.content === "string" && token.content !== "" && isId(token.id);
  if (!Array.isArray(added) || added.length > MAX_ADDED || !added.every(isAdded)) {
    throw refused("added_tokens as a list of tokens", "something else");
  }
  return { ...found, added_tokens: added, ...Object.fromEntries(Object.keys(TYPES).map((place) => [place, found[place] ?? null])) };
}

function checkModel(model) {
  const { type, vocab } = model;
  if (type === "Unigram") {
    const isEntry = (entry) => Array.isArray(entry) && typeof entry[0] === "string" && Number.isFinite(entry[1]);
    if (!Array.isArray(vocab) || !vocab.length || !vocab.every(isEntry)) throw refused("a vocabulary of texts and scores", "something else");
    const { unk_id: unknown } = model;
    if (!(isId(unknown) && unknown < vocab.length)) throw refused("a Unigram with unk_id in its vocabulary", printable(unknown, 40));
    return;
  }
  if (type !== undefined && type !== "BPE") throw refused("a model BPE or Unigram", printable(type, 60));
  const parts = ["continuing_subword_prefix", "end_of_word_suffix"];
  const strange = parts.find((key) => model[key]) ?? (model.dropout ? "dropout" : undefined);
  if (strange) throw refused("a BPE without dropout, prefix and suffix", `${strange} ${printable(model[strange], 40)}`);
  if (!isObject(vocab) || !Object.values(vocab).every(isId)) throw refused("a vocabulary of texts and numbers", "something else");
  const isMerge = (merge) =>
    typeof merge === "string" ? merge.indexOf(" ") > 0 : Array.isArray(merge) && merge.length === 2 && merge.every(isText);
  if (!Array.isArray(model.merges) || !model.merges.every(isMerge)) throw refused("merges as a list of pairs", "something else");
  for (const merge of model.merges) {
    const [left, right] = typeof merge === "string" ? merge.split(" ") : merge;
    if (![left, right, left + right].every((token) => Object.hasOwn(vocab, token))) {
      throw refused("merges of tokens in the vocabulary", printable(`${left} ${right}`, 60));
    }
  }
}

function checkParts(place, component) {
  let count = 0, growth = 1;
  const visit = (part, depth) => {
    if (!isObject(part) || !TYPES[place].includes(part.type)) {
      const names = TYPES[place].join(", ");
      throw refused(`a ${place} of ${names}`, printable(isObject(part) ? part.type : part, 60));
    }
    if (++count > MAX_PARTS || depth > MAX_DEPTH) throw refused(`at most ${MAX_PARTS} parts of a ${place}`, "more");
    if (part.type === "Sequence") {
      const inner = part[LISTS[place]];
      if (!Array.isArray(inner)) throw refused(`a ${place} Sequence with a list of ${LISTS[place]}`, "something else");
      inner.forEach((one) => visit(one, depth + 1));
    } else {
      growth *= checkPart(place, part);
    }
    if (growth > MAX_GROWTH) throw refused(`at most ${MAX_GROWTH} characters for one from a ${place}`, "parts that write more");
  };
  if (component !== null) visit(component, 0);
}

/** How many characters a part may write for one, by what it says. */
function checkPart(place, part) {
  for (const key of ["content", "prepend", "replacement"]) {
    if (part[key] !== undefined && (typeof part[key] !== "string" || [...part[key]].length > MAX_INSERTED)) {
      throw refused(`at most ${MAX_INSERTED} characters in one place from a ${place}`, `${part.type} with others`);
    }
  }
  const { behavior = "Isolated" } = part;
  if (!Object.hasOwn(BEHAVIORS, behavior)) throw refused(`a behavior of ${Object.keys(BEHAVIORS).join(", ")}`, printable(behavior, 40));
  if (part.type === "TemplateProcessing" || part.type === "RobertaProcessing") checkProcessor(part);
  if (part.type !== "Split" && part.type !== "Replace") return 1;
  const { String: literal, Regex: regex } = isObject(part.pattern) ? part.pattern : {};
  if (regex !== undefined && !REGEXES.has(regex)) throw refused(`a known regular expression in ${part.type}`, printable(regex, 60));
  if (regex === undefined && typeof literal !== "string") throw refused(`a pattern in ${part.type}`, "none");
  const content = part.type === "Replace" ? part.content?.length ?? 0 : 0;
  return Math.max(1, literal ? content / literal.length : 1 + content);
}

/** Special tokens around a text: known ones, and few. */
function checkProcessor({ type, single, special_tokens: special, cls, sep }) {
  const isPair = (pair) => Array.isArray(pair) && isId(pair[1]);
  const isIds = (entry) => isObject(entry) && Array.isArray(entry.ids) && entry.ids.length <= MAX_SPECIAL && entry.ids.every(isId);
  const isPiece = (piece) => isObject(piece) && (isObject(piece.Sequence) ||
    (isObject(piece.SpecialToken) && isObject(special) && Object.hasOwn(special, piece.SpecialToken.id) && isIds(special[piece.SpecialToken.id])));
  const good = type === "RobertaProcessing" ? isPair(cls) && isPair(sep)
    : Array.isArray(single) && single.length <= MAX_SPECIAL && single.every(isPiece) && single.filter((piece) => piece.Sequence).length <= 1;
  if (!good) throw refused(`a ${type} of known special tokens, and one text`, "another");
}

function isObject(value) {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

function isText(value) {
  return typeof value === "string";
}

function isId(value) {
  return Number.isInteger(value) && value >= 0 && value < 2 ** 31;
}

function refused(expected, received) {
  return new T2RError("tokenizer", expected, printable(received), "use the tokenizer that the model was trained with");
}
