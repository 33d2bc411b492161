/** How a timing program is asked: protocol.hpp, in JavaScript. */

import { createInterface } from "node:readline";

/** @param {(word: string, count: number) => Promise<number[]>} answer to each line */
export async function serve(answer) {
  console.log("ready");
  for await (const line of createInterface({ input: process.stdin })) {
    const [word, count] = line.split(" ");
    console.log((await answer(word, Number(count))).join(" "));
  }
}
