/** Tokens that are found before a text is cut: `added_tokens` of a tokenizer.json, the longest first. */

import { blanksAfter, blanksBefore } from "./blanks.js";
import { LETTER } from "./text_splitter.js";
import { Budget } from "./tokenizer_bounds.js";
import { Trie } from "./trie.js";

const ENDS_WITH_LETTER = new RegExp(`[${LETTER}]$`, "u"), STARTS_WITH_LETTER = new RegExp(`^[${LETTER}]`, "u");

export class AddedTokens {
  #plain;
  #normalized;
  #normalize;

  /**
   * @param {object[]} added tokens of a tokenizer.json
   * @param {string[]} contents what each is in a text: as it is written, or normalized
   * @param {(text: string) => string} normalize
   */
  constructor(added, contents, normalize) {
    const entries = added.map((token, n) => [contents[n], token]);
    this.#normalize = normalize;
    this.#plain = finder(entries.filter(([, token]) => !token.normalized));
    this.#normalized = finder(entries.filter(([, token]) => token.normalized));
  }

  /**
   * The text, normalized, around the tokens that were found in it.
   * @returns {(number | {text: string, first: boolean})[]} their ids, and what lies between; whether it begins the text
   */
  split(text) {
    const out = [], budget = new Budget();
    let first = true;
    for (const part of this.#plain(text)) {
      if (typeof part === "number") out.push(part);
      else {
        let inner = first;
        const whole = this.#normalize(part);
        budget.take(whole.length);
        for (const rest of this.#normalized(whole)) {
          out.push(typeof rest === "number" ? rest : { text: rest, first: inner });
          inner = false;
        }
      }
      first = false;
    }
    return out;
  }
}

/** What finds these tokens in a text: their ids and the texts between them, in order. Each letter is looked at a few times. */
function finder(entries) {
  const tokens = entries.filter(([content]) => content).reverse(); // of equals the first
  if (!tokens.length) return (text) => (text ? [text] : []);
  const trie = new Trie(tokens), beginnings = new Set(tokens.map(([content]) => content.charCodeAt(0)));
  const begins = new RegExp(`[${Array.from(beginnings, (unit) => `\\u${unit.toString(16).padStart(4, "0")}`).join("")}]`, "g");
  return (text) => {
    const out = [];
    let end = 0, blanksEnd = 0;
    for (const [from, to, { id, single_word: single, lstrip, rstrip }] of occurrences(text, begins, trie)) {
      if (single && (ENDS_WITH_LETTER.test(before(text, from)) || STARTS_WITH_LETTER.test(text.slice(to, to + 2)))) continue;
      const start = lstrip ? Math.max(end, blanksBefore(text, from, end)) : from;
      // tokens of blanks may lie inside of what another has stripped: those end where it does
      if (rstrip && blanksEnd <= to) blanksEnd = blanksAfter(text, to);
      if (start > end) out.push(text.slice(end, start));
      out.push(id);
      end = rstrip ? blanksEnd : to;
    }
    if (end < text.length) out.push(text.slice(end));
    return out;
  };
}

/** Where the tokens of a trie are, the longest at each place, none over another: [start, end, token]. */
function* occurrences(text, begins, trie) {
  for (let at = 0; ; ) {
    begins.lastIndex = at;
    const candidate = begins.exec(text);
    if (!candidate) return;
    const found = trie.longest(text, candidate.index);
    if (found) yield [candidate.index, found.end, found.value];
    at = found ? found.end : candidate.index + 1;
  }
}

/** The letter before a place. */
function before(text, place) {
  return Array.from(text.slice(Math.max(0, place - 2), place)).at(-1) ?? "";
}
