/** Runs the conformance cases: contract/conformance.md. The same file runs in Node and in a browser. */

import { Decoder, T2RError, Translator } from "../src/index.js";
import { camelCased } from "../src/names.js";

const KINDS = { trace, sampling, calls, snapshot, tokenizer, stream, bad, translator };
const SCORE = 1e-4;
const ROUNDING = 1e-9; // of the nine digits of golden numbers

/**
 * @param {{json: Function, bytes: Function, source: Function}} folder functions for a file's JSON, its bytes, and a graph's source
 * @param {object} options of Decoder.open
 * @param {(line: string) => void} print
 * @param {(name: string) => boolean} chosen the cases to run
 * @returns {Promise<number>} number of failures
 */
export async function conform(folder, options, print, chosen = () => true) {
  const cases = (await folder.json("index.json")).cases.filter(({ case: name }) => chosen(name));
  let failed = 0;
  for (const { case: name, kind, file } of cases) {
    try {
      if (!Object.hasOwn(KINDS, kind)) throw new Error(`a kind of case that is not known, ${kind}`);
      await KINDS[kind](await folder.json(file), folder, options);
      print(`ok ${name}`);
    } catch (error) {
      failed++;
      print(`FAILED ${name}: ${error.message}`);
    }
  }
  print(`${cases.length - failed} passed, ${failed} failed`);
  return failed;
}

async function opened(name, folder, options, work) {
  const decoder = await Decoder.open(await folder.source(name), options);
  try {
    return await work(decoder);
  } finally {
    await decoder.close();
  }
}

async function trace(golden, folder, options) {
  await opened(golden.graph, folder, options, async (decoder) => {
    const [rows, length] = golden.ids.shape, vocabulary = golden.logits.shape[2];
    const column = (t) => Array.from({ length: rows }, (_, row) => golden.ids.data[row * length + t]);
    const at = ({ shape, data }, t) => {
      const size = shape[2];
      return Array.from({ length: rows }, (_, row) => data.slice((row * length + t) * size, (row * length + t + 1) * size)).flat();
    };
    const { logits_absolute: bound } = golden.tolerance;
    const compare = (found, t) => within(found, at(golden.logits, t), bound, `logits after token ${t} of ${vocabulary}`);
    await decoder.setState(given(decoder, golden.start));
    for (let t = 0; t < length; t++) compare(await decoder.step(column(t)), t);
    await compareEnd(decoder, golden);
    if (golden.top) {
      await decoder.setState(given(decoder, golden.start));
      for (let t = 0; t < length; t++) {
        const { logits, tokens } = await decoder.topK(column(t).map((id) => [id]));
        within(logits, at(golden.top.logits, t), bound, `largest logits after token ${t}`);
        same([...tokens], at(golden.top.tokens, t), `largest tokens after token ${t}`);
      }
    }
    if (golden.cuts) {
      await decoder.setState(given(decoder, golden.start));
      let read = 0;
      for (const cut of golden.cuts) {
        const part = Array.from({ length: rows }, (_, row) => golden.ids.data.slice(row * length + read, row * length + read + cut));
        read += cut;
        compare(await decoder.prefill(part), read - 1);
      }
      await compareEnd(decoder, golden);
    }
    if (golden.greedy) {
      await decoder.reset(1);
      const { prompt, tokens } = golden.greedy;
      const found = await decoder.generate(prompt, tokens.length, { temperature: 0, stopTokens: [] });
      same(found, tokens, "greedy tokens");
    }
  });
}

async function compareEnd(decoder, golden) {
  const states = await decoder.state();
  for (const [name, { data }] of Object.entries(golden.end)) {
    const most = Math.max(...data.map(Math.abs)) * golden.tolerance.state_relative_to_its_largest;
    within(numbers(states.get(name)), data, most, `state ${name} at the end`);
  }
}

