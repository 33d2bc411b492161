/** Scans white space letter by letter: a regular expression may retry from every blank. */

import { work } from "./trie.js";

const BLANK = /\p{White_Space}/u; // each match is one code unit

/** Start of the blanks before `place`, at least `least`. */
export function blanksBefore(text, place, least = 0) {
  const from = place;
  while (place > least && BLANK.test(text[place - 1])) place--;
  work.letters += from - place + 1;
  return place;
}

/** End of the blanks after `place`. */
export function blanksAfter(text, place) {
  const from = place;
  while (place < text.length && BLANK.test(text[place])) place++;
  work.letters += place - from + 1;
  return place;
}
