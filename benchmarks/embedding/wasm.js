/**
 * node wasm.js STEPS GRAPH GRAPH…: processor time of a step of each graph in ONNX Runtime's WebAssembly, on one thread of
 * Node, in turns; of t2r:GRAPH in our own provider's module (`make web-provider`), of cpu:GRAPH natively, by onnxruntime-node. It needs
 * `npm install` in runtimes/js. States are chained, tokens are random; prefill graphs are not run.
 */

import { readFile, readdir } from "node:fs/promises";
import { basename, dirname, join } from "node:path";

import * as web from "../../runtimes/js/node_modules/onnxruntime-web/dist/ort.wasm.bundle.min.mjs";
import * as node from "../../runtimes/js/node_modules/onnxruntime-node/dist/index.js";
import { openModule } from "../../runtimes/js/src/module.js";

const ARRAYS = { float32: Float32Array, int8: Int8Array, int32: Int32Array, int64: BigInt64Array };
const [steps, ...graphs] = process.argv.slice(2);
web.env.wasm.numThreads = 1;

const RUNTIMES = { cpu: async () => node.default, t2r: openModule, wasm: async () => web };

async function opened(given) {
  const [, provider = "wasm", graph] = /^(?:(t2r|cpu):)?(.*)$/.exec(given), ort = await RUNTIMES[provider]();
  const folder = dirname(graph), names = await readdir(folder);
  const weights = names.filter((name) => name.startsWith(`${basename(graph)}.`) && name.endsWith(".data"));
  const externalData = await Promise.all(weights.map(async (path) => ({ path, data: await readFile(join(folder, path)) })));
  const session = await ort.InferenceSession.create(await readFile(graph), { executionProviders: [provider], externalData, intraOpNumThreads: 1 });
  const zeros = ({ name, type, shape }) => {
    const dims = shape.map((size) => (typeof size === "number" && size >= 0 ? size : 1));
    return [name, new ort.Tensor(type, new ARRAYS[type](dims.reduce((all, size) => all * size, 1)), dims)];
  };
  return { graph: given, ort, session, feeds: Object.fromEntries(session.inputMetadata.map(zeros)), times: [] };
}

const all = [];
for (const graph of graphs) all.push(await opened(graph));
for (let step = 0; step < Number(steps) + 2; step++) {
  for (const { ort, session, feeds, times } of all) {
    feeds.input_ids = new ort.Tensor("int64", BigInt64Array.of(BigInt((step * 7919) % 250)), [1]);
    const start = process.cpuUsage(), found = await session.run(feeds), { user, system } = process.cpuUsage(start);
    if (step > 1) times.push((user + system) / 1000); // the first two compile
    for (const name of ["input_ids", ...session.outputNames]) {
      const past = name.replace("present_", "past_"), old = name === past ? (found[name] ?? feeds[name]) : feeds[past];
      if (name !== past) feeds[past] = found[name];
      old.dispose();
    }
  }
}
const median = (times) => times.sort((a, b) => a - b)[times.length >> 1];
for (const { graph, times } of all) {
  console.log(`${graph}: ${median(times).toFixed(1)} ms, ${(median(times) / median(all[0].times)).toFixed(2)} of the first`);
}
console.log(`memory of the process: ${(process.resourceUsage().maxRSS / 1e3).toFixed(0)} MB at most, ${(process.memoryUsage().rss / 1e6).toFixed(0)} MB now`);
