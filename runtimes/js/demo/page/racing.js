/** Races two models in the worker: both read the same tokens with equal time. */

import { turn } from "./t2r/aborts.js";
import { T2RError } from "./t2r/index.js";

const NEWS = 60; // ms between two messages
const WARM = 4; // tokens that are not counted: the first runs of a graph are slower

/**
 * The model with less time so far reads its next token, until one of them has read all tokens. The cost does not depend
 * on the tokens. Both begin at the start of a text.
 * @param {import("./t2r/index.js").Decoder[]} models @param {number} most tokens
 * @param {(lanes: {position: number, bytes: number, ms: number}[]) => void} tell ms: a token, since the last time
 * @param {() => boolean} stopped
 */
export async function race(models, most, tell, stopped) {
  const vocabulary = models[0].signature.vocabSize;
  if (models[1].signature.vocabSize !== vocabulary) {
    throw new T2RError("interface", `a peer of ${vocabulary} tokens`, `${models[1].signature.vocabSize}`, "pack another");
  }
  for (const model of models) {
    await model.reset();
    for (let n = 0; n < WARM; n++) await model.step(n);
    await model.reset();
  }
  const lanes = models.map((model) => ({ model, spent: 0, since: [0, 0] })); // since: time and position at the last message
  let told = performance.now();
  while (lanes.every(({ model }) => model.position < most) && !stopped()) {
    const lane = lanes.reduce((first, other) => (other.spent < first.spent ? other : first));
    const before = performance.now();
    await lane.model.step((7 * lane.model.position) % vocabulary);
    const now = performance.now();
    lane.spent += now - before;
    if (now - told < NEWS) continue;
    told = now;
    tell(lanes.map(news));
    await turn(); // lets a stop arrive
  }
  return lanes.map(news);
}

function news(lane) {
  const { model, spent } = lane, [before, from] = lane.since, read = model.position - from;
  lane.since = [spent, model.position];
  return { position: model.position, bytes: model.stateBytes, ms: read ? (spent - before) / read : null };
}