async function sampling(golden, folder, options) {
  await opened(golden.graph, folder, options, async (decoder) => {
    const ways = [["alone", null, false], ["with a callback", () => true, false], ...(golden.draft ? [["with drafts", null, true]] : [])];
    for (const [n, { prompt, max_tokens, options: rules = {}, tokens }] of golden.texts.entries()) {
      for (const [way, callback, draft] of ways) {
        if (golden.draft) await decoder.draft(draft);
        await decoder.reset(1);
        same(await decoder.generate(prompt, max_tokens, camelCased(rules), { onToken: callback }), tokens, `text ${n} ${way}`);
        same([decoder.position], [prompt.length + tokens.length - 1], `tokens read of text ${n} ${way}`);
      }
    }
  });
}

/** Calls by the key that names them. */
const CALLS = {
  reset: (decoder, { reset }) => decoder.reset(reset),
  adapt: (decoder, { adapt }) => decoder.adapt(adapt),
  reorder: (decoder, { reorder }) => decoder.reorder(reorder),
  step: (decoder, { step }) => decoder.step(step),
  prefill: (decoder, { prefill }) => decoder.prefill(prefill),
  top_k: (decoder, { top_k: rows }) => decoder.topK(rows),
  load: async (decoder, { load }, folder) => decoder.loadState(await folder.source(load)),
  generate: (decoder, { generate, max_tokens: most, options, ends_at: end }) => {
    let seen = 0;
    return decoder.generate(generate, most, camelCased(options), end === undefined ? {} : { onToken: () => ++seen < end });
  },
};

async function calls(golden, folder, options) {
  await opened(golden.graph, folder, options, async (decoder) => {
    for (const [n, call] of golden.operations.entries()) {
      const name = Object.keys(CALLS).find((each) => each in call);
      let found, kind = null;
      try {
        found = await CALLS[name](decoder, call, folder);
      } catch (error) {
        if (!(error instanceof T2RError)) throw error;
        kind = error.kind;
      }
      same([kind], [call.error ?? null], `error of call ${n}, ${name}`);
      if (call.logits) within(found, call.logits.data, golden.tolerance.logits_absolute, `logits of call ${n}`);
      if (call.tokens) same(found, call.tokens, `tokens of call ${n}`);
      if ("position" in call) same([decoder.position], [call.position], `position after call ${n}`);
    }
    await compareEnd(decoder, golden);
  });
}

async function snapshot(golden, folder, options) {
  await opened(golden.graph, folder, options, async (decoder) => {
    const bytes = await folder.bytes(golden.snapshot);
    same([await decoder.loadState(bytes)], [golden.token ?? null], "token");
    same([decoder.position], [golden.position], "position");
    const states = await decoder.state();
    for (const [name, { data }] of Object.entries(golden.states)) same([...numbers(states.get(name))], data.map(Math.fround), `state ${name}`);
    same([...(await decoder.saveState(golden.token ?? null))], [...bytes], "saved bytes");
    const [rows, length] = golden.ids.shape, size = golden.logits.shape[2];
    for (let t = 0; t < length; t++) {
      const found = await decoder.step(Array.from({ length: rows }, (_, row) => golden.ids.data[row * length + t]));
      const wanted = Array.from({ length: rows }, (_, row) =>
        golden.logits.data.slice((row * length + t) * size, (row * length + t + 1) * size)).flat();
      within(found, wanted, golden.tolerance.logits_absolute, `logits after token ${t}`);
    }
  });
}

async function tokenizer(golden, folder, options) {
  await opened(golden.graph, folder, options, async (decoder) => {
    const made = decoder.tokenizer();
    for (const [n, [text, tokens, decoded]] of golden.texts.entries()) {
      same(made.encode(text), tokens, `tokens of text ${n} ${JSON.stringify(text).slice(0, 60)}`);
      same([made.decode(tokens)], [decoded], `text ${n} decoded`);
    }
  });
}

async function stream(golden, folder, options) {
  await opened(golden.graph, folder, options, async (decoder) => {
    const made = decoder.tokenizer();
    for (const [n, { prompt, tokens, pieces, end }] of golden.texts.entries()) {
      const text = made.stream(prompt);
      same(tokens.map((token) => text.feed(token)), pieces, `pieces of text ${n}`);
      same([text.end()], [end], `end of text ${n}`);
    }
  });
}

