"""/v1/completions and /v1/chat/completions answer in OpenAI's format, with the tokens of a single decoder."""

from __future__ import annotations

import contextlib
import http.client
import math
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import openai
import pytest
from tokenizers import Tokenizer as Library
from tokenizers import processors

from cli_models import LETTERS, letter_tokenizer
from runtime import graphs
from runtime.serve.server import Server, letters, running
from t2r_runtime import Decoder, Sampling, Tokenizer
from t2r_runtime.decode.score import score

GREEDY = {"temperature": 0, "max_tokens": 9}


def alone(graph: Path, prompt: str, count: int, **options: Any) -> list[int]:
    decoder = Decoder(graph, threads=1)
    return decoder.generate(Tokenizer.of(decoder.signature).encode(prompt), count, Sampling(**options))


def text_of(tokens: list[int]) -> str:
    """The text of tokens without the stop token."""
    return "".join(LETTERS[token] for token in tokens if token != 2)


def test_models_and_health(server: Server) -> None:
    assert server.good("/health") == {"status": "ok"}
    listed = server.good("/v1/models")
    assert (listed["object"], [model["id"] for model in listed["data"]]) == ("list", ["letters"])
    assert server.good("/v1/models/letters") == listed["data"][0]
    status, answer = server.ask("/v1/models/other")
    assert (status, answer["error"]["code"]) == (404, "model_not_found")


def test_completion_equals_decoder(server: Server, graph: Path) -> None:
    answer = server.complete("abc", model="letters", **GREEDY)
    expected = alone(graph, "abc", 9, temperature=0)
    [choice] = answer["choices"]
    assert choice["tokens"] == expected
    assert choice["text"] == text_of(expected)
    assert choice["finish_reason"] == ("stop" if expected[-1] == 2 else "length")
    assert answer["object"] == "text_completion"
    assert answer["usage"] == {
        "prompt_tokens": 3,
        "completion_tokens": len(expected),
        "total_tokens": 3 + len(expected),
        "prompt_tokens_details": {"cached_tokens": 0},
    }


def test_every_request_at_once_equals_each_alone(server: Server, graph: Path) -> None:
    """40 requests share four rows; each has its own seed."""
    asked = [
        {"prompt": LETTERS[n % 7 : n % 7 + 1 + n % 4], "seed": n, "max_tokens": 3 + 5 * (n % 6), "temperature": 2.5}
        for n in range(40)
    ]
    with ThreadPoolExecutor(20) as pool:
        found = list(pool.map(lambda each: server.tokens(**each)[0], asked))
    for each, tokens in zip(asked, found, strict=True):
        assert tokens == alone(graph, each["prompt"], each["max_tokens"], seed=each["seed"], temperature=2.5)


def test_prompts_and_choices(server: Server, graph: Path) -> None:
    """Choices of a prompt are adjacent; each has its own seed."""
    answer = server.complete(["ab", "c"], n=2, seed=5, temperature=3, max_tokens=4)
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
    expected = [alone(graph, text, 4, seed=seed, temperature=3) for text in ("ab", "c") for seed in (5, 6)]
    assert [choice["tokens"] for choice in answer["choices"]] == expected
    assert answer["usage"]["prompt_tokens"] == 3
    assert server.tokens([0, 1], **GREEDY) == server.tokens("ab", **GREEDY)
    assert server.tokens([[0, 1], [2]], **GREEDY) == server.tokens(["ab", "c"], **GREEDY)


