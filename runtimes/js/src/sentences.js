/** Sentences of a text: contract/translators.md. */

// end marks and closing quotes, followed by white space except in Chinese and Japanese; else white space alone
const GAP = /((?<![.!?…])[.!?…]+["'”’“‘»«)\]]*(?=\p{White_Space})|[。！？]+[」』”’）]*)\p{White_Space}*|\p{White_Space}+/gu;
const OPENING = /^["'„“”‚‘’«»([¿¡\-–—]+/u;
const SMALL = /["'„“”‚‘’«»([¿¡\-–—]*\p{Lowercase}/uy;
const ABBREVIATIONS = new Set([
  "mr mrs ms dr prof st vs etc inc ltd co jr sr fig vol pp approx dept gen col capt sgt rev hon",
  "bzw ca evtl ggf inkl exkl nr usw vgl bd hr dipl ing jh mio mrd tel sog geb gest str tsd bspw zzgl abb",
  "jan feb mar apr jun jul aug sep sept oct okt nov dec dez mme mlle mm cf av env sra srta dña ud uds",
].join(" ").split(" "));

/**
 * Split a text into sentences, without white space around them.
 * @param {string} text
 * @returns {string[]}
 */
export function splitSentences(text) {
  const found = [];
  let begin = 0, word = 0; // where the sentence and the word begin
  for (const { 0: gap, 1: marks = "", index } of text.matchAll(GAP)) {
    const after = index + gap.length;
    if ((index === begin && !marks) || after === text.length || ends(text, text.slice(word, index), gap, marks, after)) {
      found.push(text.slice(begin, index + marks.length));
      begin = after;
    }
    word = after;
  }
  return [...found, text.slice(begin)].filter(Boolean);
}

/** Whether a sentence ends with this word, its marks and the gap after it. */
function ends(text, word, gap, marks, after) {
  if (gap.split("\n").length > 2) return true;
  SMALL.lastIndex = after;
  if (!marks || SMALL.test(text)) return false;
  const bare = word.replace(OPENING, "");
  const isOpen = /^\p{Nd}+$/u.test(bare) || [...bare].length === 1 || bare.includes(".") || ABBREVIATIONS.has(bare.toLowerCase());
  return marks !== "." || !isOpen;
}
