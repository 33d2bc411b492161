/** Chat templates: as in the contract, and bounded even if untrusted. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { Tokenizer, readModelFile, readSignature } from "../src/index.js";
import { render } from "../src/chat.js";
import { bytesOf, refused } from "./files.js";

const CHATML = `{% for message in messages %}
{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}
{%- endfor %}
{% if add_generation_prompt %}
{{ '<|im_start|>assistant\\n' }}
{%- endif %}`;
const FIELD = `{%- set ns = namespace(turns=0) -%}
{%- for message in messages -%}
    {%- if message.role == 'tool' %}{% continue %}{% endif -%}
    {%- if loop.index0 > 2 %}{% break %}{% endif -%}
    {%- set ns.turns = ns.turns + 1 -%}
    {%- generation %}{{ message | tojson }}{% endgeneration -%}
    {{ message.content | trim | upper }}
{%- endfor -%}
{{ ns.turns }}{% if tools is none and documents is none %}{{ bos_token }}{{ strftime_now('%Y') | length }}{% endif %}
`;
const TOKENS = { bos_token: "<s>", eos_token: "</s>" }, TURN = [{ role: "user", content: " hello <&> 日本 " }];
const TALK = [...TURN, { role: "tool", content: "x" }, { role: "assistant", content: "two" }, { role: "user", content: "late" }];
const rendered = (template, messages = TURN, add = true) => render({ template, tokens: TOKENS }, messages, add);

test("what templates write", async () => {
  const turn = "<|im_start|>user\n hello <&> 日本 <|im_end|>\n";
  assert.equal(await rendered(CHATML), `${turn}<|im_start|>assistant\n`);
  assert.equal(await rendered(CHATML, TURN, false), turn);
  const said = '{"role": "user", "content": " hello <&> 日本 "}HELLO <&> 日本{"role": "assistant", "content": "two"}TWO';
  assert.equal(await rendered(FIELD, TALK), `${said}2<s>4`);
});

test("of a graph", async () => {
  const { metadata } = readModelFile(await bytesOf("bytes.onnx"));
  assert.equal(readSignature(metadata).chatTemplate, null);
  await refused(() => Tokenizer.of(readSignature(metadata)).chat(TURN), "tokenizer", /a model with a chat template/);
  const { tokenizer } = readSignature(metadata), added = JSON.parse(tokenizer).added_tokens[0];
  const chat = { template: CHATML, tokens: { eos_token: added.content } };
  metadata.set("t2r.chat_template", JSON.stringify(chat));
  const made = Tokenizer.of(readSignature(metadata));
  assert.equal(await made.chat(TURN, { addGenerationPrompt: false }), await rendered(CHATML, TURN, false));
  assert.equal(made.endOfTurn, added.id);
  assert.equal(new Tokenizer(tokenizer).endOfTurn, null);
  for (const wrong of [
    "x", {}, { template: CHATML }, { template: 3, tokens: {} }, { template: "", tokens: { other: "" } }, { template: "", tokens: [] },
    { template: "a".repeat(65537), tokens: {} }, { template: "", tokens: { bos_token: "a".repeat(257) } }, { ...chat, more: 1 },
  ]) {
    metadata.set("t2r.chat_template", JSON.stringify(wrong));
    await refused(() => readSignature(metadata), "metadata", /chat_template/);
    await refused(() => new Tokenizer(tokenizer, null, wrong), "tokenizer");
  }
});

const REFUSED = {
  "one that refuses": ["{{ raise_exception('roles must alternate') }}", /roles must alternate/],
  "one that is no template": ["{% if %}", /received/],
  "what a sandbox hides": ["{{ messages.constructor.constructor('return process')() }}", /received/],
  "one that doubles a text": ["{% set ns = namespace(x='ab') %}{% for i in range(60) %}{% set ns.x = ns.x + ns.x %}{% endfor %}{{ ns.x }}", /length|memory/i],
  "one that fills memory": ["{{ range(100000000) | length }}", /memory|longer than/i],
  "one that writes too much": ["{% for i in range(70000) %}ab{% endfor %}", /more than 65\d\d\d characters/],
};
for (const [name, [template, said]] of Object.entries(REFUSED)) {
  test(`a template is refused: ${name}`, () => refused(() => rendered(template), "tokenizer", said));
}

test("a template that does not end", async () => {
  const template = { template: "{% for i in range(30000) %}{% for j in range(30000) %}{% endfor %}{% endfor %}", tokens: {} };
  await refused(() => render(template, TURN, true, { seconds: 1 }), "tokenizer", /longer than 1 s/);
});

test("messages of another form", async () => {
  const loop = [{ role: "user" }];
  loop[0].content = loop;
  for (const wrong of ["hello", null, [3], [{ content: "a" }], [{ role: 1 }], [{ role: "user", content: 3n }], loop]) {
    await refused(() => rendered(CHATML, wrong), "tokenizer");
  }
});
