/**
 * Numbers and names that a translation copies from its source: contract/copies.md. A hypothesis is read letter by letter by an
 * automaton, whose states say which of them are placed, and which one is being written.
 */

import { T2RError } from "./errors.js";
import { names } from "./copied_names.js";
import { MARKS, numbers, spellings, unspelled } from "./numbers.js";
import { Tokenizer } from "./tokenizer.js";

// what a hypothesis gains when it places an item, and what a translation loses that lacks it
const NUMBER = [2, 8], CERTAIN_NAME = [6, 2], NAME = [2, 0];
const MOST_ITEMS = 30, MOST_LETTERS = 32, MOST_STATES = 16;
const HALVES = new Map([[" p.m", [" p.m", " pm", " PM", "p.m", "pm"]], [" a.m", [" a.m", " AM", "a.m", "am"]]]);
const START = [{ placed: 0, begun: "", after: "gap" }];

/** The source's tokenizer of a translator, and the text that each token adds within a translation. */
export class Copying {
  #source;
  texts;
  tokens = new Map(); // text → its tokens

  /** @returns {Copying | null} null: a tokenizer is missing, or has parts that are not supported */
  static of(model) {
    try {
      return model.tokenizer === null ? null : new Copying(model);
    } catch (error) {
      if (error instanceof T2RError) return null;
      throw error;
    }
  }

  constructor(model) {
    const target = Tokenizer.of(model);
    this.#source = model.sourceTokenizer === null ? target : new Tokenizer(model.sourceTokenizer);
    const before = target.encode("a", { specialTokens: false }), cut = target.decode(before).length;
    this.texts = Array.from({ length: model.vocabSize }, (_, token) => target.decode([...before, token]).slice(cut));
    this.texts.forEach((text, token) => this.tokens.set(text, [...(this.tokens.get(text) ?? []), token]));
    this.hasDigits = this.texts.map((text) => /[0-9]/.test(text));
  }

  /** What the translation of a source copies; null if that is nothing, or too much. @returns {Copies | null} */
  of(source) {
    const text = this.#source.decode(source), given = numbers(text);
    if (given.length > MOST_ITEMS || given.some((number) => number.text.length > MOST_LETTERS)) return null;
    const named = names(text, (word) => this.tokens.has(` ${word}`)).filter(({ word }) => [...word].length <= MOST_LETTERS);
    return given.length + named.length ? new Copies(this, given, named.slice(0, MOST_ITEMS - given.length)) : null;
  }
}

/** The items that a translation copies: numbers and names of its source. */
export class Copies {
  #copying;
  #numbers;
  #worth;
  #parts = 0;
  #begun = new Map(); // beginning of a spelling → mask of the items
  #spelled = new Map(); // spelling → mask of the items
  #known = new Map(); // states → token → the states after it, and the gain

