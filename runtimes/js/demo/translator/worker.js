/** The translator, away from the page: a message a sentence, and a stop is looked for between two tokens. */

import { T2RError, Translator } from "./t2r/index.js";
import { ways, withOrt } from "./ways.js";
import { answer, turn } from "./messages.js";

let translator, sources, targets, stopping = false;

answer({ open, translate }, () => (stopping = true));

/** WebGPU where there is an adapter, then threads, then one thread; what was tried in vain is said too. */
async function open(name, wanted) {
  const tried = [];
  for (const way of wanted ? [wanted] : await ways()) {
    try {
      translator = await Translator.open(new URL(`./${name}`, import.meta.url), await withOrt(way));
      [sources, targets] = [translator.sourceTokenizer(), translator.tokenizer()];
      return { way, tried };
    } catch (error) {
      if (error.kind !== "provider" && way !== "webgpu") throw error;
      tried.push(`${way}: ${error.message}`);
    }
  }
  throw new T2RError("provider", "a browser with WebGPU or WebAssembly", tried.join("; ") || "none", "take a newer browser");
}

/** The best translations of a sentence, best first, as texts; none where it was stopped. */
async function translate(text, width) {
  stopping = false;
  const begun = performance.now();
  const found = await translator.translate(sources.encode(text), { width, n_best: width }, async () => {
    await turn(); // so that a stop arrives
    return !stopping;
  });
  const texts = found.map(({ tokens, score }) => ({ text: targets.decode(tokens), score }));
  return { texts: stopping ? [] : texts, stopped: stopping, ms: performance.now() - begun };
}
