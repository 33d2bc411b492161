/** The most probable segmentation of a text (Kudo 2018, Viterbi), as in the tokenizers library. */

import { Trie } from "./trie.js";

const UNKNOWN = 10; // how far an unknown letter scores below the least probable piece

export class Unigram {
  #trie;
  #scores;
  #texts;
  #unknown;
  #fallback;

  /** @param {{vocab: [string, number][], unk_id: number, byte_fallback?: boolean}} model of a tokenizer.json */
  constructor({ vocab, unk_id: unknown, byte_fallback: fallback = false }) {
    this.#texts = new Map(vocab.map(([text], id) => [text, id]));
    this.#scores = vocab.map(([, score]) => score);
    this.#unknown = { id: unknown, score: this.#scores.reduce((least, score) => Math.min(least, score), Infinity) - UNKNOWN };
    this.#fallback = fallback;
    this.#trie = new Trie(this.#texts);
  }

  /** Texts of the pieces; a run of unknown letters is one text, or its bytes. */
  encode(text) {
    const scores = new Float64Array(text.length + 1), starts = new Int32Array(text.length + 1).fill(-1), ids = new Int32Array(text.length + 1);
    const offer = (end, score, start, id) => {
      if (starts[end] >= 0 && !(score > scores[end])) return;
      [scores[end], starts[end], ids[end]] = [score, start, id];
    };
    for (let start = 0, next; start < text.length; start = next) {
      const score = scores[start];
      let single = false;
      next = start + (text.codePointAt(start) > 0xffff ? 2 : 1);
      this.#trie.each(text, start, (id, end) => {
        offer(end, score + this.#scores[id], start, id);
        single ||= end === next;
      });
      if (!single) offer(next, score + this.#unknown.score, start, this.#unknown.id);
    }
    return this.#pieces(text, starts, ids);
  }

  #pieces(text, starts, ids) {
    const found = []; // [start, end] of pieces, the last first; adjacent unknown ones are joined
    let unknown = false;
    for (let end = text.length; end > 0; end = starts[end]) {
      const joins = unknown && ids[end] === this.#unknown.id;
      if (joins) found.at(-1)[0] = starts[end];
      else found.push([starts[end], end]);
      unknown = ids[end] === this.#unknown.id;
    }
    const pieces = found.reverse().map(([start, end]) => text.slice(start, end));
    return this.#fallback ? pieces.flatMap((piece) => this.#inBytes(piece)) : pieces;
  }

  #inBytes(piece) {
    if (this.#texts.has(piece)) return [piece];
    const bytes = Array.from(new TextEncoder().encode(piece), (byte) => `<0x${byte.toString(16).toUpperCase().padStart(2, "0")}>`);
    return bytes.every((byte) => this.#texts.has(byte)) ? bytes : [piece];
  }
}
