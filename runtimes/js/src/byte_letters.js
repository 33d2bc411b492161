/** GPT-2's alphabet (Radford et al. 2019): a printable letter for each byte. */

const LETTERS = [];
let next = 256;
for (let byte = 0; byte < 256; byte++) {
  const shown = (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
  LETTERS.push(String.fromCharCode(shown ? byte : next++));
}
const BYTES = new Map(LETTERS.map((letter, byte) => [letter, byte]));

const utf8 = new TextEncoder();

/** The letters of a text's bytes. */
export function lettersOf(text) {
  let letters = ""; // appending takes a third of the time of Array.from and join
  for (const byte of utf8.encode(text)) letters += LETTERS[byte];
  return letters;
}

/** The byte that a letter stands for, or undefined. */
export function byteOf(letter) {
  return BYTES.get(letter);
}
