/**
 * The regular expressions of a tokenizer.json: the grammar and the rules of contract/text.md, and their JavaScript
 * equivalents. RegExp matches by backtracking; the rules bound its work by a constant per character of the text.
 */

const MAX = { bytes: 4096, branches: 32, steps: 16, count: 64, ways: 64 };
const SPACE = String.raw`\p{White_Space}`; // JavaScript's \s matches one more
const CLASSES = { s: SPACE, S: String.raw`\P{White_Space}`, d: String.raw`\p{Nd}`, D: String.raw`\P{Nd}` };
const CATEGORIES = "L|Lu|Ll|Lt|Lm|Lo|M|Mn|Mc|Me|N|Nd|Nl|No|P|Pc|Pd|Ps|Pe|Pi|Pf|Po|S|Sm|Sc|Sk|So|Z|Zs|Zl|Zp";
const LIGATURES = ["ss", "st", "ff", "fi", "fl"]; // regardless of case, each equals one other character of Unicode
const FOLDED = { s: "\u017f", k: "\u212a" };
const CONTROLS = { r: "\r", n: "\n", t: "\t" };
const IN_VAIN = "a run that may be read in vain";

const CLASS = String.raw`\\[sSdD]|\\[pP]\{\^?(?:${CATEGORIES})\}`;
const ESCAPE = String.raw`\\(?:[rnt]|[!-\/:-@\[-^\x60{-~])`;
const LISTED = String.raw`(?:${ESCAPE}|[^\\\[\]&\-]|&(?!&))`;
const ITEM = String.raw`${CLASS}|${LISTED}(?:-${LISTED})?`;
const INNER = String.raw`\[(?!\^|:)(?:-|-?(?:${ITEM})+-?)\]`;
const SET = String.raw`(?:${CLASS}|${ESCAPE}|\[(?:\^|(?!\^))(?:-|-?(?:${ITEM}|${INNER})+-?)\]|[^\\|()\[\]{}^$.*+?])`;
const WORDS = new RegExp(String.raw`\(\?(i?):(${SET}+(?:\|${SET}+)*)\)(\??)`, "uy");
const PLACE = new RegExp(String.raw`\(\?([=!])(${SET})\)|[\^$]`, "uy");
const COUNTED = new RegExp(String.raw`(${SET})(?:([?*+])(\+?)|\{(\d{1,2})(?:(,)(\d{1,2})?)?\})?`, "uy");
const SETS = new RegExp(SET, "gu"), ITEMS = new RegExp(String.raw`${ITEM}|[\[\]\-]`, "gu"), RANGE = new RegExp(`^(${LISTED})-(${LISTED})$`, "u");

/**
 * @param {string} pattern
 * @returns {string} its JavaScript equivalent, for the flag u
 * @throws {Error} it is not one of the contract's; the message says why
 */
export function translated(pattern) {
  const branches = parsed(pattern);
  branches.forEach((branch, n) => {
    const run = scanned(branch);
    if (run < 0 || closesItself(branch, run)) return;
    if (n + 1 === branches.length) {
      if (!isEdge(branches, run)) throw new Error(IN_VAIN);
      branch[0].code = `(?<!${setOf(branch[0].source)})${branch[0].code}`; // a run that fails at its beginning fails inside
      return;
    }
    const next = branches[n + 1], upTo = (steps) => steps.slice(0, run).map(({ kind, source, least, most, possessive }) => [kind, source, least, most, possessive]).join("\0");
    const paid = next.length > run && next[run].most === Infinity && next[run].source === branch[run].source && upTo(next) === upTo(branch);
    if (!paid) throw new Error(IN_VAIN);
  });
  let groups = 0;
  const codeOf = ({ code, possessive }) => (possessive ? `(?=(${code}))\\${++groups}` : code);
  return branches.map((branch) => branch.map(codeOf).join("")).join("|");
}

/** The branches of an expression, as lists of steps. */
function parsed(pattern) {
  if (new TextEncoder().encode(pattern).length > MAX.bytes) throw new Error(`more than ${MAX.bytes} bytes`);
  const branches = [[]];
  for (let at = 0; at < pattern.length; ) {
    if (pattern[at] === "|") {
      branches.push([]);
      at++;
    } else {
      const step = stepOf(pattern, at);
      branches.at(-1).push(step);
      at += step.length;
    }
    if (branches.length > MAX.branches || branches.at(-1).length > MAX.steps) throw new Error("too many branches or steps");
  }
  return branches;
}

const ONE = { least: 1, most: 1, ways: 1, code: "", possessive: false };

function stepOf(pattern, at) {
  const found = matchAt(WORDS, pattern, at) ?? matchAt(PLACE, pattern, at) ?? matchAt(COUNTED, pattern, at);
  if (!found) throw new Error(`"${pattern.slice(at, at + 4)}"`);
  const [whole] = found;
  if (found.pattern === WORDS) return wordsOf(found);
  if (found.pattern === PLACE) {
    const set = found[2] === undefined ? "" : setOf(found[2]);
    const code = { "^": "(?<![^\\n])", $: "(?![^\\n])" }[whole] ?? `(?${found[1]}${set})`;
    return { ...ONE, kind: found[1] ?? whole, source: found[2] ?? "", code, length: whole.length };
  }
  const [, source, sign, possessive, least, comma, most] = found;
  const step = { ...ONE, kind: "set", source, possessive: possessive === "+", length: whole.length };
  if (sign) Object.assign(step, { least: sign === "+" ? 1 : 0, most: sign === "?" ? 1 : Infinity });
  if (least) Object.assign(step, { least: +least, most: most ? +most : comma ? Infinity : +least });
  const finite = step.most === Infinity ? 0 : step.most;
  if (Math.max(step.least, finite) > MAX.count || step.most < Math.max(step.least, 1)) throw new Error(`"${whole.slice(-6)}"`);
  step.ways = step.most === Infinity ? 1 : step.most - step.least + 1;
  step.code = setOf(source) + (possessive ? whole.slice(source.length, -1) : whole.slice(source.length));
  return step;
}

