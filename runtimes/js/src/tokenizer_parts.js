/** The parts of a tokenizer.json that this runtime supports: contract/text.md. Others are refused by name. */

import { T2RError, isWhole, printable, shown } from "./errors.js";
import { translated } from "./patterns.js";
import { BEHAVIORS } from "./text_splitter.js";
import { MAX_PARTS, MAX_TOKENIZER, requireBounds } from "./tokenizer_bounds.js";

const TYPES = {
  normalizer: ["Sequence", "NFC", "NFD", "NFKC", "NFKD", "Strip", "Prepend", "Replace", "Precompiled"],
  pre_tokenizer: ["Sequence", "ByteLevel", "Metaspace", "Split", "Digits", "Punctuation", "Whitespace", "WhitespaceSplit"],
  decoder: ["Sequence", "ByteLevel", "ByteFallback", "Fuse", "Metaspace", "Replace", "Strip"],
  post_processor: ["Sequence", "TemplateProcessing", "RobertaProcessing", "ByteLevel"],
};
const LISTS = { normalizer: "normalizers", pre_tokenizer: "pretokenizers", decoder: "decoders", post_processor: "processors" };
const NONE_OF = ["continuing_subword_prefix", "end_of_word_suffix", "dropout"]; // unsupported in a BPE

/**
 * @param {string} text a tokenizer.json
 * @returns {object} its content, all parts known and within the bounds, and `pieces`, the ids of its vocabulary
 * @throws {T2RError} tokenizer: malformed, above a bound, or an unknown part, by its name
 */
export function readParts(text) {
  // a UTF-16 code unit has at most 3 bytes of UTF-8
  if (typeof text !== "string" || (text.length * 3 > MAX_TOKENIZER && new TextEncoder().encode(text).length > MAX_TOKENIZER)) {
    throw refused(`the text of a tokenizer.json, of at most ${MAX_TOKENIZER} bytes`, typeof text === "string" ? `${text.length}` : shown(text));
  }
  let found;
  try {
    found = JSON.parse(text);
    // lone surrogates are invalid; JSON.stringify escapes only those
    const halves = /\\u[dD][89a-fA-F]/.test(text) && /\\ud[89a-f]/.test(JSON.stringify(found).replaceAll("\\\\", ""));
    if (halves || !text.isWellFormed()) throw new Error("half a character");
  } catch (error) {
    throw refused("the text of a tokenizer.json", error);
  }
  if (!isObject(found) || !isObject(found.model)) throw refused("a tokenizer.json with a model", "something else");
  const pieces = piecesOf(found.model);
  checkSurfaces(found.model, pieces);
  const places = Object.keys(TYPES), parts = Object.fromEntries(places.map((place) => [place, partsOf(place, found[place] ?? null)]));
  const added = addedOf(found.added_tokens ?? []);
  requireBounds(found.model, pieces, added, parts);
  return { model: found.model, pieces, added_tokens: added, ...Object.fromEntries(places.map((place) => [place, found[place] ?? null])) };
}

function addedOf(added) {
  const isAdded = (token) => isObject(token) && isText(token.content) && isWhole(token.id);
  if (!Array.isArray(added) || !added.every(isAdded)) throw refused("added_tokens as a list of tokens", "something else");
  return added.filter(({ content }) => content).map((token) => ({ ...token, normalized: token.normalized ?? !token.special }));
}

/** The id of each piece of a model, whose form is checked. Merges become ranks, see bpe.js, in place. */
function piecesOf(model) {
  const { type, vocab } = model;
  if (type === "Unigram") {
    const isEntry = (entry) => Array.isArray(entry) && isText(entry[0]) && Number.isFinite(entry[1]);
    if (!Array.isArray(vocab) || !vocab.length || !vocab.every(isEntry)) throw refused("a vocabulary of texts and scores", "something else");
    const { unk_id: unknown } = model;
    if (!isWhole(unknown, 0, vocab.length - 1)) throw refused("a Unigram with unk_id in its vocabulary", shown(unknown));
    return new Map(vocab.map(([text], id) => [text, id]));
  }
  if (type !== undefined && type !== "BPE") throw refused("a model BPE or Unigram", printable(shown(type), 60));
  const strange = NONE_OF.find((key) => model[key]);
  if (strange) throw refused("a BPE without dropout, prefix and suffix", `${strange} ${shown(model[strange])}`);
  const pieces = new Map();
  if (isObject(vocab)) for (const text in vocab) pieces.set(text, vocab[text]); // Object.entries takes twice the time
  else pieces.set("", null);
  for (const id of pieces.values()) if (!isWhole(id)) throw refused("a vocabulary of texts and numbers", "something else");
  model.merges = ranksOf(model.merges, pieces);
  return pieces;
}

/** Check that `surfaces`, if given, has tokens of the vocabulary. */
function checkSurfaces({ surfaces, vocab }, pieces) {
  const count = Array.isArray(vocab) ? vocab.length : pieces.size;
  const good = (surfaces ?? null) === null || (isObject(surfaces) && Object.values(surfaces).every((id) => isWhole(id, 0, count - 1)));
  if (!good) throw refused("surfaces that are tokens", "others");
}

