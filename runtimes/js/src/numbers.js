/** Numbers of a text, and their spellings: contract/copies.md. */

const GROUPS = ".,'’\u00a0\u2009\u202f"; // marks between groups of three digits
export const MARKS = `${GROUPS}:/`; // between digits of a number
const NUMBER = new RegExp(`([0-9]+(?:[${MARKS}][0-9]+)*)((?:[ \u00a0]?(?:a\\.m|A\\.M|AM|p\\.m|P\\.M|pm|PM)|am)(?![\\p{L}\\p{N}]))?`, "gu");
const GROUPED = new RegExp(`^([1-9][0-9]{0,2}([${GROUPS}])[0-9]{3}(?:\\2[0-9]{3})*)(?:[.,]([0-9]+))?$`, "u");
const DECIMAL = /^([0-9]+)[.,]([0-9]+)$/;
const TIME = /^([01]?[0-9]|2[0-3])[:.]([0-5][0-9])$/;
const HOUR = /^(?:[01]?[0-9]|2[0-3])$/;
const PARTS = new RegExp( // a date, a fraction, a score
  "(?:0?[1-9]|[12][0-9]|3[01])\\.(?:0?[1-9]|1[0-2])\\.(?:[0-9]{4}|[0-9]{2}|(?= +[\\p{L}\\p{N}_]))|[0-9]+(?:/[0-9]+)+|[0-9]+(?::[0-9]+)+",
  "uy",
);
const WORDS = [ // of 0, 1, …: those of English, then those of German
  "zero null", "one first eins january januar", "two second zwei february februar", "three third drei march märz", "four fourth vier april",
  "five fifth fünf may mai", "six sixth sechs june juni", "seven seventh sieben july juli", "eight eighth acht august", "nine ninth neun september",
  "ten tenth zehn october oktober", "eleven eleventh elf november", "twelve twelfth zwölf december dezember",
];
/** Word → its value, as digits. */
export const VALUES = new Map(WORDS.flatMap((words, value) => words.split(" ").map((word) => [word, `${value}`])));

/**
 * @typedef {object} TextNumber
 * @property {string} text its digits and marks
 * @property {string} half of the day after it: "a", "p" or ""
 * @property {boolean} whole false: a part of a date, a fraction or a score
 */

/** The numbers of a text, in order. @returns {TextNumber[]} */
export function numbers(text) {
  const found = [];
  for (const { 1: number, 2: half, index } of text.matchAll(NUMBER)) {
    PARTS.lastIndex = index;
    const parts = PARTS.exec(text)?.[0].length ?? 0;
    if ((parts === number.length || parts === number.length + 1) && !(number.includes(":") && TIME.test(number))) {
      for (const [run] of number.matchAll(/[0-9]+/g)) found.push({ text: run, half: "", whole: false });
    } else {
      found.push({ text: number, half: half ? half.replace(/^[ \u00a0]/, "")[0].toLowerCase() : "", whole: true });
    }
  }
  return found;
}

/** Texts that are this number, itself first; those with a half of the day end in " p.m" or " a.m". @returns {string[]} */
export function spellings({ text, half, whole }) {
  const found = [text], grouped = GROUPED.exec(text), decimal = DECIMAL.exec(text), time = TIME.exec(text);
  if (grouped) found.push(...withMarks(grouped[1].replace(/[^0-9]/g, ""), grouped[3]));
  else if (decimal) found.push(...withMarks(decimal[1], decimal[2]));
  else if (/^[0-9]+$/.test(text)) found.push(...withMarks(text, undefined));
  if (time) found.push(...clock(Number(time[1]), time[2], half));
  else if (whole && HOUR.test(text)) found.push(...clock(Number(text), "00", half));
  return [...new Set(found)];
}

/** How many of these numbers are not words of a text, each of which is one of them. @returns {number} */
export function unspelled(left, text) {
  const words = new Map();
  for (const [word] of small(text).matchAll(/\p{L}+/gu)) {
    const value = VALUES.get(word);
    if (value !== undefined) words.set(value, (words.get(value) ?? 0) + 1);
  }
  let count = 0;
  for (const number of left) {
    const value = number.text.replace(/^0+(?=.)/, ""), there = words.get(value) ?? 0;
    if (there) words.set(value, there - 1);
    else count++;
  }
  return count;
}

/** A text with small letters for the capitals of Latin, Greek and Cyrillic that have one. @returns {string} */
export function small(text) {
  return text.replace(/[A-Z\u00c0-\u017f\u0391-\u03a9\u0400-\u042f]/g, (letter) => (letter === "\u0130" ? letter : letter.toLowerCase()));
}

/** A number with each mark of decimals and of groups; one of two digits loses its leading zero. */
function* withMarks(whole, decimals) {
  for (const [mark, group] of [".,", ",."]) {
    const fraction = decimals === undefined ? "" : mark + decimals;
    yield whole + fraction;
    if (whole.length > 3 && whole[0] !== "0") yield whole.replace(/[0-9](?=(?:[0-9]{3})+$)/g, `$&${group}`) + fraction;
    if (whole.length === 2 && whole[0] === "0") yield whole[1] + fraction;
  }
}

/** A time on a clock of 24 hours, and of 12 with a half of the day. */
function* clock(hour, minutes, half) {
  if (half) hour = (hour % 12) + (half === "p" ? 12 : 0);
  for (const end of minutes === "00" ? ["", ":00"] : [`:${minutes}`]) {
    yield `${hour}${end}`;
    yield `${hour % 12 || 12}${end}${hour >= 12 ? " p.m" : " a.m"}`;
    if (end && hour < 10) yield `0${hour}${end}`;
  }
}
