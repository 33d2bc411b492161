/** White space at the ends of a text, looked at letter by letter: a regular expression may try again from every blank. */

import { work } from "./trie.js";

const BLANK = /\p{White_Space}/u; // each of them is one code unit

/** Where the blanks before a place begin, not below `least`. */
export function blanksBefore(text, place, least = 0) {
  const from = place;
  while (place > least && BLANK.test(text[place - 1])) place--;
  work.letters += from - place + 1;
  return place;
}

/** Where the blanks behind a place end. */
export function blanksAfter(text, place) {
  const from = place;
  while (place < text.length && BLANK.test(text[place])) place++;
  work.letters += place - from + 1;
  return place;
}
