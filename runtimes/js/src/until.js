/** Stop texts of a streamed text. */

import { T2RError, shown } from "./errors.js";

const MOST = 256; // texts
const LONGEST = 1024; // of each, in UTF-16 units

/**
 * Cuts a streamed text before the first stop that completes, the longest on ties. A piece takes time in proportion to its
 * length and the number of stops, whatever their lengths.
 */
export class Until {
  /** @type {Stop[]} */
  #stops;
  #waiting = "";
  #searched = 0; // units of #waiting

  /**
   * @param {readonly string[]} stops
   * @param {Until | null} before replaced by this one, which takes over the text that it holds back
   * @throws {T2RError} argument
   */
  constructor(stops, before = null) {
    if (!Array.isArray(stops) || stops.length > MOST) throw refused(`at most ${MOST} stop texts`, shown(stops));
    const wrong = stops.findIndex((stop) => typeof stop !== "string" || !stop || stop.length > LONGEST);
    if (wrong >= 0) throw refused(`stop texts of 1 to ${LONGEST} units`, shown(stops[wrong]));
    this.#stops = stops.map((stop) => new Stop(stop));
    if (before) this.#waiting = before.end();
    this.found = false;
  }

  /** The text that is certain now; a possible beginning of a stop is held back. */
  feed(piece) {
    if (this.found) return "";
    this.#waiting += piece;
    const fresh = this.#waiting.slice(this.#searched);
    let end = Infinity, begin = 0, held = 0;
    for (const stop of this.#stops) {
      const read = stop.endIn(fresh), after = this.#searched + read, place = after - stop.text.length;
      held = Math.max(held, stop.matched);
      if (!read || after > end) continue;
      begin = after < end ? place : Math.min(begin, place);
      end = after;
    }
    this.found = end < Infinity;
    const kept = this.#waiting.length - held;
    const certain = this.#waiting.slice(0, this.found ? begin : kept);
    this.#waiting = this.found ? "" : this.#waiting.slice(kept);
    this.#searched = this.#waiting.length;
    return certain;
  }

  /** The text held back, at the end. */
  end() {
    const rest = this.#waiting;
    this.#waiting = "";
    this.#searched = 0;
    for (const stop of this.#stops) stop.matched = 0;
    return rest;
  }
}

/** Searches for one stop (Knuth, Morris and Pratt 1977, Fast pattern matching in strings). */
class Stop {
  /** Lengths of the longest proper ends of the beginnings of `text` that begin it too; only as far as it has matched. */
  #borders = [0, 0];

  /** @param {string} text */
  constructor(text) {
    this.text = text;
    this.matched = 0; // units at the end of the text so far that begin the stop
  }

  /**
   * How many units of a piece are read when the stop is complete, or 0.
   * @param {string} piece
   */
  endIn(piece) {
    for (let read = 0; read < piece.length; ) {
      this.matched = this.#after(this.matched, piece.charCodeAt(read++));
      if (this.matched === this.text.length) return read;
    }
    return 0;
  }

  /**
   * The number matched after one more unit.
   * @param {number} count
   * @param {number} unit
   */
  #after(count, unit) {
    while (count && this.text.charCodeAt(count) !== unit) count = this.#border(count);
    return count + (this.text.charCodeAt(count) === unit ? 1 : 0);
  }

  /** @param {number} size */
  #border(size) {
    const known = this.#borders;
    while (known.length <= size) known.push(this.#after(known[known.length - 1], this.text.charCodeAt(known.length - 1)));
    return known[size];
  }
}

function refused(expected, received) {
  return new T2RError("argument", expected, received, "correct it");
}
