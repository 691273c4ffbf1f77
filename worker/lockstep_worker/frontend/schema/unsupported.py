"""Fields of the OpenAI API and of vLLM that this server knows and does not support.

They are accepted only with the values that ask for nothing, which clients send along, and refused by name otherwise.
"""

from __future__ import annotations

from typing import Any

from lockstep_worker.frontend.schema.faults import field_error

NeutralValues = dict[str, tuple[object, ...]]
"""The values of each field that ask for nothing."""

_OF_VLLM: NeutralValues = {
    "allowed_token_ids": (None,),
    "bad_words": (None, []),
    "cache_salt": (None,),
    "chat_template": (None,),
    "documents": (None, []),
    "include_reasoning": (None, True),
    "include_stop_str_in_output": (None, False),
    "kv_transfer_params": (None,),
    "length_penalty": (None, 1, 1.0),
    "logits_processors": (None, []),
    "mm_processor_kwargs": (None, {}),
    "prompt_logprobs": (None,),
    "request_id": (None,),
    "return_token_ids": (None, False),
    "return_tokens_as_token_ids": (None, False),
    "skip_special_tokens": (None, True),
    "spaces_between_special_tokens": (None, True),
    "structured_outputs": (None,),
    "truncate_prompt_tokens": (None,),
    "use_beam_search": (None, False),
    "vllm_xargs": (None, {}),
}
UNSUPPORTED: NeutralValues = _OF_VLLM | {
    "audio": (None,),
    "best_of": (None, 1),
    "function_call": (None, "none"),
    "functions": (None, []),
    "metadata": (None, {}),
    "modalities": (None, ["text"]),
    "moderation": (None,),
    "parallel_tool_calls": (None,),
    "prediction": (None,),
    "prompt_cache_key": (None,),
    "prompt_cache_options": (None,),
    "prompt_cache_retention": (None,),
    "reasoning_effort": (None,),
    "response_format": (None, {"type": "text"}),
    "safety_identifier": (None,),
    "service_tier": (None, "auto", "default"),
    "store": (None, False),
    "suffix": (None, ""),
    "tool_choice": (None, "none"),
    "tools": (None, []),
    "user": (None,),
    "verbosity": (None,),
    "web_search_options": (None,),
}
UNSUPPORTED_IN_COMPLETIONS: NeutralValues = {"add_special_tokens": (None, True), "top_logprobs": (None,)}
UNSUPPORTED_IN_CHAT: NeutralValues = {"add_special_tokens": (None, False), "echo": (None, False)}
UNSUPPORTED_IN_MESSAGES: NeutralValues = {
    "annotations": (None, []),
    "audio": (None,),
    "function_call": (None,),
    "name": (None,),
    "reasoning": (None,),
    "reasoning_content": (None,),
    "refusal": (None,),
    "tool_call_id": (None,),
    "tool_calls": (None, []),
}
"""The same for messages: clients send a reply's fields back with the next question."""


def drop_neutral(data: Any, table: NeutralValues) -> Any:
    """Leave out unsupported fields whose value asks for nothing; what is no object comes back as it is.

    Raises:
        PydanticCustomError: one asks for something.
    """
    if not isinstance(data, dict):
        return data
    for name in data.keys() & table.keys():
        if not any(type(data[name]) is type(neutral) and data[name] == neutral for neutral in table[name]):
            raise field_error(name, "is not supported by this server; leave it out")
    return {name: value for name, value in data.items() if name not in table}