/** The match of a sticky expression at a place, and which expression it is; null if there is none. */
function matchAt(expression, pattern, at) {
  expression.lastIndex = at;
  const found = expression.exec(pattern);
  return found && Object.assign(found, { pattern: expression });
}

function wordsOf([source, anyCase, inside, option]) {
  const words = [[]];
  let before = [];
  for (let at = 0; at < inside.length; ) {
    if (inside[at] === "|") {
      words.push([]);
      before = [];
      at++;
      continue;
    }
    SETS.lastIndex = at;
    const [set] = SETS.exec(inside);
    const letters = anyCase ? lettersOf(set) : [];
    if (before.some((first) => letters.some((second) => LIGATURES.includes(first + second)))) throw new Error('"(?i:" of a ligature');
    words.at(-1).push(anyCase ? `[${letters.map(bothCases).join("")}]` : setOf(set));
    before = letters;
    at += set.length;
  }
  if (words.length > MAX.branches || words.some((word) => word.length > MAX.steps)) throw new Error("too many words");
  const least = option ? 0 : 1, code = `(?:${words.map((word) => word.join("")).join("|")})${option}`;
  return { ...ONE, kind: "words", source, least, ways: words.length + 1 - least, code, length: source.length };
}

/** The characters of a set, which must be ASCII's, in lower case. */
function lettersOf(set) {
  const found = set[0] === "[" ? set.match(ITEMS).filter((item) => item !== "[" && item !== "]").map(characterOf) : [characterOf(set)];
  if (set.startsWith("[^") || !found.every((item) => /^[\0-\x7f]$/.test(item))) throw new Error("\"(?i:\" of other characters than ASCII's");
  return found.map((letter) => letter.toLowerCase());
}

function bothCases(letter) {
  return /[a-z]/.test(letter) ? letter + letter.toUpperCase() + (FOLDED[letter] ?? "") : escaped(letter);
}

/** The character that an item of a set is; another item stays as it is written. */
function characterOf(item) {
  if (item.length !== 2 || item[0] !== "\\") return item;
  return CONTROLS[item[1]] ?? (/[a-z]/i.test(item[1]) ? item : item[1]);
}

function escaped(character) {
  return /[\\^$.*+?()[\]{}|/-]/.test(character) ? `\\${character}` : character;
}

/** A set in JavaScript's form. A list in a list is merged with it. */
function setOf(source) {
  if (source[0] !== "[") {
    const code = classOf(source);
    return code ?? `[${escaped(characterOf(source))}]`;
  }
  const negated = source.startsWith("[^"), items = source.slice(negated ? 2 : 1, -1).match(ITEMS).filter((item) => item !== "[" && item !== "]");
  return `[${negated ? "^" : ""}${items.map((item) => classOf(item) ?? rangeOf(item)).join("")}]`;
}

function classOf(item) {
  if (!/^\\[sSdDpP]/.test(item)) return null;
  if (item.length === 2) return CLASSES[item[1]];
  const negated = item.includes("^") !== item.startsWith("\\P");
  return `\\${negated ? "P" : "p"}{${item.slice(3, -1).replace("^", "")}}`;
}

function rangeOf(item) {
  const ends = RANGE.exec(item)?.slice(1).map(characterOf);
  if (!ends) return escaped(characterOf(item));
  if (ends[0].codePointAt(0) > ends[1].codePointAt(0)) throw new Error(`"${item}"`);
  return ends.map(escaped).join("-");
}

/** The place of the run that a branch may read and then fail, or -1. */
function scanned(branch) {
  const runs = branch.flatMap(({ most }, n) => (most === Infinity && branch.slice(n + 1).some(({ least }) => least) ? [n] : []));
  if (runs.length > 1) throw new Error("two runs that may be read in vain");
  if (branch.reduce((ways, step) => ways * step.ways, 1) > MAX.ways) throw new Error(`more than ${MAX.ways} ways through a branch`);
  if (!branch.some(({ kind, least }) => least && (kind === "set" || kind === "words"))) throw new Error("a branch that matches no character");
  return runs[0] ?? -1;
}

/** Whether all of a run but one character is matched: after it, any of its own characters may follow. */
function closesItself(branch, run) {
  const [after, ...rest] = branch.slice(run + 1);
  return !rest.length && after.kind === "!" && after.source === negatedOf(branch[run].source) && !branch[run].possessive;
}

/** Whether the last branch is a run to the end of a line, and all others are runs of the same set from its beginning. */
function isEdge(branches, run) {
  const [last, end, ...rest] = branches.at(-1);
  const begins = ([place, from, ...more]) => place.kind === "^" && from?.most === Infinity && from.source === last.source && !more.length;
  return run === 0 && end.kind === "$" && !rest.length && branches.slice(0, -1).every(begins);
}

function negatedOf(source) {
  if (source[0] === "[") return source[1] === "^" ? `[${source.slice(2)}` : `[^${source.slice(1)}`;
  if (!/^\\[sSdDpP]/.test(source)) return `[^${source}]`;
  const letter = source[1], other = letter === letter.toLowerCase() ? letter.toUpperCase() : letter.toLowerCase();
  return `\\${other}${source.slice(2)}`;
}
