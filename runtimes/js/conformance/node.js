/** node conformance/node.js FOLDER [PROVIDER]: one line per case, then `N passed, N failed`; exit 1 if any failed. */

import { readFile } from "node:fs/promises";
import { join } from "node:path";

import { conform } from "./cases.js";

const [folder = "../../models/tiny", provider = "cpu"] = process.argv.slice(2);
const files = {
  json: async (name) => JSON.parse(await readFile(join(folder, name), "utf8")),
  bytes: async (name) => new Uint8Array(await readFile(join(folder, name))),
  source: (name) => join(folder, name),
};
try {
  process.exitCode = (await conform(files, { provider }, console.log)) ? 1 : 0;
} catch (error) {
  console.error(`t2r-conformance: ${error.message}`);
  process.exitCode = 2;
}
