/** Tokens that are found before a text is cut: `added_tokens` of a tokenizer.json, the longest first. */

import { LETTER } from "./text_splitter.js";

const ENDS_WITH_LETTER = new RegExp(`[${LETTER}]$`, "u"), STARTS_WITH_LETTER = new RegExp(`^[${LETTER}]`, "u");

export class AddedTokens {
  #plain;
  #normalized;
  #normalize;

  /** @param {object[]} added tokens of a tokenizer.json @param {(text: string) => string} normalize */
  constructor(added, normalize) {
    this.#normalize = normalize;
    this.#plain = finder(added.filter((token) => !token.normalized).map((token) => [token.content, token]));
    this.#normalized = finder(added.filter((token) => token.normalized).map((token) => [normalize(token.content), token]));
  }

  /**
   * The text, normalized, around the tokens that were found in it.
   * @returns {(number | {text: string, first: boolean})[]} their ids, and what lies between; whether it begins the text
   */
  split(text) {
    const out = [];
    let first = true;
    for (const part of this.#plain(text)) {
      if (typeof part === "number") out.push(part);
      else {
        let inner = first;
        for (const rest of this.#normalized(this.#normalize(part))) {
          out.push(typeof rest === "number" ? rest : { text: rest, first: inner });
          inner = false;
        }
      }
      first = false;
    }
    return out;
  }
}

/** What finds these tokens in a text: their ids and the texts between them, in order. */
function finder(entries) {
  const tokens = new Map(entries.filter(([content]) => content).reverse()); // of equals the first
  if (!tokens.size) return (text) => (text ? [text] : []);
  const longest = [...tokens.keys()].sort((a, b) => b.length - a.length);
  const pattern = new RegExp(longest.map((content) => content.replace(/[\\^$.*+?()[\]{}|/]/g, "\\$&")).join("|"), "gu");
  return (text) => {
    const out = [];
    let end = 0;
    for (const match of text.matchAll(pattern)) {
      const { id, single_word: single, lstrip, rstrip } = tokens.get(match[0]);
      let start = match.index, stop = start + match[0].length;
      if (single && (ENDS_WITH_LETTER.test(before(text, start)) || STARTS_WITH_LETTER.test(text.slice(stop, stop + 2)))) continue;
      if (lstrip) start = Math.max(end, spacesBefore(text, start));
      if (rstrip) stop += /^\p{White_Space}*/u.exec(text.slice(stop))[0].length;
      if (start > end) out.push(text.slice(end, start));
      out.push(id);
      end = stop;
    }
    if (end < text.length) out.push(text.slice(end));
    return out;
  };
}

/** The letter before a place. */
function before(text, place) {
  return Array.from(text.slice(Math.max(0, place - 2), place)).at(-1) ?? "";
}

function spacesBefore(text, place) {
  while (place > 0 && /\p{White_Space}/u.test(text[place - 1])) place--;
  return place;
}
