"""Requests that a frontend must refuse: what is wrong, the field that the error names, and words that it holds.

The limits are those of a frontend with `LIMITS` and the test model.
"""

from __future__ import annotations

from typing import Any

import pytest

IMAGE = {"type": "image_url", "image_url": {"url": "data:"}}
AUDIO = {"type": "input_audio", "input_audio": {"data": "", "format": "wav"}}
TEXT_PART = {"type": "text", "text": "a"}

TWO_ENDINGS = {"continue_final_message": True, "add_generation_prompt": True}


def nested(depth: int) -> list[Any]:
    """Return a list within lists."""
    value: list[Any] = []
    for _ in range(depth - 1):
        value = [value]
    return value


def say(content: Any) -> dict[str, Any]:
    """Return a message of the user."""
    return {"role": "user", "content": content}


LIMITS: dict[str, Any] = {"max_queued": 8, "max_n": 4, "max_body_bytes": 400_000}

COMPLETION_FAULTS = [
    pytest.param({"temperature": "1"}, "temperature", ["number"], id="a number as text"),
    pytest.param({"temperature": True}, "temperature", ["number"], id="a truth value as number"),
    pytest.param({"temperature": 2.5}, "temperature", ["2"], id="temperature"),
    pytest.param({"temperature": -0.1}, "temperature", ["0"], id="negative temperature"),
    pytest.param({"top_p": 0}, "top_p", ["0"], id="top_p"),
    pytest.param({"priority": 2**31}, "priority", ["2147483647"], id="priority"),
    pytest.param({"priority": "high"}, "priority", ["integer"], id="priority as text"),
    pytest.param({"top_k": -2}, "top_k", ["-1"], id="top_k"),
    pytest.param({"min_p": 1.1}, "min_p", ["1"], id="min_p"),
    pytest.param({"max_tokens": 1.0}, "max_tokens", ["integer"], id="an integer as float"),
    pytest.param({"max_tokens": True}, "max_tokens", ["integer"], id="a truth value as integer"),
    pytest.param({"max_tokens": -1}, "max_tokens", ["0"], id="negative max_tokens"),
    pytest.param({"max_tokens": 0}, "max_tokens", ["1"], id="no tokens without echo"),
    pytest.param({"max_tokens": 2**31}, "max_tokens", ["2147483647"], id="huge max_tokens"),
    pytest.param({"max_tokens": 2000}, "max_tokens", ["2000", "1024", "1 tokens"], id="max_tokens beyond the context"),
    pytest.param({"min_tokens": 5, "max_tokens": 4}, "min_tokens", ["5", "4"], id="min_tokens above max_tokens"),
    pytest.param({"n": 0}, "n", ["1"], id="n is 0"),
    pytest.param({"n": 5}, "n", ["4"], id="huge n"),
    pytest.param({"n": 3, "prompt": ["a", "b", "c"]}, "prompt", ["9", "8"], id="more sequences than may be queued"),
    pytest.param({"seed": 2**63}, "seed", [], id="seed"),
    pytest.param({"prompt": ""}, "prompt", ["empty"], id="empty text"),
    pytest.param({"prompt": []}, "prompt", ["empty"], id="no prompt"),
    pytest.param({"prompt": [[]]}, "prompt", ["empty"], id="no ids"),
    pytest.param({"prompt": ["a", ""]}, "prompt", ["empty"], id="one prompt is empty"),
    pytest.param({"prompt": None}, "prompt", ["list of token ids"], id="null prompt"),
    pytest.param({"prompt": ["a", 5]}, "prompt", ["list of token ids"], id="mixed prompt"),
    pytest.param({"prompt": [5, True]}, "prompt", ["list of token ids"], id="a truth value as id"),
    pytest.param({"prompt": [5, 448]}, "prompt", ["448", "447"], id="id beyond the vocabulary"),
    pytest.param({"prompt": [-1]}, "prompt", ["-1"], id="negative id"),
    pytest.param({"prompt": [10**400]}, "prompt", ["447"], id="huge id"),
    pytest.param({"prompt": [5] * 1024}, "prompt", ["1024"], id="no room in the context"),
    pytest.param({"prompt": "a" * 3000}, "prompt", ["3000", "1024"], id="text beyond the context"),
    pytest.param({"prompt": "a\ud800"}, "prompt", ["surrogate"], id="lone surrogate"),
    pytest.param({"stop": ""}, "stop", ["1 to"], id="empty stop"),
    pytest.param({"stop": ["a"] * 17}, "stop", ["16"], id="many stops"),
    pytest.param({"stop": [1]}, "stop", ["string"], id="a stop that is no text"),
    pytest.param({"stop_token_ids": [448]}, "stop_token_ids", ["448"], id="stop id beyond the vocabulary"),
    pytest.param({"stop_token_ids": list(range(20, 36))}, "stop_token_ids", ["15"], id="many stop ids"),
    pytest.param({"stream": "yes"}, "stream", ["boolean"], id="stream"),
    pytest.param({"stream_options": {}}, "stream_options", ["stream is true"], id="options without a stream"),
    pytest.param({"stream": True, "stream_options": {"x": 1}}, "stream_options.x", ["field"], id="unknown option"),
    pytest.param({"unheard_of": 1}, "unheard_of", ["unheard_of"], id="unknown field"),
    pytest.param({"\ud800": 1}, None, ["unicode"], id="unknown field that is no text"),
    pytest.param({"logprobs": 21}, "logprobs", ["20"], id="many logprobs"),
    pytest.param({"logprobs": -1}, "logprobs", ["0"], id="negative logprobs"),
    pytest.param({"logprobs": True}, "logprobs", ["integer"], id="a truth value as logprobs"),
    pytest.param({"logprobs": 0, "echo": True}, "logprobs", ["logprobs", "echo"], id="logprobs of the prompt"),
    pytest.param({"prompt_logprobs": 0}, "prompt_logprobs", ["not supported"], id="prompt_logprobs"),
    pytest.param({"top_logprobs": 1}, "top_logprobs", ["not supported"], id="top_logprobs"),
    pytest.param({"presence_penalty": 2.1}, "presence_penalty", ["2"], id="presence_penalty"),
    pytest.param({"frequency_penalty": -2.1}, "frequency_penalty", ["-2"], id="frequency_penalty"),
    pytest.param({"frequency_penalty": False}, "frequency_penalty", ["number"], id="a truth value as penalty"),
    pytest.param({"repetition_penalty": 0}, "repetition_penalty", ["0.1"], id="repetition_penalty"),
    pytest.param({"repetition_penalty": 11}, "repetition_penalty", ["10"], id="huge repetition_penalty"),
    pytest.param({"logit_bias": {"448": 1}}, "logit_bias", ["448", "447"], id="bias beyond the vocabulary"),
    pytest.param({"logit_bias": {"-1": 1}}, "logit_bias", ["token ids"], id="bias of a negative id"),
    pytest.param({"logit_bias": {"5.0": 1}}, "logit_bias", ["token ids"], id="bias of a fraction"),
    pytest.param({"logit_bias": {"05": 1}}, "logit_bias", ["token ids"], id="bias of an id in another writing"),
    pytest.param({"logit_bias": {"\u0665": 1}}, "logit_bias", ["token ids"], id="bias of an Arabic digit"),
    pytest.param({"logit_bias": {"9" * 5000: 1}}, "logit_bias", ["token ids"], id="bias of a huge id"),
    pytest.param({"logit_bias": {"5": 100.5}}, "logit_bias.5", ["100"], id="bias above 100"),
    pytest.param({"logit_bias": {"5": -101}}, "logit_bias.5", ["-100"], id="bias below -100"),
    pytest.param({"logit_bias": {"5": "1"}}, "logit_bias.5", ["number"], id="a bias that is text"),
    pytest.param({"logit_bias": {"5": True}}, "logit_bias.5", ["number"], id="a truth value as bias"),
    pytest.param({"logit_bias": [5]}, "logit_bias", ["dictionary"], id="a bias that is a list"),
    pytest.param({"logit_bias": dict.fromkeys(map(str, range(301)), 1)}, "logit_bias", ["300"], id="many biases"),
    pytest.param({"seed": -(2**63) - 1}, "seed", ["-9223372036854775808"], id="seed too small"),
    pytest.param({"seed": 2**70}, "seed", ["9223372036854775808"], id="seed of 71 bits"),
    pytest.param({"seed": True}, "seed", ["integer"], id="a truth value as seed"),
    pytest.param({"n": True}, "n", ["integer"], id="a truth value as n"),
    pytest.param({"n": 2**70}, "n", ["4"], id="n of 71 bits"),
    pytest.param({"priority": 2**70}, "priority", ["2147483647"], id="priority of 71 bits"),
    pytest.param({"priority": -(2**31) - 1}, "priority", ["-2147483648"], id="priority too small"),
    pytest.param({"priority": False}, "priority", ["integer"], id="a truth value as priority"),
    pytest.param({"top_k": 2**70}, "top_k", ["2147483647"], id="top_k of 71 bits"),
    pytest.param({"min_tokens": 2**70}, "min_tokens", ["2147483647"], id="min_tokens of 71 bits"),
    pytest.param({"max_tokens": 2**70}, "max_tokens", ["2147483647"], id="max_tokens of 71 bits"),
    pytest.param({"stop_token_ids": [2**70]}, "stop_token_ids", ["447"], id="stop id of 71 bits"),
    pytest.param({"stop_token_ids": [True]}, "stop_token_ids.0", ["integer"], id="a truth value as stop id"),
    pytest.param({"ignore_eos": 1}, "ignore_eos", ["boolean"], id="a number as truth value"),
    pytest.param({"echo": "true"}, "echo", ["boolean"], id="text as truth value"),
    pytest.param({"model": 5}, "model", ["string"], id="a number as model"),
    pytest.param({"model": "\ud800"}, "model", ["surrogate"], id="lone surrogate in model"),
    pytest.param({"stop": ["a", "\ud800"]}, "stop", ["surrogate"], id="lone surrogate in stop"),
    pytest.param({"prompt": ["a", "\udc00"]}, "prompt", ["surrogate"], id="lone surrogate in a batch"),
    pytest.param({"logit_bias": {"\ud800": 1}}, "logit_bias.\ufffd\ufffd\ufffd", ["surrogate"], id="surrogate as id"),
    pytest.param({"temperature": float("nan")}, "temperature", ["finite"], id="temperature is no number"),
    pytest.param({"temperature": float("inf")}, "temperature", ["finite"], id="endless temperature"),
    pytest.param({"temperature": 10**400}, "temperature", ["number"], id="huge temperature"),
    pytest.param({"top_p": float("-inf")}, "top_p", ["finite"], id="endless top_p"),
    pytest.param({"min_p": float("nan")}, "min_p", ["finite"], id="min_p is no number"),
    pytest.param({"presence_penalty": float("inf")}, "presence_penalty", ["finite"], id="endless penalty"),
    pytest.param({"repetition_penalty": float("nan")}, "repetition_penalty", ["finite"], id="penalty is no number"),
    pytest.param({"logit_bias": {"5": float("nan")}}, "logit_bias.5", ["finite"], id="bias is no number"),
    pytest.param({"logit_bias": {"5": {"5": 1}}}, "logit_bias.5", ["number"], id="nested bias"),
    pytest.param({"prompt": ["a"] * 8193}, "prompt", ["8192"], id="huge batch"),
    pytest.param({"prompt": nested(900)}, "prompt", ["list of token ids"], id="deeply nested prompt"),
    pytest.param({"stop": nested(900)}, "stop", ["string"], id="deeply nested stop"),
    pytest.param({"x": nested(900)}, "x", ["field"], id="deeply nested unknown field"),
    pytest.param({"user": nested(900)}, "user", ["not supported"], id="deeply nested unsupported field"),
    pytest.param({"skip_special_tokens": False}, "skip_special_tokens", ["not supported"], id="skip_special_tokens"),
    pytest.param({"best_of": 2}, "best_of", ["not supported"], id="best_of"),
    pytest.param({"suffix": "x"}, "suffix", ["not supported"], id="suffix"),
    pytest.param({"user": "x"}, "user", ["not supported"], id="user"),
]

