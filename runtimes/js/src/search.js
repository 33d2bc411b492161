/** Beam search of one sentence, without model calls: contract/translators.md. */

import { T2RError } from "./errors.js";
import { beamOf } from "./options.js";
import { largest, penalized } from "./sampler.js";

const MAX_TOKENS = 256; // default limit of a translation, if the model has no fewer positions

export class Search {
  #rules;
  #model;
  #candidates; // kept after each step
  #enough; // candidates of a hypothesis
  #copies;
  #hypotheses;
  #finished = [];

  /**
   * @param {object} options of a beam
   * @param {import("./types.js").Signature} model a translator's
   * @param {import("./copies.js").Copies | null} copies what the translation copies of its source
   * @throws {T2RError} sampling; position: more tokens than the model has positions
   */
  constructor(options, model, copies = null) {
    const rules = beamOf(options, model.generation);
    if (rules.width > model.vocabSize) throw refused(`a beam of at most ${model.vocabSize}`, rules.width);
    const [, ...forced] = model.startTokens;
    rules.maxTokens = longest(options.maxTokens ?? null, rules.maxTokens, model, forced.length);
    this.#rules = rules;
    this.#model = { vocabulary: model.vocabSize, start: model.startTokens[0], ends: new Set(model.eosTokens), banned: model.bannedTokens };
    this.#copies = copies;
    this.#hypotheses = [{ text: forced, sum: copies?.debt ?? 0, states: copies?.read(forced) }];
    const { eosTokens: ends, bannedTokens: banned, topK } = model;
    this.#candidates = rules.width === 1 ? 1 : Math.max(2, 1 + ends.length) * rules.width;
    const enough = this.#candidates + banned.length + (rules.minTokens ? ends.length : 0);
    this.#enough = Math.min(enough, model.vocabSize);
    const few = !copies && rules.repetitionPenalty === 1 && !rules.noRepeatNgram && this.#enough <= (topK ?? 0);
    /**
     * What `advance` needs of a step: all logits, or the largest if they are enough.
     * @type {"largest" | "logits"}
     */
    this.wanted = few ? "largest" : "logits";
  }

  /** All options of the beam, with their defaults. */
  get rules() {
    return this.#rules;
  }

  /** The newest token of each hypothesis, not yet read by a step. */
  get newest() {
    return this.#hypotheses.map(({ text }) => text.at(-1));
  }

  /** The best finished translations: their tokens and scores. */
  get translations() {
    return this.#finished.slice(0, this.#rules.nBest);
  }

