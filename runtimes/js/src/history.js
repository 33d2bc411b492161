/** The last tokens of a sequence, for penalties. */

const MOST = 1 << 16;

export class History {
  #tokens;
  #length;

  /** @param {ArrayLike<number>} tokens that have been read, oldest first */
  constructor(tokens = []) {
    this.#tokens = new Int32Array(Math.max(64, tokens.length));
    this.#tokens.set(tokens);
    this.#length = tokens.length;
  }

  /** The last 65,536 tokens or fewer, oldest first: a view, valid until the next `add`. */
  get latest() {
    return this.#tokens.subarray(Math.max(0, this.#length - MOST), this.#length);
  }

  add(tokens) {
    for (const token of tokens) {
      if (this.#length === this.#tokens.length) this.#makeRoom();
      this.#tokens[this.#length++] = token;
    }
  }

  /** Double the buffer; from 2 * MOST tokens on, keep `latest` only. */
  #makeRoom() {
    const kept = this.#length < 2 * MOST ? this.#tokens : this.latest, room = new Int32Array(2 * kept.length);
    room.set(kept);
    [this.#tokens, this.#length] = [room, kept.length];
  }
}
