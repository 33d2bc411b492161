/**
 * Speculative decoding (Leviathan et al. 2023, arXiv 2211.17192) with a draft-check graph: contract/companions.md.
 *
 * A run starts with the tokens that the run before it chose; draft tokens follow if they pay off. The states include the drafts if
 * they are likely right; if one is wrong, the states before the run are kept until the next one.
 */

import { History } from "./history.js";
import { Lookup, Pace } from "./drafts.js";

const MOST_CHECKED = 32; // tokens of a run

/**
 * What Ahead asks of a decoder of one sequence.
 * @typedef {object} Runs
 * @property {(tokens: number[], wanted: import("./states.js").Wanted) => Promise<any>} read tokens; returns what States.run does
 * @property {(tokens: number[], keep: number, wanted: import("./states.js").Wanted) => Promise<any>} check a run of the draft-check
 *   graph, whose states include the first `keep`; returns what States.run does, of each token
 * @property {(tokens: number[]) => void} checked count tokens that the last run of `check` left in the states
 * @property {() => void} uncheck go back to the states before that run
 * @property {() => number} room how many tokens may still be read
 */

/** The tokens of one text: those that are chosen and still to be read, and draft tokens after them. */
export class Ahead {
  #runs;
  #clock;
  #pace;
  #lookup = new Lookup();
  #waiting; // chosen before the run, which starts with them
  #guesses = /** @type {number[]} */ ([]); // draft tokens after those
  #fresh = /** @type {number[]} */ ([]); // chosen from the run's logits
  #kind = 0;
  #found = null; // the logits of the run
  #first = 0; // the row of its first logits
  #trusted = false; // whether the states include the draft tokens

  /**
   * @param {Runs} runs of a decoder that has read the text except for its last token, when `logits` is called
   * @param {ArrayLike<number>} text
   * @param {import("./drafts.js").RunTimes} times of the decoder
   * @param {() => number} clock
   */
  constructor(runs, text, times, clock = () => performance.now()) {
    this.#runs = runs;
    this.#clock = clock;
    this.#pace = new Pace(times);
    /** The text so far. */
    this.text = new History(text);
    this.#waiting = [text[text.length - 1]];
    this.#lookup.read(text);
  }

  /**
   * Logits of the next token: from the last run if it has read the newest tokens as drafts, else from a new run.
   * @param {number} left the most further tokens
   * @param {import("./states.js").Wanted} wanted
   * @returns {Promise<any>} as States.run
   */
  async logits(left, wanted) {
    if (!this.#found || !this.#fresh.every((token, n) => token === this.#guesses[n])) {
      this.#settle();
      await this.#run(left, wanted);
    }
    const row = this.#first + this.#fresh.length, { found, rows } = this.#found;
    const part = (all) => all.subarray((row * all.length) / rows, ((row + 1) * all.length) / rows);
    return found.tokens ? { logits: part(found.logits), tokens: part(found.tokens) } : part(found);
  }

  /** Record the token that was chosen from the last logits. @param {number} token */
  chose(token) {
    this.#fresh.push(token);
    this.text.add([token]);
  }

  /** Read all but the last token. */
  async finish() {
    this.#settle();
    if (this.#waiting.length > 1) await this.#runs.read(this.#waiting.slice(0, -1), null);
  }

  async #run(left, wanted) {
    const waiting = this.#waiting, keep = waiting.length;
    this.#waiting = []; // if the run fails, `finish` must not read them
    this.#guesses = this.#guessed(keep, left);
    const tokens = [...waiting, ...this.#guesses], begun = this.#clock();
    const trusted = this.#guesses.length > 0 && this.#pace.trusts(this.#kind, this.#guesses.length, keep);
    const found = tokens.length === 1 ? await this.#runs.read(tokens, wanted)
      : await this.#runs.check(tokens, trusted ? tokens.length : keep, wanted);
    this.#pace.times.ran(tokens.length, this.#clock() - begun);
    [this.#waiting, this.#found, this.#first, this.#trusted] = [waiting, { found, rows: tokens.length }, keep - 1, trusted];
  }

  /** Keep the chosen tokens for the next run, and undo the run if the states include wrong ones. */
  #settle() {
    if (!this.#found) return;
    const guesses = this.#guesses, fresh = this.#fresh, read = this.#waiting, { rows } = this.#found;
    let right = 0;
    while (right < Math.min(guesses.length, fresh.length) && guesses[right] === fresh[right]) right++;
    if (this.#trusted && fresh.length <= guesses.length) { // one was wrong, or the text ended earlier
      this.#runs.uncheck();
      this.#waiting = [...read, ...fresh];
    } else {
      if (rows > 1) this.#runs.checked(this.#trusted ? [...read, ...guesses] : read);
      this.#waiting = this.#trusted ? fresh.slice(-1) : fresh;
    }
    this.#pace.judge(this.#kind, guesses.length, right, fresh.length);
    this.#lookup.read(fresh);
    [this.#guesses, this.#fresh, this.#found, this.#trusted] = [[], [], null, false];
  }

  /** Draft tokens after `waiting` tokens, with at most `left` further tokens. */
  #guessed(waiting, left) {
    this.#kind = this.#lookup.matched;
    const depth = this.#kind ? this.#pace.depth(this.#kind, waiting) : 0;
    const fits = Math.min(Math.min(MOST_CHECKED, this.#runs.room()) - waiting, left - 1);
    return this.#lookup.propose(Math.max(Math.min(depth, fits), 0));
  }
}