  /**
   * Extend every hypothesis by one token.
   * @param {Float32Array | {logits: Float32Array, tokens: Int32Array, sums: Float32Array}} found for all hypotheses,
   *   concatenated: logits; or the largest, their tokens, and the log-sum-exp of all logits
   * @returns {number[] | null} the source row of each hypothesis that continues; null when the sentence is done
   * @throws {T2RError} graph: logits that are not finite
   */
  advance(found) {
    const { width, maxTokens: most } = this.#rules, { ends } = this.#model;
    const length = this.#hypotheses[0].text.length + 1, best = new Best(this.#candidates);
    this.#hypotheses.forEach(({ text, sum, states }, row) => {
      let { added, tokens } = this.#choices(found, row, text);
      if (this.#copies) ({ added, tokens } = this.#copied(added, tokens, text, states));
      for (let n = 0; n < added.length; n++) if (added[n] > -Infinity) best.offer(sum + added[n], row, tokens ? tokens[n] : n);
    });
    const going = [];
    best.entries.forEach(({ sum, row, token }, place) => {
      const text = [...this.#hypotheses[row].text, token];
      if (!ends.has(token) && length < most) going.push({ text, sum, row });
      else if (place < width) this.#finish(text, sum / length ** this.#rules.lengthPenalty);
    });
    const before = this.#hypotheses;
    this.#hypotheses = going.slice(0, width);
    for (const one of this.#hypotheses) one.states = this.#copies?.advance(before[one.row].states, one.text.at(-1)).states;
    if (this.#done(length)) return null;
    return this.#hypotheses.map(({ row }) => row);
  }

  /** What each token adds to the score of a row: for `tokens`, or for all if null. */
  #choices(found, row, text) {
    const { minTokens: least, maxTokens: most, forcedEnd: forced } = this.#rules, { ends, banned, vocabulary } = this.#model;
    if (this.wanted === "logits") {
      const added = this.#added(found.subarray(row * vocabulary, (row + 1) * vocabulary), text);
      return forced && ends.size && text.length === most - 1 ? this.#end : { added, tokens: null };
    }
    const sum = found.sums[row], size = found.tokens.length / found.sums.length, part = [row * size, (row + 1) * size];
    if (!Number.isFinite(sum)) throw new T2RError("graph", "finite logits", `${sum}`, "check the graph with t2r verify");
    if (forced && ends.size && text.length === most - 1) return this.#end;
    const tokens = found.tokens.subarray(...part), kept = (token) => !banned.includes(token) && !(text.length < least && ends.has(token));
    const added = Array.from(found.logits.subarray(...part), (logit, n) => (kept(tokens[n]) ? logit - sum : -Infinity));
    return { added, tokens };
  }

  /** The choices of a hypothesis whose translation copies its source, from `added` for `tokens`, or for all if null. */
  #copied(added, tokens, text, states) {
    const of = (token) => (tokens ? (token === tokens[0] ? added[0] : -Infinity) : added[token]), chosen = [], { ends } = this.#model;
    const others = tokens ?? best(added.length, this.#enough, (token) => (this.#copies.hasDigits(token) ? -Infinity : added[token]));
    for (const token of new Set([...others, ...this.#copies.pieces(states), ...ends])) {
      const { states: after, gain } = this.#copies.advance(states, token);
      if (!after.length || of(token) === -Infinity) continue;
      const ended = ends.has(token) || text.length + 1 === this.#rules.maxTokens;
      chosen.push([of(token) + gain - (ended ? this.#copies.costOfEnding(after, [...text, token]) : 0), token]);
    }
    if (!chosen.length) return { added, tokens }; // no token can write what is begun
    chosen.sort((a, b) => b[0] - a[0] || a[1] - b[1]);
    const kept = chosen.slice(0, this.#enough);
    return { added: kept.map(([value]) => value), tokens: kept.map(([, token]) => token) };
  }

  /** Only the first end token. */
  get #end() {
    return { added: [0], tokens: [this.#model.ends.values().next().value] };
  }

  /** What each token of the vocabulary adds to the score. */
  #added(logits, text) {
    const { width, minTokens: least, repetitionPenalty: penalty, noRepeatNgram: ngram } = this.#rules;
    const { ends, banned, start } = this.#model;
    const sum = logSum(logits), before = width === 1 ? 0 : sum; // in a greedy search penalties act on logits
    let values = new Float64Array(logits.length);
    for (let token = 0; token < logits.length; token++) values[token] = logits[token] - before;
    for (const token of banned) values[token] = -Infinity;
    if (text.length < least) for (const token of ends) values[token] = -Infinity;
    if (penalty !== 1 || ngram > 0) values = penalized(values, [start, ...text], penalty, ngram);
    return before === sum ? values : values.map((value) => value - sum);
  }

  #finish(tokens, score) {
    const place = this.#finished.findIndex((one) => one.score < score);
    this.#finished.splice(place < 0 ? this.#finished.length : place, 0, { tokens, score });
    this.#finished.length = Math.min(this.#finished.length, this.#rules.width);
  }

  #done(length) {
    const { width, maxTokens: most, earlyStopping: early, lengthPenalty: penalty } = this.#rules;
    if (length === most || !this.#hypotheses.length) return true;
    if (this.#finished.length < width) return false;
    if (width === 1 || early === true) return true;
    const tokens = early === "never" && penalty > 0 ? most : length;
    return this.#hypotheses[0].sum / tokens ** penalty <= this.#finished.at(-1).score;
  }
}

/** The `most` numbers below `count` of the largest values, of equals the lowest. */
function best(count, most, valueOf) {
  const kept = new Best(most);
  for (let n = 0; n < count; n++) if (valueOf(n) > -Infinity) kept.offer(valueOf(n), 0, n);
  return kept.entries.map(({ token }) => token);
}

/** Keeps the largest offers, the first on ties. */
class Best {
  entries = [];
  #most;

  constructor(most) {
    this.#most = most;
  }

  offer(sum, row, token) {
    if (this.entries.length === this.#most && !(sum > this.entries.at(-1).sum)) return;
    let place = this.entries.length;
    while (place > 0 && sum > this.entries[place - 1].sum) place--;
    this.entries.splice(place, 0, { sum, row, token });
    this.entries.length = Math.min(this.entries.length, this.#most);
  }
}

function logSum(logits) {
  const top = logits[largest(logits)];
  let sum = 0;
  for (let token = 0; token < logits.length; token++) sum += Math.exp(logits[token] - top);
  return top + Math.log(sum);
}

/** `maxTokens` of the caller, else that of the graph, the latter capped at the model's positions. */
function longest(given, wanted, { pastEnd: end, maxPositions: positions }, forced) {
  if (wanted !== null && wanted <= forced) throw refused(`maxTokens of more than ${forced}`, wanted);
  const reach = end === "refuse" ? positions : null, least = given ?? forced + 1;
  if (reach !== null && reach < least) throw new T2RError("position", `maxTokens of at most ${reach}`, `${least}`, "request fewer");
  return given ?? Math.min(wanted ?? MAX_TOKENS, reach ?? Infinity);
}

function refused(expected, received) {
  return new T2RError("sampling", expected, `${received}`, "correct it");
}
