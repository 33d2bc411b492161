/** The translator in a worker: one message per sentence, with a check for a stop between tokens. */

import { answer } from "./messages.js";
import { turn } from "./t2r/aborts.js";
import { Translator } from "./t2r/index.js";
import { fastest } from "./ways.js";

let translator, sources, targets, stopping = false;

answer({ open, translate }, () => (stopping = true));

async function open(name, wanted, quantization) {
  const found = await fastest(wanted, quantization, async (options) => {
    translator = await Translator.open(new URL(`./${name}`, import.meta.url), options);
    [sources, targets] = [translator.sourceTokenizer(), translator.tokenizer()];
  });
  return { ...found, vocabulary: translator.signature.vocabSize };
}

/** The best translations of a sentence, best first, as texts; none if stopped. */
async function translate(text, width) {
  stopping = false;
  const found = await translator.translate(sources.encode(text), { width, nBest: width }, { onStep: async () => {
    await turn(); // lets a stop arrive
    return !stopping;
  } });
  return stopping ? [] : found.map(({ tokens }) => targets.decode(tokens));
}