CHAT_FAULTS = [
    pytest.param({"messages": []}, "messages", ["1"], id="no message"),
    pytest.param({"messages": "hello"}, "messages", ["list"], id="text as messages"),
    pytest.param({"messages": [{"content": "a"}]}, "messages.0.role", ["required"], id="no role"),
    pytest.param({"messages": [{"role": "tool", "content": "a"}]}, "messages.0.role", ["user"], id="role"),
    pytest.param({"messages": [say("\udc00")]}, "messages.0.content", ["surrogate"], id="lone surrogate"),
    pytest.param({"messages": [{"role": "user", "name": "x"}]}, "messages.0.name", ["not supported"], id="name"),
    pytest.param({"messages": [{"role": "user", "x": 1}]}, "messages.0.x", ["field"], id="unknown field of a message"),
    pytest.param({"messages": [{"role": "user", "content": "a" * 2000}]}, "messages", ["1024"], id="too long"),
    pytest.param({"max_completion_tokens": 0}, "max_completion_tokens", ["1"], id="no tokens"),
    pytest.param({"max_completion_tokens": 5000}, "max_completion_tokens", ["5000", "1024"], id="beyond the context"),
    pytest.param({"tools": [{}]}, "tools", ["not supported"], id="tools"),
    pytest.param({"response_format": {"type": "json_object"}}, "response_format", ["not supported"], id="format"),
    pytest.param({"logprobs": 1}, "logprobs", ["boolean"], id="logprobs"),
    pytest.param({"top_logprobs": 1}, "top_logprobs", ["logprobs"], id="top_logprobs without logprobs"),
    pytest.param({"logprobs": True, "top_logprobs": 21}, "top_logprobs", ["20"], id="many top_logprobs"),
    pytest.param({"logit_bias": {"448": 1}}, "logit_bias", ["448", "447"], id="bias beyond the vocabulary"),
    pytest.param({"messages": [None]}, "messages.0", ["object"], id="null as message"),
    pytest.param({"messages": ["a"]}, "messages.0", ["object"], id="text as message"),
    pytest.param({"messages": {"role": "user"}}, "messages", ["list"], id="an object as messages"),
    pytest.param({"messages": [say("a"), {"role": "wizard"}]}, "messages.1.role", ["user"], id="unknown role"),
    pytest.param({"messages": [{"role": None}]}, "messages.0.role", ["user"], id="null as role"),
    pytest.param({"messages": [say(5)]}, "messages.0.content", ["text"], id="a number as content"),
    pytest.param({"messages": [say(["a"])]}, "messages.0.content", ["text"], id="text as part"),
    pytest.param({"messages": [say([{"type": "text"}])]}, "messages.0.content", ["text"], id="part without text"),
    pytest.param({"messages": [say([TEXT_PART, IMAGE])]}, "messages.0.content", ["text"], id="image beside text"),
    pytest.param({"messages": [say([AUDIO])]}, "messages.0.content", ["not supported"], id="audio"),
    pytest.param({"messages": [say([TEXT_PART | {"text": "\ud800"}])]}, "messages.0.content", ["surrogate"], id="part"),
    pytest.param({"messages": [say(nested(900))]}, "messages.0.content", ["text"], id="deeply nested content"),
    pytest.param({"messages": [say("a") | {"tool_calls": [{}]}]}, "messages.0.tool_calls", ["not supp"], id="calls"),
    pytest.param({"messages": [say("a")] * 2000}, "messages", ["1024"], id="long conversation"),
    pytest.param({"messages": [say("a")] * 8193}, "messages", ["8192"], id="many messages"),
    pytest.param({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs", ["messages"], id="taken name"),
    pytest.param({"chat_template_kwargs": []}, "chat_template_kwargs", ["dictionary"], id="arguments as list"),
    pytest.param(
        {"chat_template_kwargs": {"\ud800": 1}}, "chat_template_kwargs.\ufffd\ufffd\ufffd", ["surr"], id="name"
    ),
    pytest.param(TWO_ENDINGS, "continue_final_message", ["both"], id="two endings"),
    pytest.param({"continue_final_message": 1}, "continue_final_message", ["boolean"], id="a number as truth value"),
    pytest.param({"max_tokens": 3, "max_completion_tokens": 4}, "max_completion_tokens", ["differ"], id="two limits"),
    pytest.param({"echo": True}, "echo", ["not supported"], id="echo"),
]