  constructor(copying, given, named) {
    this.#copying = copying;
    this.#numbers = given;
    this.#worth = [...given.map(() => NUMBER), ...named.map(({ certain }) => (certain ? CERTAIN_NAME : NAME))];
    given.forEach((number, item) => {
      if (!number.whole) this.#parts |= 1 << item;
      this.#add(item, spellings(number).flatMap(withHalves));
    });
    named.forEach(({ word }, n) => this.#add(given.length + n, [word, word.replace(/s$/, "")]));
  }

  /** What a hypothesis begins with: minus the gains of all items. */
  get debt() {
    return -this.#worth.reduce((sum, [gain]) => sum + gain, 0);
  }

  /** Whether the text of a token has a digit. */
  hasDigits(token) {
    return this.#copying.hasDigits[token];
  }

  /** The states after tokens. */
  read(tokens) {
    return tokens.reduce((states, token) => this.advance(states, token).states, START);
  }

  /** The states after a token, and what a hypothesis gains by it. No state: the token is not allowed. */
  advance(states, token) {
    const key = states.map(({ placed, begun, after }) => `${placed} ${after} ${begun}`).join("\n");
    if (!this.#known.has(key)) this.#known.set(key, new Map());
    const known = this.#known.get(key);
    if (!known.has(token)) {
      let after = states;
      for (const letter of this.#copying.texts[token]) after = this.#next(after, letter);
      const gained = (all) => Math.max(...all.map((state) => this.#gained(state)));
      known.set(token, { states: after, gain: after.length ? gained(after) - gained(states) : 0 });
    }
    return known.get(token);
  }

  /** Tokens that begin or continue an item. @returns {Set<number>} */
  pieces(states) {
    const found = new Set(), { tokens } = this.#copying;
    for (const { placed, begun } of states) {
      for (const [form, items] of this.#spelled) {
        if (!(items & ~placed) || !form.startsWith(begun)) continue;
        for (let end = begun.length + 1; end <= form.length; end++) {
          const piece = form.slice(begun.length, end);
          for (const text of begun ? [piece] : [piece, ` ${piece}`]) for (const token of tokens.get(text) ?? []) found.add(token);
        }
      }
    }
    return found;
  }

  /** What a translation of these tokens loses by the items that it lacks. */
  costOfEnding(states, tokens) {
    const text = tokens.map((token) => this.#copying.texts[token]).join("");
    return Math.min(...states.map((state) => this.#lost(state, text)));
  }

  #add(item, forms) {
    for (const form of new Set(forms)) {
      this.#spelled.set(form, (this.#spelled.get(form) ?? 0) | (1 << item));
      for (let end = 1; end <= form.length; end++) {
        const begun = form.slice(0, end);
        this.#begun.set(begun, (this.#begun.get(begun) ?? 0) | (1 << item));
      }
    }
  }

  #gained({ placed, begun }) {
    const all = placed | first((this.#begun.get(begun) ?? 0) & ~placed);
    return this.#worth.reduce((sum, [gain], item) => sum + ((all >> item) & 1 ? gain : 0), 0);
  }

  #lost({ placed, begun }, text) {
    const all = placed | first((this.#spelled.get(begun) ?? 0) & ~placed), isLacking = (item) => !((all >> item) & 1);
    const count = this.#numbers.length, lacking = this.#numbers.filter((_, item) => isLacking(item));
    const named = this.#worth.reduce((sum, [, loss], item) => sum + (item >= count && isLacking(item) ? loss : 0), 0);
    return NUMBER[1] * unspelled(lacking, text) + named;
  }

  /** The states after a letter, each once. */
  #next(states, letter) {
    const found = new Map(), digit = isDigit(letter);
    const put = (placed, begun, after) => found.set(`${placed} ${after} ${begun}`, { placed, begun, after });
    for (const { placed, begun, after } of states) {
      const longer = (this.#begun.get(begun + letter) ?? 0) & ~placed, ofNumber = isDigit(begun[0] ?? "");
      if (longer && (begun || this.#mayBegin(longer, after, digit))) put(placed, begun + letter, after);
      if (!begun && !digit) put(placed, "", place(letter));
      const done = first((this.#spelled.get(begun) ?? 0) & ~placed);
      if (!done || (ofNumber ? digit : /\p{L}/u.test(letter))) continue;
      put(placed | done, "", ofNumber && MARKS.includes(letter) ? (done & this.#parts ? "part" : "mark") : place(letter));
    }
    return [...found.values()].slice(0, MOST_STATES);
  }

  #mayBegin(items, after, digit) {
    return digit ? after !== "mark" && (after !== "part" || (items & this.#parts) !== 0) : after === "gap";
  }
}

/** The ways to write a half of the day at the end of a spelling. */
function withHalves(spelling) {
  const halves = HALVES.get(spelling.slice(-4));
  return halves ? halves.map((half) => spelling.slice(0, -4) + half) : [spelling];
}

function isDigit(letter) {
  return letter >= "0" && letter <= "9";
}

function place(letter) {
  return /\p{L}/u.test(letter) ? "word" : "gap";
}

/** The lowest bit. */
function first(mask) {
  return mask & -mask;
}
