/** A greedy text of a decoder, checked or timed: the same in Node and in a page. */

const DISCARDED = 5; // steps that do not count

/** @returns {(word: string, count: number) => Promise<number[]>} what answers `check` and `time` */
export function greedy(decoder, first) {
  let token = first;
  const begin = async () => {
    await decoder.reset();
    token = first;
  };
  const turn = async () => {
    const logits = await decoder.step(token);
    token = 0;
    for (let n = 1; n < logits.length; n++) if (logits[n] > logits[token]) token = n;
  };
  return async (word, count) => {
    const found = [];
    await begin();
    if (word === "time") for (let n = 0; n < DISCARDED; n++) await turn();
    for (let n = 0; n < count; n++) {
      const before = performance.now();
      await turn();
      found.push(word === "time" ? performance.now() - before : token);
    }
    return found;
  };
}
