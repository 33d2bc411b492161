/** GPT-2's alphabet (Radford et al. 2019): a printable letter for each byte. */

const LETTERS = [];
let next = 256;
for (let byte = 0; byte < 256; byte++) {
  const shown = (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
  LETTERS.push(String.fromCharCode(shown ? byte : next++));
}
const BYTES = new Map(LETTERS.map((letter, byte) => [letter, byte]));

export function letterOf(byte) {
  return LETTERS[byte];
}

/** The byte that a letter stands for, or undefined. */
export function byteOf(letter) {
  return BYTES.get(letter);
}