def test_stream_equals_whole(server: Server) -> None:
    fields = {"prompt": ["abc", "b"], "seed": 3, "temperature": 2, "max_tokens": 12, "n": 2, "stop": ["ja", "e"]}
    whole = server.complete(**fields)
    texts, finishes = ["", "", "", ""], {}
    with server.stream(**fields, stream_options={"include_usage": True}) as events:
        *parts, last = events
    for part in parts:
        [choice] = part["choices"]
        assert part["usage"] is None
        assert choice["index"] not in finishes
        texts[choice["index"]] += choice["text"]
        if choice["finish_reason"]:
            finishes[choice["index"]] = choice["finish_reason"]
    assert texts == [choice["text"] for choice in whole["choices"]]
    assert finishes == {choice["index"]: choice["finish_reason"] for choice in whole["choices"]}
    assert (last["choices"], last["usage"]) == ([], whole["usage"])


def test_stop_text_ends_a_choice(server: Server) -> None:
    fields = {"seed": 1, "temperature": 3, "max_tokens": 60, "ignore_eos": True}
    text = server.complete("a", **fields)["choices"][0]["text"]
    stop = text[20:23]
    [choice] = server.complete("a", stop=stop, **fields)["choices"]
    assert choice["text"] == text[: text.index(stop)]
    assert choice["finish_reason"] == "stop"
    assert len(choice["tokens"]) == text.index(stop) + len(stop), "nothing was generated behind it"


def test_echo_with_log_probabilities(server: Server, graph: Path) -> None:
    """The request of lm-eval's local-completions."""
    answer = server.complete([3, 1, 4, 1], echo=True, logprobs=1, max_tokens=1, temperature=0)
    [choice] = answer["choices"]
    found = choice["logprobs"]
    decoder = Decoder(graph, threads=1)
    expected = score(decoder, [3, 1, 4, 1, *choice["tokens"]])
    assert found["token_logprobs"][0] is None
    assert found["token_logprobs"][1:] == pytest.approx(list(expected), rel=1e-4)
    assert found["tokens"] == list(choice["text"]) == list("dbeb" + text_of(choice["tokens"]))
    assert found["text_offset"] == [0, 1, 2, 3, 4]
    assert found["top_logprobs"][0] is None
    assert found["top_logprobs"][-1] == {found["tokens"][-1]: found["token_logprobs"][-1]}
    [scored] = server.complete([3, 1, 4, 1], echo=True, logprobs=0, max_tokens=0)["choices"]
    assert scored["logprobs"]["token_logprobs"] == found["token_logprobs"][:-1]
    assert (scored["text"], scored["tokens"], scored["finish_reason"]) == ("dbeb", [], "length")
    echoed = server.complete("db", echo=True, **GREEDY)["choices"][0]
    assert echoed["text"] == "db" + server.complete("db", **GREEDY)["choices"][0]["text"]
    assert echoed["logprobs"] is None


def test_text_offsets_without_special_tokens(tmp_path: Path) -> None:
    """Offsets of tokens in the text, whose only special tokens are those in the prompt."""
    library = Library.from_str(letter_tokenizer(LETTERS[: graphs.VOCABULARY]))
    library.post_processor = processors.TemplateProcessing(single="k $A", special_tokens=[("k", 10)])
    library.add_special_tokens(["k"])
    asked = {"echo": True, "logprobs": 1, "temperature": 3, "seed": 1, "max_tokens": 40, "ignore_eos": True}
    with running(letters(tmp_path, tokenizer=library.to_str())) as server:
        for prompt, echoed, before in (
            ("akb", "akb", [0, 0, 1, 2]),
            ([10, 0, 10, 1], "ab", [0, 0, 1, 1]),
            ("", "", []),
        ):
            [choice] = server.complete(prompt, **asked)["choices"]
            tokens, places, text = choice["logprobs"]["tokens"], choice["logprobs"]["text_offset"], choice["text"]
            new = choice["tokens"]
            assert 10 in new
            assert text == echoed + "".join(LETTERS[token] for token in new if token != 10)
            assert places[: len(before)] == before
            expected = len(echoed)
            for token, place in zip(new, places[-len(new) :], strict=True):
                assert place == expected
                expected += token != 10
            with server.stream(prompt=prompt, **asked) as parts:
                found = [part["choices"][0]["logprobs"] for part in parts]
            assert [each for part in found if part for each in part["tokens"]] == tokens
            assert [each for part in found if part for each in part["text_offset"]] == places


