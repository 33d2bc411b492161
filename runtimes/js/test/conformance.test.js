/** The golden cases, and faults that the conformance program must detect. */

import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { cp, mkdtemp, readFile, readdir, rm, symlink, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";
import { fileURLToPath, pathToFileURL } from "node:url";
import { promisify } from "node:util";

import { conform } from "../conformance/cases.js";
import { Sampler, Tokenizer, readModelFile } from "../src/index.js";
import { TINY, exchanged, inCopy, withMetadata } from "./files.js";

const PROGRAM = fileURLToPath(new URL("../conformance/node.js", import.meta.url));

const filesOf = (folder) => ({
  json: async (name) => JSON.parse(await readFile(join(folder, name), "utf8")),
  bytes: async (name) => new Uint8Array(await readFile(join(folder, name))),
  source: (name) => join(folder, name),
});

async function ran(folder, chosen) {
  const lines = [];
  await conform(filesOf(folder), {}, (line) => lines.push(line), chosen);
  return lines;
}

async function program(...given) {
  try {
    const { stdout } = await promisify(execFile)(process.execPath, [PROGRAM, ...given]);
    return { code: 0, stdout, stderr: "" };
  } catch (error) {
    return error;
  }
}

test("every golden case passes", async () => {
  const { code, stdout } = await program(TINY);
  const lines = stdout.trim().split("\n");
  assert.match(lines.at(-1), /^[1-9]\d* passed, 0 failed$/, stdout);
  assert.equal(code, 0);
  assert.ok(lines.slice(0, -1).every((line) => line.startsWith("ok ")));
});

test("ONNX Runtime sends nothing: its packages of 1.29 and later would leave events in this folder", async () => {
  const home = await mkdtemp(join(tmpdir(), "t2r-home-"));
  const env = { ...process.env, HOME: home, XDG_CACHE_HOME: "" };
  delete env.CI;
  delete env.ORT_DISABLE_TELEMETRY;
  const index = new URL("../src/index.js", import.meta.url);
  const opens = `import { Decoder } from "${index}"; await Decoder.open(${JSON.stringify(join(TINY, "clamp.onnx"))});`;
  await promisify(execFile)(process.execPath, ["--input-type=module", "-e", opens], { env });
  assert.deepEqual(await readdir(home), []);
  await rm(home, { recursive: true });
});

test("a folder that is none is one line, and exit 2", async () => {
  const { code, stderr } = await program("/nowhere");
  assert.equal(code, 2);
  assert.match(stderr, /^t2r-conformance: [^\n]*\n$/);
});

test("two states crossed are seen, and exit 1 says so", () => inCopy(async (folder) => {
  const file = join(folder, "tiny.onnx");
  await writeFile(file, exchanged(await readFile(file), "present_S.0", "present_S.2"));
  const { code, stdout } = await program(folder);
  assert.equal(code, 1);
  assert.match(stdout, /^FAILED tiny: /m);
  assert.match(stdout, /^ok tiny-hybrid$/m);
}));

/** The metadata's text, JSON in JSON, with two merges exchanged that change one of these texts. */
function withMergesExchanged(written, texts) {
  const start = written.indexOf("merges");
  const pairs = [...written.slice(start).matchAll(/\[\\"[^\]]+?\\", ?\\"[^\]]+?\\"\]/g)].map((found) => [start + found.index, found[0]]);
  for (let distance = 1; distance < pairs.length; distance++) {
    for (let n = 0; n + distance < pairs.length; n++) {
      const [[at, first], [behind, second]] = [pairs[n], pairs[n + distance]];
      const other = written.slice(0, at) + second + written.slice(at + first.length, behind) + first + written.slice(behind + second.length);
      const tokenizer = new Tokenizer(JSON.parse(other), 0);
      if (texts.some(([text, tokens]) => text && String(tokenizer.encode(text)) !== String(tokens))) return other;
    }
  }
  throw new Error("no two merges whose order matters");
}

test("two merges exchanged are seen", () => inCopy(async (folder) => {
  for (const [graph, name] of [["bytes.onnx", "text-bytes"], ["pieces.onnx", "text-pieces"]]) {
    const file = join(folder, graph), bytes = await readFile(file);
    const { texts } = JSON.parse(await readFile(join(folder, `${name}.json`), "utf8"));
    const written = readModelFile(bytes).metadata.get("t2r.tokenizer"), other = withMergesExchanged(written, texts);
    assert.equal(Buffer.byteLength(other), Buffer.byteLength(written));
    bytes.write(other, bytes.indexOf(written));
    await writeFile(file, bytes);
    assert.match((await ran(folder, (each) => each === name))[0], new RegExp(`^FAILED ${name}: tokens of text `));
  }
}));

test("a sampler that is off by one draw is seen", async () => {
  const { pick } = Sampler.prototype;
  Sampler.prototype.pick = function late(...given) {
    if (this.draws === 0) this.draws = 1;
    return pick.apply(this, given);
  };
  try {
    const lines = await ran(TINY, (name) => name === "sampling-tiny");
    assert.match(lines[0], /^FAILED sampling-tiny: text \d+ alone: /);
  } finally {
    Sampler.prototype.pick = pick;
  }
});

const MUTANTS = JSON.parse(await readFile(new URL("../../../tests/golden/mutants.json", import.meta.url), "utf8"));
const PACKAGE = fileURLToPath(new URL("..", import.meta.url));

for (const [name, { case: wanted, js: [file, old, other] }] of Object.entries(MUTANTS)) {
  test(`a wrong runtime fails: ${name}`, async () => {
    const folder = await mkdtemp(join(tmpdir(), "t2r-"));
    try {
      for (const part of ["src", "conformance", "package.json"]) await cp(join(PACKAGE, part), join(folder, part), { recursive: true });
      const [modules] = fileURLToPath(import.meta.resolve("onnxruntime-node")).split(/(?<=node_modules)[/\\]/);
      await symlink(modules, join(folder, "node_modules"));
      const source = join(folder, "src", file), text = await readFile(source, "utf8");
      assert.equal(text.split(old).length, 2, "it is there once");
      await writeFile(source, text.replace(old, () => other));
      const mutated = await import(pathToFileURL(join(folder, "conformance", "cases.js")));
      const lines = [];
      await mutated.conform(filesOf(TINY), {}, (line) => lines.push(line), (each) => each === wanted);
      assert.match(lines[0], new RegExp(`^FAILED ${wanted}: `));
    } finally {
      await rm(folder, { recursive: true });
    }
  });
}

const ofTokenizer = (change) => ({ "t2r.tokenizer": (text) => JSON.stringify(change(JSON.parse(text))) });
const noFlags = { lstrip: false, rstrip: false, single_word: false, normalized: false };
// faults of a wrong runtime, simulated in a case's graph metadata or file
const WRONG = {
  "states start as 0": ["sampling-states", /^states\.onnx$/, { "t2r.states": (specs) => specs.map((spec) => ({ ...spec, initial: 0 })) }],
  "one start token is read": ["translator-starts", /^translator-starts.*onnx$/, { "t2r.start_tokens": ([first]) => [first] }],
  "positions are not clamped": ["clamp", /^clamp\.onnx$/, { "t2r.past_end": () => "refuse" }],
  "positions do not begin again": ["wrap", /^wrap\.onnx$/, { "t2r.past_end": () => "refuse" }],
  "nothing is composed": ["text-words", /^words\.onnx$/, ofTokenizer((made) => ({ ...made, normalizer: null }))],
  "no special tokens around a text": ["text-words", /^words\.onnx$/, ofTokenizer((made) => ({ ...made, post_processor: null }))],
  "texts are not cut": ["text-signs", /^signs\.onnx$/, ofTokenizer((made) => ({ ...made, pre_tokenizer: null }))],
  "added tokens have no flags": ["text-digits", /^digits\.onnx$/, ofTokenizer((made) => (
    { ...made, added_tokens: made.added_tokens.map((token) => ({ ...token, ...noFlags })) }))],
  "no penalties in a search": ["translator-starts", /^translator-starts\.json$/, (golden) => {
    for (const { beam } of golden.searches) for (const name of ["repetition_penalty", "no_repeat_ngram"]) delete beam[name];
  }],
  "sources are as long as the longest": ["translator-starts", /^translator-starts\.json$/, (golden) => {
    const longest = Math.max(...golden.sources.map(({ length }) => length));
    for (const source of golden.sources) while (source.length < longest) source.push(0);
  }],
};

for (const [fault, [name, files, change]] of Object.entries(WRONG)) {
  test(`what a wrong runtime does is seen: ${fault}`, () => inCopy(async (folder) => {
    for (const file of (await readdir(folder)).filter((each) => files.test(each))) {
      const place = join(folder, file);
      if (typeof change === "function") {
        const golden = JSON.parse(await readFile(place, "utf8"));
        change(golden);
        await writeFile(place, JSON.stringify(golden));
      } else {
        await writeFile(place, withMetadata(await readFile(place), change));
      }
    }
    const [line, last] = await ran(folder, (each) => each === name);
    assert.match(line, new RegExp(`^FAILED ${name}: `));
    assert.doesNotMatch(line, /metadata|interface|the same model/);
    assert.equal(last, "0 passed, 1 failed");
  }));
}
