"""Chat templates: rendered as by transformers, and bounded for untrusted templates."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from tokenizers import AddedToken
from tokenizers import Tokenizer as Library
from transformers import PreTrainedTokenizerFast

from runtime import graphs
from runtime.test_tokenizer import byte_level, pieces
from t2r_runtime import Signature, Tokenizer, UserError
from t2r_runtime.contract import chat

CHATML = """{% for message in messages %}
{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}
{%- endfor %}
{% if add_generation_prompt %}
{{ '<|im_start|>assistant\\n' }}
{%- endif %}"""
LLAMA_2 = (
    "{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}"
    "{% set system = messages[0]['content'] %}{% else %}{% set loop_messages = messages %}{% set system = false %}"
    "{% endif %}{% for m in loop_messages %}{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}{% if loop.index0 == 0 and system != false %}"
    "{% set content = '<<SYS>>\\n' + system + '\\n<</SYS>>\\n\\n' + m['content'] %}{% else %}"
    "{% set content = m['content'] %}{% endif %}{% if m['role'] == 'user' %}"
    "{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}{% elif m['role'] == 'assistant' %}"
    "{{ ' ' + content.strip() + ' ' + eos_token }}{% endif %}{% endfor %}"
)
FIELD = """{%- set ns = namespace(turns=0) -%}
{%- for message in messages -%}
    {%- if message.role == 'tool' %}{% continue %}{% endif -%}
    {%- if loop.index0 > 6 %}{% break %}{% endif -%}
    {%- set ns.turns = ns.turns + 1 -%}
    {%- generation %}{{ message | tojson }}{% endgeneration -%}
    {{ message | tojson(indent=2) }}{{ message.content | trim | upper }}
{%- endfor -%}
{{ ns.turns }}{{ tools is none }}{{ documents is none }}{{ strftime_now('%Y') | length }}{{ dict(a=1) | tojson }}
"""
TEMPLATES = {"chatml": CHATML, "llama 2": LLAMA_2, "what the field uses": FIELD}
TALKS: dict[str, list[dict[str, Any]]] = {
    "a question": [{"role": "user", "content": " hello <&> 日本 "}],
    "with a system": [{"role": "system", "content": "be kind"}, {"role": "user", "content": "hello"}],
    "three turns": [
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": " two "},
        {"role": "user", "content": "three"},
    ],
}
TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}
TURN = TALKS["a question"]


def with_template(template: str, tokenizer: str = pieces()) -> Tokenizer:
    return Tokenizer(tokenizer, 1, {"template": template, "tokens": TOKENS})


@pytest.mark.parametrize("prompt", [True, False])
@pytest.mark.parametrize("talk", TALKS)
@pytest.mark.parametrize("name", TEMPLATES)
def test_chat_template_matches_transformers(name: str, talk: str, prompt: bool) -> None:
    library = PreTrainedTokenizerFast(tokenizer_object=Library.from_str(pieces()), **TOKENS)
    library.chat_template = TEMPLATES[name]
    wanted = library.apply_chat_template(TALKS[talk], tokenize=False, add_generation_prompt=prompt)
    ours = with_template(TEMPLATES[name])
    text = ours.chat(TALKS[talk], add_generation_prompt=prompt)
    assert text == wanted
    ids = library.apply_chat_template(TALKS[talk], tokenize=True, add_generation_prompt=prompt, return_dict=False)
    assert ours.encode(text, special_tokens=False) == ids


def refused(template: str, why: str, messages: Any = TURN) -> None:
    with pytest.raises(UserError, match=why) as caught:
        with_template(template).chat(messages)
    assert str(caught.value).isprintable()


def test_template_rejects_messages() -> None:
    refused(LLAMA_2, "received roles must alternate; change the messages", [{"role": "assistant", "content": "a"}])
    refused("{{ messages[0].content.nothing() }}", "has no attribute 'nothing'")


BAD = {
    "for ever": "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "itself again": "{% set n = namespace(x='a') %}{% for a in range(60) %}{% set n.x = n.x ~ n.x %}{% endfor %}",
    "a product": "{{ 'a' * 10 ** 12 }}",
    "a width": "{{ '%1000000000000d' % 1 }}",
    "a filter": "{{ 'a' | center(10 ** 12) }}",
    "a power": "{{ (10 ** (10 ** 10)) | string | length }}",
    "a long text": "{{ 'abcdefgh' * 1000000 }}",
    "no end": "{% for a in messages %}",
    "nesting": "{% if 1 %}" * 2000 + "{% endif %}" * 2000,
}


@pytest.mark.parametrize("name", BAD)
def test_a_template_is_bounded(name: str) -> None:
    refused(BAD[name], "expected a chat template that accepts these messages; received ")


INSIDE = [
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{{ ''['__class__'] }}x{{ (''|attr('__class__')).mro() }}",
    "{{ raise_exception.__globals__ }}{{ raise_exception.__globals__['sys'].exit() }}",
    "{{ messages.append(1) }}",
    "{{ messages[0].update(role='x') }}",
    "{{ cycler.__init__.__globals__.os.system('true') }}",
    "{{ '{0.__class__.__init__}'.format(messages) }}{{ ''.__class__() }}",
    "{% set ns = namespace(__class__=1) %}",
    "{% include '/etc/hostname' %}",
    "{% import 'os' as os %}",
]


@pytest.mark.parametrize("template", INSIDE)
def test_template_sandbox(template: str) -> None:
    refused(template, "expected a chat template that accepts these messages; received ")


OTHER_MESSAGES = [None, "hello", 3, [3], [{"content": "a"}], [{"role": 3}], [{"role": "user", "content": {1, 2}}]]


@pytest.mark.parametrize("messages", OTHER_MESSAGES, ids=repr)
def test_other_messages(messages: Any) -> None:
    with pytest.raises(UserError):
        with_template(CHATML).chat(messages)


def test_without_a_template_or_jinja2(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="expected a model with a chat template; received one without"):
        Tokenizer(pieces()).chat(TURN)
    monkeypatch.setitem(sys.modules, "jinja2", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    refused(CHATML, "the package jinja2; received a Python without it; pip install jinja2")


def test_template_in_metadata() -> None:
    made = {"template": CHATML, "tokens": TOKENS}
    written = graphs.signature(chat_template=made, tokenizer=pieces())
    read = Signature.from_metadata(written.to_metadata())
    assert read.chat_template == made
    assert read == written
    assert "t2r.chat_template" not in graphs.signature().to_metadata()
    assert Signature.from_metadata(graphs.signature().to_metadata()).chat_template is None
    assert written.companion("prefill").chat_template is None
    assert Tokenizer.of(read).chat(TURN) == with_template(CHATML).chat(TURN)


@pytest.mark.parametrize(
    "value",
    [
        "a text",
        {"template": CHATML},
        {"template": "a" * (chat.MAX_TEMPLATE + 1), "tokens": {}},
        {"template": "", "tokens": {"bos_token": 3}},
        {"template": "", "tokens": {"__class__": "a"}},
        {"template": "", "tokens": {"bos_token": "a" * 1000}},
        {"template": "", "tokens": [], "more": 1},
    ],
    ids=str,
)
def test_invalid_value(value: Any) -> None:
    with pytest.raises(UserError, match="a bad value of chat_template"):
        Signature.from_metadata(graphs.signature(chat_template=value).to_metadata())
    with pytest.raises(UserError):
        Tokenizer(pieces(), 1, value)


def test_end_of_turn_token() -> None:
    library = Library.from_str(byte_level())
    library.add_special_tokens([AddedToken("<|im_end|>", special=True)])
    made = Tokenizer(library.to_str(), None, {"template": CHATML, "tokens": {"eos_token": "<|im_end|>"}})
    assert made.end_of_turn == library.token_to_id("<|im_end|>")
    assert with_template(CHATML).end_of_turn == 2
    assert Tokenizer(pieces()).end_of_turn is None
