/** Stop texts of a streamed text. */

import { T2RError, shown } from "./errors.js";

const MOST = 256; // texts
const LONGEST = 1024; // of each, in UTF-16 units

/** Cuts a streamed text before the first stop that completes, the longest on ties. */
export class Until {
  #stops;
  #waiting = "";

  /**
   * @param {readonly string[]} stops
   * @param {Until | null} before replaced by this one, which takes over the text that it holds back
   * @throws {T2RError} argument
   */
  constructor(stops, before = null) {
    if (!Array.isArray(stops) || stops.length > MOST) throw refused(`at most ${MOST} stop texts`, shown(stops));
    const wrong = stops.findIndex((stop) => typeof stop !== "string" || !stop || stop.length > LONGEST);
    if (wrong >= 0) throw refused(`stop texts of 1 to ${LONGEST} units`, shown(stops[wrong]));
    this.#stops = stops.slice();
    if (before) this.#waiting = before.end();
    this.found = false;
  }

  /** The text that is certain now; a possible beginning of a stop is held back. */
  feed(piece) {
    if (this.found) return "";
    this.#waiting += piece;
    let end = Infinity, begin = 0;
    for (const stop of this.#stops) {
      const place = this.#waiting.indexOf(stop), after = place + stop.length;
      if (place < 0 || after > end) continue;
      begin = after < end ? place : Math.min(begin, place);
      end = after;
    }
    this.found = end < Infinity;
    const kept = this.#waiting.length - Math.max(0, ...this.#stops.map((stop) => this.#begun(stop)));
    const certain = this.#waiting.slice(0, this.found ? begin : kept);
    this.#waiting = this.found ? "" : this.#waiting.slice(kept);
    return certain;
  }

  /** The text held back, at the end. */
  end() {
    const rest = this.#waiting;
    this.#waiting = "";
    return rest;
  }

  /** How many units at the end of the text held back begin this stop. */
  #begun(stop) {
    let count = Math.min(stop.length - 1, this.#waiting.length);
    while (!this.#waiting.endsWith(stop.slice(0, count))) count--;
    return count;
  }
}

function refused(expected, received) {
  return new T2RError("argument", expected, received, "correct it");
}