const BAD = {
  open: async ({ file }, folder, options) => opened(file, folder, options, () => {}),
  tokenizer: async ({ file }, folder, options) => opened(file, folder, options, (decoder) => decoder.tokenizer()),
  encode: async ({ file, text }, folder, options) => opened(file, folder, options, (decoder) => decoder.tokenizer().encode(text)),
  snapshot: async ({ file, graph }, folder, options) =>
    opened(graph, folder, options, async (decoder) => decoder.loadState(await folder.source(file))),
  generate: async ({ file }, folder, options) => opened(file, folder, options, (decoder) => decoder.generate([1], 1)),
  prefill: async ({ file, tokens }, folder, options) => opened(file, folder, options, (decoder) => decoder.prefill(tokens)),
  translate: async ({ file, source, beam }, folder, options) => {
    const made = await Translator.open(await folder.source(file), options);
    try {
      await made.translate(source, camelCased(beam));
    } finally {
      await made.close();
    }
  },
};

async function bad(golden, folder, options) {
  const wrong = [];
  for (const one of golden.files) {
    const { file, call, kind } = one;
    try {
      await BAD[call](one, folder, options);
      wrong.push(`${file} is taken`);
    } catch (error) {
      if (!(error instanceof T2RError)) wrong.push(`${file}: ${error}`);
      else if (error.kind !== kind) wrong.push(`${file} is ${error.kind} for ${kind} (${error.message})`);
      else if (/\n/.test(error.message)) wrong.push(`${file}: a message of two lines`);
    }
  }
  if (wrong.length) throw new Error(wrong.join("; "));
}

async function translator(golden, folder, options) {
  const made = await Translator.open(await folder.source(golden.graph), options);
  try {
    const states = await made.encode(golden.sources);
    for (const [name, { data }] of Object.entries(golden.states)) {
      const most = Math.max(...data.map(Math.abs)) * golden.tolerance.state_relative_to_its_largest;
      within(numbers(states.get(name)), data, most, `state ${name}`);
    }
    for (const [n, { source, beam, translations }] of golden.searches.entries()) {
      const found = await made.translate(source, camelCased(beam));
      same(found.map(({ tokens }) => String(tokens)), translations.map(({ tokens }) => String(tokens)), `translations of search ${n}`);
      within(found.map(({ score }) => score), translations.map(({ score }) => score), SCORE, `scores of search ${n}`);
    }
  } finally {
    await made.close();
  }
}

const ARRAYS = { float32: Float32Array, int32: Int32Array, int64: BigInt64Array };

/** Golden arrays as states. */
function given(decoder, arrays) {
  return Object.fromEntries(decoder.signature.states.map(({ name, dtype }) => {
    const { shape, data } = arrays[name];
    const bytes = new Uint8Array(ARRAYS[dtype].from(dtype === "int64" ? data.map(BigInt) : data).buffer);
    return [name, { dtype, dims: shape, bytes }];
  }));
}

function numbers({ dtype, bytes }) {
  return Array.from(new ARRAYS[dtype](bytes.slice().buffer), Number);
}

function within(found, wanted, most, what) {
  if (found.length !== wanted.length) throw new Error(`${what}: ${found.length} numbers for ${wanted.length}`);
  let worst = 0;
  for (let i = 0; i < wanted.length; i++) {
    const error = Math.abs(found[i] - wanted[i]);
    if (!(error <= worst)) worst = error;
  }
  if (!(worst <= most + ROUNDING)) throw new Error(`${what}: off by ${worst.toPrecision(3)} of ${most.toPrecision(3)}`);
}

function same(found, wanted, what) {
  const place = wanted.findIndex((value, n) => value !== found[n]);
  if (place >= 0 || found.length !== wanted.length) {
    const at = place < 0 ? wanted.length : place;
    throw new Error(`${what}: ${JSON.stringify(found[at])} for ${JSON.stringify(wanted[at])} at ${at}`);
  }
}
