/** Splits a text by the `pre_tokenizer` of a tokenizer.json, as the tokenizers library does. */

import { lettersOf } from "./byte_letters.js";
import { translated } from "./patterns.js";
import { Budget, madeOf } from "./tokenizer_bounds.js";

// two characters of Unicode 8's punctuation have left that category
const PUNCTUATION = /[\p{P}!-/:-@[-`{-~\u166d\u{111c9}]/gu;
const WORDS = String.raw`'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`; // of GPT-2

/** A pattern of a tokenizer.json as a global regular expression. */
function patternOf({ String: text, Regex: regex }) {
  return new RegExp(regex === undefined ? text.replace(/[\\^$.*+?()[\]{}|/]/g, "\\$&") : translated(regex), "gu");
}

/** Returns a function that replaces a pattern with a text. */
export function replacing(pattern, content) {
  const wanted = patternOf(pattern);
  return (text) => {
    const budget = new Budget();
    return text.replaceAll(wanted, () => {
      budget.take(content.length);
      return content;
    });
  };
}

const SPLITTERS = {
  Sequence: ({ pretokenizers }) => {
    const all = pretokenizers.map(splitterOf);
    return (parts, first) => all.reduce((found, one) => one(found, first), parts);
  },
  ByteLevel: ({ add_prefix_space: prefix = true, use_regex: cut = true }) => {
    const words = patternOf({ String: undefined, Regex: WORDS });
    return each((text) => {
      const whole = prefix && !text.startsWith(" ") ? ` ${text}` : text;
      const found = cut ? split(whole, words, "Isolated") : [whole];
      return found.map(lettersOf);
    });
  },
  Metaspace: ({ replacement, prepend_scheme: scheme, add_prefix_space: prefix, split: cut = true }) => {
    const mark = patternOf({ String: replacement, Regex: undefined }), prepend = scheme ?? (prefix === false ? "never" : "always");
    return (parts, first) =>
      madeOf(parts, (text, n) => {
        const spaced = text.replaceAll(" ", replacement);
        const begins = prepend === "always" || (prepend === "first" && first && n === 0);
        const whole = begins && !spaced.startsWith(replacement) ? replacement + spaced : spaced;
        return cut ? split(whole, mark, "MergedWithNext") : [whole];
      });
  },
  Split: ({ pattern, behavior, invert }) => {
    const wanted = patternOf(pattern);
    return each((text) => split(text, wanted, behavior, invert));
  },
  Digits: ({ individual_digits: single }) => each((text) => split(text, /\p{N}/gu, single ? "Isolated" : "Contiguous")),
  Punctuation: ({ behavior = "Isolated" }) => each((text) => split(text, PUNCTUATION, behavior)),
  Whitespace: () => each((text) => text.match(WORD) ?? []),
  WhitespaceSplit: () => each((text) => split(text, /\p{White_Space}/gu, "Removed")),
};
/** Letters of a word, for use inside [] of a regular expression. */
export const LETTER = String.raw`\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\p{Join_Control}`;
const WORD = new RegExp(`[${LETTER}]+|[^${LETTER}\\p{White_Space}]+`, "gu");

/**
 * @param {object | null} part of a tokenizer.json
 * @returns {(parts: string[], first: boolean) => string[]} `first`: whether they are the beginning of a text
 */
export function splitterOf(part) {
  return part === null ? (parts) => parts : SPLITTERS[part.type](part);
}

function each(cut) {
  return (parts) => madeOf(parts, cut);
}

/** Split a text at a pattern; `behavior`, by the library's name, treats the matches. */
function split(text, pattern, behavior, invert = false) {
  const found = []; // [text, whether it is a match]
  let end = 0;
  for (const match of text.matchAll(pattern)) {
    if (match.index > end) found.push([text.slice(end, match.index), invert]);
    if (match[0]) found.push([match[0], !invert]);
    end = match.index + match[0].length;
  }
  if (end < text.length) found.push([text.slice(end), invert]);
  return BEHAVIORS[behavior](found);
}

export const BEHAVIORS = {
  Removed: (found) => found.filter(([, match]) => !match).map(([text]) => text),
  Isolated: (found) => found.map(([text]) => text),
  Contiguous: (found) => joined(found, (match, before) => match === before),
  MergedWithPrevious: (found) => joined(found, (match, before) => match && !before),
  MergedWithNext: (found) => joined([...found].reverse(), (match, before) => match && !before, true).reverse(),
};

function joined(found, goesOn, reversed = false) {
  const out = [];
  let before = false;
  for (const [text, match] of found) {
    if (out.length && goesOn(match, before)) out.push(reversed ? text + out.pop() : out.pop() + text);
    else out.push(text);
    before = match;
  }
  return out;
}
