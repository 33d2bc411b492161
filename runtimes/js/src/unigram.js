/** The pieces of a text that together are most probable (Kudo 2018, Viterbi), as the tokenizers library finds them. */

const UNKNOWN = 10; // by how much less than the least probable piece a letter that there is none for counts

export class Unigram {
  #root = new Map();
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
    for (const [text, id] of this.#texts) this.#insert(text, id);
  }

  /** Texts of the pieces; what stands for nothing in the vocabulary is one text as long as it goes, or its bytes. */
  encode(text) {
    const letters = Array.from(text), ends = new Array(letters.length + 1);
    ends[0] = { score: 0, start: 0, id: -1 };
    const offer = (end, score, start, id) => {
      if (!ends[end] || score > ends[end].score) ends[end] = { score, start, id };
    };
    for (let start = 0; start < letters.length; start++) {
      const { score } = ends[start];
      let single = false, node = this.#root;
      for (let end = start; end < letters.length && (node = node.get(letters[end])); end++) {
        if (node.id === undefined) continue;
        offer(end + 1, score + this.#scores[node.id], start, node.id);
        single ||= end === start;
      }
      if (!single) offer(start + 1, score + this.#unknown.score, start, this.#unknown.id);
    }
    return this.#pieces(letters, ends);
  }

  #insert(text, id) {
    let node = this.#root;
    for (const letter of text) {
      if (!node.has(letter)) node.set(letter, new Map());
      node = node.get(letter);
    }
    if (node !== this.#root) node.id = id;
  }

  #pieces(letters, ends) {
    const found = [];
    let unknown = "";
    for (let end = letters.length; end > 0; end = ends[end].start) {
      const piece = letters.slice(ends[end].start, end).join("");
      if (ends[end].id === this.#unknown.id) unknown = piece + unknown;
      else {
        if (unknown) found.push(unknown);
        unknown = "";
        found.push(piece);
      }
    }
    if (unknown) found.push(unknown);
    return found.reverse().flatMap((piece) => (this.#fallback ? this.#inBytes(piece) : [piece]));
  }

  #inBytes(piece) {
    if (this.#texts.has(piece)) return [piece];
    const bytes = Array.from(new TextEncoder().encode(piece), (byte) => `<0x${byte.toString(16).toUpperCase().padStart(2, "0")}>`);
    return bytes.every((byte) => this.#texts.has(byte)) ? bytes : [piece];
  }
}