def test_chat(server: Server, graph: Path) -> None:
    messages = [{"role": "system", "content": "ab"}, {"role": "user", "content": [{"type": "text", "text": "c"}]}]
    body = {"messages": messages, **GREEDY, "logprobs": True, "top_logprobs": 2, "return_tokens": True}
    answer = server.good("/v1/chat/completions", body)
    [choice] = answer["choices"]
    expected = alone(graph, "abkc", 9, temperature=0)
    assert choice["tokens"] == expected
    assert choice["message"] == {"role": "assistant", "content": text_of(expected), "refusal": None}
    assert answer["object"] == "chat.completion"
    content = choice["logprobs"]["content"]
    assert [each["token"] for each in content] == [LETTERS[token] for token in expected]
    for each in content:
        best = each["top_logprobs"]
        assert (best[0]["token"], best[0]["logprob"]) == (each["token"], each["logprob"])
        assert best[0]["logprob"] >= best[1]["logprob"]
        assert each["bytes"] == list(each["token"].encode())
        assert math.exp(each["logprob"]) <= 1
    with server.stream("/v1/chat/completions", messages=messages, **GREEDY) as events:
        first, *parts = events
    assert first["choices"] == [{"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}]
    assert "".join(part["choices"][0]["delta"].get("content", "") for part in parts) == text_of(expected)
    assert parts[-1]["choices"][0]["finish_reason"] == choice["finish_reason"]


def test_tokens_and_back(server: Server) -> None:
    found = server.good("/tokenize", {"prompt": "abc"})
    assert found == {"tokens": [0, 1, 2], "count": 3, "max_model_len": None}
    assert server.good("/detokenize", {"tokens": [0, 1, 2]}) == {"prompt": "abc", "content": "abc"}
    about = server.good("/tokenizer_info")
    assert (about["bos_token"], about["eos_token"], about["vocab_size"]) == ("b", "c", 11)


def test_openai_client(server: Server, graph: Path) -> None:
    with openai.OpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key="none", max_retries=0) as client:
        assert [model.id for model in client.models.list()] == ["letters"]
        expected = text_of(alone(graph, "abc", 9, temperature=0))
        done = client.completions.create(model="letters", prompt="abc", max_tokens=9, temperature=0, logprobs=1)
        assert done.choices[0].text == expected
        assert done.usage is not None
        assert done.usage.prompt_tokens_details is not None
        message = {"role": "user", "content": "abc"}
        asked = {"model": "letters", "messages": [message], "max_tokens": 9, "temperature": 0}
        chat = client.chat.completions.create(**asked, extra_body={"session_id": "mine"})
        assert chat.choices[0].message.content == expected
        parts = client.chat.completions.create(**asked, stream=True)
        assert "".join(part.choices[0].delta.content or "" for part in parts) == expected
        with pytest.raises(openai.NotFoundError, match="did you mean letters"):
            client.completions.create(model="letter", prompt="a")


def test_metrics_count(server: Server) -> None:
    names = ("t2r_prompt_tokens_total", "t2r_generated_tokens_total", "t2r_request_seconds_count")
    before = [server.metric(name) for name in names]
    server.complete("abcd", max_tokens=5, ignore_eos=True)
    assert [server.metric(name) - was for name, was in zip(names, before, strict=True)] == [4, 5, 1]
    text = server.good("/metrics")
    assert 't2r_rows{model="letters"} 4' in text
    assert 't2r_step_seconds_bucket{model="letters",le="+Inf"}' in text


def test_token_ids_need_no_tokenizer(tmp_path: Path) -> None:
    graph = letters(tmp_path, "bare", tokenizer=None, chat_template=None)
    with running(graph, letters(tmp_path, "other")) as server:
        assert len(server.tokens([3, 4], model="bare", **GREEDY)[0]) > 0
        status, answer = server.ask("/v1/completions", {"prompt": "a", "model": "bare"})
        assert (status, answer["error"]["code"]) == (400, "tokenizer")
        status, answer = server.ask("/v1/completions", {"prompt": "a"})
        assert (status, answer["error"]["param"]) == (404, "model")
        status, answer = server.ask("/v1/translate", {"source": "a", "model": "other"})
        assert "expected a translator" in answer["error"]["message"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_finishes_what_runs(number: signal.Signals, graph: Path) -> None:
    with running(graph, "--rows", 2) as server:
        with server.stream(prompt="a", max_tokens=4000, ignore_eos=True, return_tokens=True) as events:
            first = next(events)
            server.process.send_signal(number)
            tokens = first["choices"][0]["tokens"] + [t for event in events for t in event["choices"][0]["tokens"]]
        assert len(tokens) == 4000
        assert server.ended() == 0
        with pytest.raises(OSError):
            server.ask("/health")


def test_second_ctrl_c_drops_what_runs(graph: Path) -> None:
    """The server exits cleanly and reports nothing about the requests it drops."""
    with running(graph, "--max-tokens", 10**9) as server:
        with server.stream(prompt="a", max_tokens=10**9, ignore_eos=True) as events:
            server.process.send_signal(signal.SIGINT)
            with contextlib.suppress(OSError):  # until the server stops listening
                while next(events):
                    server.ask("/health")
            server.process.send_signal(signal.SIGINT)
            with contextlib.suppress(http.client.HTTPException, OSError):
                list(events)
        assert server.ended() == 0
        assert server.said == []


def test_time_limit(graph: Path) -> None:
    """Late texts are cut, or refused if they have not begun."""
    with running(graph, "--rows", 1, "--seconds", 1, "--max-tokens", 10**9) as server, ThreadPoolExecutor(3) as pool:
        long = {"max_tokens": 10**9, "ignore_eos": True}
        found = list(pool.map(lambda text: server.ask("/v1/completions", {"prompt": text, **long}), "abc"))
        cut = [answer["choices"][0]["finish_reason"] for status, answer in found if status == 200]
        late = [answer["error"]["message"] for status, answer in found if status == 503]
        assert len(cut) + len(late) == 3
        assert set(cut) == {"length"}
        assert set(late) <= {"expected a first token in time; received none in 1 s; try again later"}


def test_texts_of_a_request_count_together(graph: Path) -> None:
    with running(graph, "--rows", 2, "--queue", 1) as server:
        for count in (3, 3, 1):
            assert len(server.complete(["a"] * count, max_tokens=2)["choices"]) == count
        for fields, param in (({"prompt": ["a"] * 4}, "prompt"), ({"prompt": "a", "n": 4}, "n")):
            status, answer = server.ask("/v1/completions", fields)
            assert (status, answer["error"]["param"]) == (400, param)
            assert answer["error"]["message"] == (
                "expected a request of at most 3 texts, --rows 2 and --queue 1 together; received 4; "
                "send several requests"
            )
        assert server.metric("t2r_texts_waiting") == server.metric("t2r_rows_running") == 0


def test_queue_limit(graph: Path) -> None:
    with running(graph, "--rows", 1, "--queue", 1, "--max-tokens", 10**9) as server:
        long = {"prompt": "a", "max_tokens": 10**9, "ignore_eos": True}
        with server.stream(**long) as one:
            next(one)
            with server.stream(**long):
                server.until("t2r_texts_waiting", 1)
                status, answer = server.ask("/v1/completions", {"prompt": "b"})
                assert (status, answer["error"]["code"]) == (429, "queue_full")
        server.until("t2r_texts_waiting", 0)
        assert len(server.tokens("b", max_tokens=3, ignore_eos=True)[0]) == 3
