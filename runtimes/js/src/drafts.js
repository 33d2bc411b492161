/** Draft tokens by prompt lookup, and how many of them to check in a run: as t2r_runtime/decode/drafts.py and pace.py. */

const LONGEST = 6, SHORTEST = 2; // tokens of a suffix
const DEPTHS = [1, 2, 3, 5, 7, 11, 15]; // draft tokens of a run
const UNTIMED = 1; // the most before a run of several tokens has been timed
const REST = 64, PAUSE = 8; // tokens after which a rejected kind is tried again, and for which a decision against drafts holds
const HOPED = 0.9, LATEST = 0.3; // first share of right drafts, and the weight of the latest value in moving averages
const WORTH = 1.05, SLOPE = 0.15; // least speedup; time per token beyond the measured sizes, of a step
const ALLOWANCE = 2, SHARE = 0.01, MOST = 4; // in steps: at first, added per step, at most
const DEAR = 2, AFTER = 3, SLOW = 4; // the most that a run costs, of what is expected; steps that it slows, and the most that one costs

/** Prompt lookup (Saxena 2023): what followed the latest earlier occurrence of the longest suffix of 6 to 2 tokens. */
export class Lookup {
  #text = [];
  #place = 0; // the end of the earlier occurrence
  /** The length of the suffix that occurred before; 0: none. */
  matched = 0;

  /** @param {ArrayLike<number>} tokens appended to the text */
  read(tokens) {
    for (let n = 0; n < tokens.length; n++) this.#text.push(tokens[n]);
    const text = this.#text, last = text.length - 1;
    this.#place = this.matched = 0;
    for (let end = last; end > 0 && this.matched < LONGEST; end--) {
      let same = 0;
      while (same < LONGEST && same < end && text[end - 1 - same] === text[last - same]) same++;
      if (same >= SHORTEST && same > this.matched) [this.matched, this.#place] = [same, end];
    }
  }

  /** The tokens after that occurrence, repeated periodically past the end of the text. @param {number} most @returns {number[]} */
  propose(most) {
    const period = this.#text.length - this.#place;
    return this.matched ? Array.from({ length: most }, (_, n) => this.#text[this.#place + (n % period)]) : [];
  }
}

/**
 * Run times by number of tokens, kept for a decoder's texts. The first run of a size, which sets it up, does not count.
 * Time lost by wrong drafts is paid from an allowance: a small share of the time of single steps plus the time gained by right drafts,
 * up to a limit. A run costs what it took, and what the steps after it took longer, where two graphs do not fit into a cache; but a
 * pause of the process must not end all drafts, so both are bounded.
 */
export class RunTimes {
  #times = new Map();
  #prepared = new Set();
  #singles = AFTER; // since the last run of several tokens
  /** In steps. */
  allowance = ALLOWANCE;

  ran(tokens, time) {
    const step = this.known ? this.#times.get(1) : time;
    this.#singles = tokens === 1 ? this.#singles + 1 : 0;
    if (tokens > 1) this.allowance -= Math.min(time, DEAR * (this.known ? this.of(tokens) : time)) / step;
    else this.allowance -= this.#singles > AFTER ? 1 : Math.min(Math.max(time / step, 1), SLOW);
    if (!this.#prepared.has(tokens)) return void this.#prepared.add(tokens);
    if (tokens === 1 && this.#singles <= AFTER) return;
    const before = this.#times.get(tokens) ?? time;
    this.#times.set(tokens, Math.min(time, before + LATEST * (time - before)));
  }

  /** Tokens were chosen. */
  chose(tokens) {
    this.allowance = Math.min(this.allowance + (1 + SHARE) * tokens, MOST);
  }

  /** Whether a single step has been timed, which must be before `of`. */
  get known() {
    return this.#times.has(1);
  }

  get several() {
    return this.known && this.#times.size > 1;
  }

  /** Interpolated between measured numbers of tokens; a small slope beyond them, so that larger ones are tried. */
  of(tokens) {
    let less = 1, more = Infinity;
    for (const size of this.#times.keys()) {
      if (size <= tokens && size > less) less = size;
      if (size >= tokens && size < more) more = size;
    }
    const low = this.#times.get(less), beyond = tokens - less;
    if (more === Infinity) return low + SLOPE * beyond * this.#times.get(1);
    return less === more ? low : low + ((this.#times.get(more) - low) * beyond) / (more - less);
  }
}

/** The number of draft tokens of each run, from run times and the share of right drafts. */
export class Pace {
  #kinds = new Map(); // kind → its share of right drafts, right and tried tokens, and the lengths of the text at the last draft and until which none is made
  #written = 0;

  /** @param {RunTimes} times */
  constructor(times) {
    this.times = times;
  }

  /** Draft tokens of this kind to check after `waiting` chosen ones. */
  depth(kind, waiting) {
    if (!this.times.known) return 0; // the first run is a single step, for comparison
    const judged = this.#judged(kind);
    if (this.#written < judged.paused) return 0;
    if (this.#written - judged.at > REST) [judged.share, judged.at] = [HOPED, this.#written];
    const rejected = 1 - judged.right / (judged.tried + 1), now = this.#steps(waiting);
    let best = 0;
    for (const n of DEPTHS) {
      if (n > UNTIMED && !this.times.several) break;
      const affordable = rejected * (this.#steps(waiting + n) - now) <= this.times.allowance;
      if (affordable && (!best || this.#rate(n, kind, waiting) > this.#rate(best, kind, waiting))) best = n;
    }
    if (best && this.#rate(best, kind, waiting) > WORTH * this.#rate(0, kind, waiting)) return best;
    judged.paused = this.#written + PAUSE;
    return 0;
  }

  /** Whether the states should include the draft tokens: right ones are then not read again, else the waiting ones are. */
  trusts(kind, guesses, waiting) {
    return this.#readAgain(guesses, kind, waiting, true) < this.#readAgain(guesses, kind, waiting, false);
  }

  /** Record that the first `right` of `guesses` draft tokens were right, and `chosen` tokens chosen. */
  judge(kind, guesses, right, chosen) {
    this.#written += chosen;
    this.times.chose(chosen);
    if (!guesses) return;
    const judged = this.#judged(kind);
    judged.at = this.#written;
    for (let n = 0; n < Math.min(right + 1, guesses, chosen); n++) {
      const isRight = Number(n < right);
      judged.share += LATEST * (isRight - judged.share);
      judged.right += isRight;
      judged.tried++;
    }
  }

  #judged(kind) {
    if (!this.#kinds.has(kind)) this.#kinds.set(kind, { share: HOPED, right: 0, tried: 0, at: 0, paused: 0 });
    return this.#kinds.get(kind);
  }

  #steps(tokens) {
    return this.times.of(tokens) / this.times.of(1);
  }

  /** Tokens per time with `depth` draft tokens per run, including tokens read again. */
  #rate(depth, kind, waiting) {
    const { share } = this.#judged(kind);
    let chosen = 0;
    for (let n = 0; n <= depth; n++) chosen += share ** n;
    const again = Math.min(this.#readAgain(depth, kind, waiting, true), this.#readAgain(depth, kind, waiting, false));
    return chosen / this.times.of(waiting + depth + again);
  }

  #readAgain(guesses, kind, waiting, trusting) {
    const { share } = this.#judged(kind);
    let right = 0;
    for (let n = 1; n <= guesses; n++) right += share ** n;
    return trusting ? right + waiting - share ** guesses * (guesses + waiting) : right;
  }
}
