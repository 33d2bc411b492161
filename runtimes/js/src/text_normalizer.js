/** A text before it is cut, by the `normalizer` of a tokenizer.json, to the letter as the tokenizers library does it. */

import { blanksAfter, blanksBefore } from "./blanks.js";
import { replacing } from "./text_splitter.js";
import { Budget, requireTexts } from "./tokenizer_bounds.js";

const MAX_GRAPHEME = 5; // bytes of a cluster of letters that a map may know as a whole
const SLICE = 1 << 20; // characters
const WINDOW = 128; // characters
const segmenter = new Intl.Segmenter(undefined, { granularity: "grapheme" });
const utf8 = new TextEncoder();

const NORMALIZERS = {
  Sequence: ({ normalizers }) => {
    const all = normalizers.map(normalizerOf);
    return (text) => all.reduce((rest, one) => one(rest), text);
  },
  NFC: () => unicode("NFC"),
  NFD: () => unicode("NFD"),
  NFKC: () => unicode("NFKC"),
  NFKD: () => unicode("NFKD"),
  Strip: ({ strip_left: left = true, strip_right: right = true }) => (text) => {
    const begin = left ? blanksAfter(text, 0) : 0;
    return text.slice(begin, right ? blanksBefore(text, text.length, begin) : text.length);
  },
  Prepend: ({ prepend }) => (text) => (text ? prepend + text : text),
  Replace: ({ pattern, content }) => replacing(pattern, content),
  Precompiled: ({ precompiled_charsmap: map }) => precompiled(map ?? ""),
};

/** @param {object | null} part of a tokenizer.json, within the bounds @returns {(text: string) => string} */
export function normalizerOf(part) {
  if (part === null) return same;
  const change = NORMALIZERS[part.type](part);
  return (text) => requireTexts([change(text)])[0];
}

/** A normalization form of Unicode; of a long text tried in slices first, since one letter may become eighteen. */
function unicode(form) {
  return (text) => {
    const budget = new Budget();
    for (let at = 0; text.length > SLICE && at < text.length; at += SLICE) budget.take(text.slice(at, at + SLICE).normalize(form).length);
    return text.normalize(form);
  };
}

function same(text) {
  return text;
}

/**
 * SentencePiece's map of characters: the length of a double-array trie (Aoe 1989), the trie, and the texts that its leaves
 * point to, each up to a zero.
 */
function precompiled(base64) {
  const bytes = Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0));
  if (!bytes.length) return same;
  const view = new DataView(bytes.buffer);
  const size = bytes.length < 4 ? NaN : view.getUint32(0, true);
  if (!(size % 4 === 0 && 4 + size <= bytes.length && size > 0)) throw new Error("a Precompiled normalizer that is cut off");
  const trie = Uint32Array.from({ length: size / 4 }, (_, n) => view.getUint32(4 + 4 * n, true));
  const texts = bytes.subarray(4 + size);
  const known = new Map(); // what a cluster or letter becomes, of the few that a text has
  const mapped = (part) => {
    if (!known.has(part)) known.set(part, lookedUp(trie, texts, utf8.encode(part)));
    return known.get(part);
  };
  return (text) => {
    const out = [], budget = new Budget();
    const put = (part) => {
      budget.take(part.length);
      out.push(part);
    };
    for (const cluster of clusters(text)) {
      const whole = utf8.encode(cluster).length <= MAX_GRAPHEME ? mapped(cluster) : null;
      if (whole !== null) put(whole);
      else for (const letter of cluster) put(mapped(letter) ?? letter);
    }
    if (known.size > 1 << 16) known.clear();
    return out.join("");
  };
}

/**
 * The grapheme clusters of a text. What Intl.Segmenter takes for a cluster grows with its text, so it is given windows. A window
 * begins where a cluster does, and its last cluster, which may go on behind it, is left to the next one.
 */
function* clusters(text) {
  for (let at = 0, size = WINDOW; at < text.length; ) {
    const end = at + size + (isHigh(text.charCodeAt(at + size - 1)) ? 1 : 0);
    const found = Array.from(segmenter.segment(text.slice(at, end)), ({ segment }) => segment);
    if (end < text.length) found.pop();
    for (const cluster of found) at += cluster.length;
    yield* found;
    size = found.length ? WINDOW : 2 * size;
  }
}

function isHigh(unit) {
  return unit >= 0xd800 && unit < 0xdc00;
}

/** The text of the shortest beginning of `key` that the trie knows; null if it knows none. */
function lookedUp(trie, texts, key) {
  const offset = (unit) => (unit >>> 10) << ((unit & 512) >>> 6);
  let at = offset(trie[0]);
  for (const byte of key) {
    if (byte === 0) return null;
    at ^= byte;
    const unit = trie[at];
    if (unit === undefined || ((unit & 0x800000ff) >>> 0) !== byte) return null;
    at ^= offset(unit);
    if (!((unit >>> 8) & 1)) continue;
    const start = (trie[at] ?? 0) & 0x7fffffff, end = texts.indexOf(0, start);
    return start > texts.length ? null : new TextDecoder("utf-8", { ignoreBOM: true }).decode(texts.subarray(start, end < 0 ? texts.length : end));
  }
  return null;
}