/** The places of merges in their list: Map of left ids to Maps of right ids, which is faster than a Map of pairs. */
function ranksOf(merges, pieces) {
  if (!Array.isArray(merges)) throw refused("merges as a list of pairs", "something else");
  const ranks = new Map();
  merges.forEach((merge, rank) => {
    const [left, right] = pairOf(merge), first = pieces.get(left), second = pieces.get(right);
    if (!left || !right || first === undefined || second === undefined || !pieces.has(left + right)) {
      throw refused("merges of tokens in the vocabulary", printable(`${left} ${right}`, 60));
    }
    if (!ranks.has(first)) ranks.set(first, new Map());
    ranks.get(first).set(second, rank);
  });
  return ranks;
}

/** The two texts of a merge: a list, or a text with a blank between. */
function pairOf(merge) {
  const cut = isText(merge) ? merge.indexOf(" ") : -1;
  const pair = cut >= 0 && merge.indexOf(" ", cut + 1) < 0 ? [merge.slice(0, cut), merge.slice(cut + 1)] : merge;
  if (!Array.isArray(pair) || pair.length !== 2 || !pair.every(isText)) throw refused("merges as a list of pairs", "something else");
  return pair;
}

/** The parts of a component in order, Sequences flattened. */
function partsOf(place, component) {
  const found = [], waiting = component === null ? [] : [component];
  let count = waiting.length;
  while (waiting.length) {
    const part = waiting.pop();
    if (!isObject(part) || !TYPES[place].includes(part.type)) {
      throw refused(`a ${place} of ${TYPES[place].join(", ")}`, isObject(part) && isText(part.type) ? printable(part.type, 60) : shown(part));
    }
    if (part.type === "Sequence") {
      const inner = part[LISTS[place]];
      if (!Array.isArray(inner)) throw refused(`a ${place} Sequence with a list of ${LISTS[place]}`, "something else");
      count += inner.length;
      if (count <= MAX_PARTS) waiting.push(...[...inner].reverse());
    } else {
      checkPart(place, part);
      found.push(part);
    }
    if (count > MAX_PARTS) throw refused(`at most ${MAX_PARTS} parts of a ${place}`, `${count}`);
  }
  return found;
}

const NEEDED = { Prepend: ["prepend"], Replace: ["content"], Metaspace: ["replacement"] };

/** Check the required fields of a part and their types. */
function checkPart(place, part) {
  const { type, pattern, behavior = "Isolated" } = part;
  const needed = [...(NEEDED[type] ?? []), ...(type === "Strip" && place === "decoder" ? ["content"] : [])];
  const strange = needed.find((key) => !isText(part[key]));
  if (strange) throw refused(`a ${type} with a text as its ${strange}`, shown(part[strange]));
  if (type === "Strip" && place === "decoder" && ![part.start ?? 0, part.stop ?? 0].every((count) => isWhole(count))) {
    throw refused("a Strip with numbers as its start and stop", "others");
  }
  if (type === "Precompiled" && !isText(part.precompiled_charsmap ?? "")) throw refused("a Precompiled with a text", "another");
  if (!Object.hasOwn(BEHAVIORS, behavior)) throw refused(`a behavior of ${Object.keys(BEHAVIORS).join(", ")}`, printable(shown(behavior), 40));
  if (type === "TemplateProcessing" || type === "RobertaProcessing") checkProcessor(part);
  if (type !== "Split" && type !== "Replace") return;
  const { String: literal, Regex: regex } = isObject(pattern) ? pattern : {};
  if (regex !== undefined) checkRegex(type, regex);
  if (regex === undefined && !isText(literal)) throw refused(`a pattern in ${type}`, "none");
  if (regex !== undefined && literal !== undefined) throw refused(`one pattern in ${type}`, "two");
}

function checkRegex(type, regex) {
  if (!isText(regex)) throw refused(`a regular expression in ${type}`, shown(regex));
  try {
    translated(regex);
  } catch (error) {
    throw refused(`a regular expression in ${type} that contract/text.md allows`, `${error.message} in ${printable(regex, 60)}`);
  }
}

/** Check that all special tokens are known, around one text. */
function checkProcessor({ type, single, special_tokens: special, cls, sep }) {
  const isPair = (pair) => Array.isArray(pair) && isWhole(pair[1]);
  const isIds = (entry) => isObject(entry) && Array.isArray(entry.ids) && entry.ids.every((id) => isWhole(id));
  const known = new Set(isObject(special) ? Object.keys(special).filter((name) => isIds(special[name])) : []);
  const isPlace = (piece) => isObject(piece) && isObject(piece.Sequence) && piece.SpecialToken === undefined;
  const isSpecial = (piece) => isObject(piece) && isObject(piece.SpecialToken) && piece.Sequence === undefined && known.has(piece.SpecialToken.id);
  const good = type === "RobertaProcessing" ? isPair(cls) && isPair(sep)
    : Array.isArray(single) && single.every((piece) => isPlace(piece) || isSpecial(piece)) && single.filter(isPlace).length === 1;
  if (!good) throw refused(`a ${type} of known special tokens, and one text`, "another");
}

function isObject(value) {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

function isText(value) {
  return typeof value === "string";
}

function refused(expected, received) {
  return new T2RError("tokenizer", expected, printable(received), "use the tokenizer that the model was trained with");
}
