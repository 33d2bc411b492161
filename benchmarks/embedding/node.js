/** node node.js GRAPH THREADS TOKEN: a greedy text in Node. */

import { Decoder } from "../../runtimes/js/src/index.js";
import { greedy } from "./greedy.js";
import { serve } from "./protocol.js";

const [graph, threads, token] = process.argv.slice(2);
const decoder = await Decoder.open(graph, { threads: Number(threads) });
await serve(greedy(decoder, Number(token)));
await decoder.close();
