/** Names that a translation should copy from its source: contract/copies.md. */

import { VALUES, small } from "./numbers.js";

const LEAST = 3; // letters of a name
const NAMING = new Set("heißt heiße heißen hieß namens".split(" "));
const TITLES = new Set("frau herr herrn familie onkel tante oma opa doktor professor firma".split(" "));
const NOUNS = new Set([ // words before nouns
  "der die das den dem des ein eine einen einem einer eines kein keine keinen keinem keiner mein meine meinen meinem",
  "meiner dein deine deinen deinem deiner sein seine seinen seinem seiner ihr ihre ihren ihrem ihrer unser unsere",
  "unseren unserem unserer euer eure euren eurem eurer im am zum zur beim vom ins ans dieser diese dieses diesen",
  "diesem jeder jede jedes jeden jedem alle aller allen viele vielen einige mehrere sie",
  "montag dienstag mittwoch donnerstag freitag samstag sonntag",
].join(" ").split(" "));

/**
 * Unknown capitalized words of a source, in order, but those after words that come before nouns.
 * @param {string} source
 * @param {(word: string) => boolean} isKnown whether the vocabulary has this word, after a blank, as one token
 * @returns {{word: string, certain: boolean}[]}
 */
export function names(source, isKnown) {
  const found = [];
  let previous = "", earlier = ""; // the two words before, as far as only a blank is between
  let follows = false, end = 0; // whether the previous word is not the first of its sentence; where it ends
  for (const { 0: word, index } of source.matchAll(/[\p{L}\p{N}]+/gu)) {
    const gap = source.slice(end, index), first = !end || /[.!?]/.test(gap), low = small(word);
    if (gap !== " ") previous = earlier = "";
    const known = isKnown(word) || (first && isKnown(low)), capitalized = isCapitalized(word, low);
    if ([...word].length >= LEAST && capitalized && !known && !NOUNS.has(previous)) {
      found.push({ word, certain: NAMING.has(previous) || (follows && previous !== "" && !counts(earlier)) });
    }
    follows = capitalized && (!first || TITLES.has(low));
    [previous, earlier, end] = [low, previous, index + word.length];
  }
  return found;
}

function isCapitalized(word, low) {
  return word[0] !== low[0] && word.slice(1) === low.slice(1);
}

/** Whether what follows is a unit: vier Wochen Gips. */
function counts(word) {
  return VALUES.has(word) || /^[0-9]+$/.test(word);
}
