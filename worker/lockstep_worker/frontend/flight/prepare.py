"""A request's fields become sequences for the ranks: prompts are tokenized, limits checked, defaults filled in.

What cannot be served is refused here, before the ranks hear of it. Knows no sockets and no HTTP.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator
from hashlib import blake2b

from lockstep_worker.errors import RequestError
from lockstep_worker.frontend.flight.generation import Choice, Generation
from lockstep_worker.frontend.schema.fields import Prompt
from lockstep_worker.frontend.schema.schemas import ChatBody, CompletionBody
from lockstep_worker.frontend.settings import FrontendSettings
from lockstep_worker.frontend.text.tokenizer import TextTokenizer
from lockstep_worker.wire.params import MAX_STOP_TOKEN_IDS, SamplingParams

_SEED_MASK = 2**63 - 1
Body = CompletionBody | ChatBody


class Preparation:
    """Turns bodies into generations.

    Args:
        settings: limits and the model's end ids.
        tokenizer: the model's.
    """

    def __init__(self, settings: FrontendSettings, tokenizer: TextTokenizer) -> None:
        self._settings = settings
        self._tokenizer = tokenizer

    async def prepare_completion(self, body: CompletionBody) -> Generation:
        """Prepare `/v1/completions`.

        Raises:
            RequestError: it cannot be served.
        """
        arrived_s = time.monotonic()
        self._check_fields(body, smallest_limit=0 if body.echo else 1)
        given = _split(body.prompt)
        self._check_number(len(given) * (body.n or 1), "prompt")
        prompts = await self._encode(given)
        for ids in prompts:
            self._check_prompt(ids, "prompt")
        echoes = [await self._echo(prompt) if body.echo else "" for prompt in given]
        return self._build(body, prompts, echoes, arrived_s)

    async def prepare_chat(self, body: ChatBody) -> Generation:
        """Prepare `/v1/chat/completions`.

        Raises:
            RequestError: it cannot be served.
        """
        arrived_s = time.monotonic()
        self._check_fields(body, smallest_limit=1)
        self._check_number(body.n or 1, "n")
        ids = await self._tokenizer.encode_chat(body.conversation(body.messages))
        self._check_prompt(ids, "messages")
        return self._build(body, [ids], [""], arrived_s)

    async def _echo(self, prompt: str | list[int]) -> str:
        return prompt if isinstance(prompt, str) else await self._tokenizer.decode(prompt)

    async def _encode(self, prompts: list[str | list[int]]) -> list[list[int]]:
        texts = [prompt for prompt in prompts if isinstance(prompt, str)]
        encoded = iter(await self._tokenizer.encode(texts, add_special_tokens=True))
        return [next(encoded) if isinstance(prompt, str) else prompt for prompt in prompts]

    def check_ids(self, ids: list[int], field: str) -> None:
        """Check that the model knows all ids.

        Raises:
            RequestError: it does not.
        """
        wrong = next((token for token in ids if not 0 <= token < self._settings.vocab_size), None)
        if wrong is not None:
            last = self._settings.vocab_size - 1
            raise RequestError(f"{field}: {_short(wrong)} is not a token id; ids go from 0 to {last}", field)

    def _check_fields(self, body: Body, *, smallest_limit: int) -> None:
        limit = body.token_limit
        if limit is not None and limit < smallest_limit:
            raise RequestError(f"{_limit_field(body)} must be at least 1", _limit_field(body))
        if (body.n or 1) > self._settings.max_n:
            raise RequestError(f"n must be at most {self._settings.max_n}", "n")
        stop_ids = body.stop_token_ids or []
        self.check_ids(stop_ids, "stop_token_ids")
        room = max(MAX_STOP_TOKEN_IDS - len(self._end_ids(body)), 0)
        if len(set(stop_ids)) > room:
            raise RequestError(f"stop_token_ids must hold at most {room} ids", "stop_token_ids")
        self.check_ids([int(token) for token in body.logit_bias or ()], "logit_bias")

    def _check_prompt(self, ids: list[int], field: str) -> None:
        if not ids:
            raise RequestError(f"{field} is empty; at least one token is needed", field)
        context = self._settings.max_model_len
        if len(ids) + 1 > context:
            raise RequestError(
                f"{field} has {len(ids)} tokens, which leaves no room in the context of {context} tokens", field
            )
        self.check_ids(ids, field)

    def _check_number(self, num_sequences: int, field: str) -> None:
        limit = self._settings.max_queued
        if num_sequences > limit:
            raise RequestError(f"{field} and n make {num_sequences} sequences; at most {limit} are allowed", field)

    def _build(self, body: Body, prompts: list[list[int]], echoes: list[str], arrived_s: float) -> Generation:
        choices: list[Choice] = []
        for prompt, echo in zip(prompts, echoes, strict=True):
            for number, params in enumerate(self._params(body, len(prompt))):
                choices.append(
                    Choice(
                        index=len(choices),
                        prompt=prompt,
                        params=params,
                        detokenizer=self._tokenizer.detokenizer(prompt),
                        stops=body.stop_strings,
                        echo=echo,
                        is_first=number == 0,
                    )
                )
        return Generation(
            choices,
            prompt_tokens=sum(map(len, prompts)),
            is_streamed=bool(body.stream),
            priority=body.priority or 0,
            arrived_s=arrived_s,
        )

    def _params(self, body: Body, prompt_tokens: int) -> Iterator[SamplingParams]:
        """Yield one set for each of the `n` outputs of a prompt; they differ in the seed."""
        max_tokens = self._max_tokens(body, prompt_tokens)
        min_tokens = body.min_tokens or 0
        if min_tokens > max_tokens:
            raise RequestError(f"min_tokens is {min_tokens}, above the limit of {max_tokens} tokens", "min_tokens")
        for index in range(body.n or 1):
            yield SamplingParams(
                max_tokens=max_tokens,
                temperature=1.0 if body.temperature is None else body.temperature,
                top_p=1.0 if body.top_p is None else body.top_p,
                top_k=max(body.top_k or 0, 0),
                min_p=body.min_p or 0.0,
                seed=secrets.randbits(63) if body.seed is None else derive_seed(body.seed, index),
                end_ids=self._end_ids(body),
                stop_token_ids=tuple(sorted(set(body.stop_token_ids or ()))),
                min_tokens=min_tokens,
                repetition_penalty=1.0 if body.repetition_penalty is None else body.repetition_penalty,
                presence_penalty=body.presence_penalty or 0.0,
                frequency_penalty=body.frequency_penalty or 0.0,
                logit_bias=tuple(sorted((int(token), value) for token, value in (body.logit_bias or {}).items())),
                logprobs=body.num_logprobs,
            )

    def _max_tokens(self, body: Body, prompt_tokens: int) -> int:
        room = self._settings.max_model_len - prompt_tokens
        limit = body.token_limit
        if limit is None:
            return min(room, body.default_tokens or room)
        if limit > room:
            raise RequestError(
                f"The prompt has {prompt_tokens} tokens and {_limit_field(body)} is {limit}; together they exceed "
                f"the context of {self._settings.max_model_len} tokens",
                _limit_field(body),
            )
        return limit

    def _end_ids(self, body: Body) -> tuple[int, ...]:
        return () if body.ignore_eos else self._settings.end_ids


def derive_seed(seed: int, index: int) -> int:
    """Return the seed of output number `index`; the first one's is the request's own, so that `n` changes nothing."""
    seed &= _SEED_MASK
    if index == 0:
        return seed
    digest = blake2b(seed.to_bytes(8, "little") + index.to_bytes(8, "little"), digest_size=8).digest()
    return int.from_bytes(digest, "little") & _SEED_MASK


def _split(prompt: Prompt) -> list[str | list[int]]:
    """Return the prompts one by one."""
    if isinstance(prompt, str):
        return [prompt]
    if not prompt:
        raise RequestError("prompt is empty; at least one token is needed", "prompt")
    ids = [item for item in prompt if isinstance(item, int)]
    return [ids] if ids else [item for item in prompt if not isinstance(item, int)]


def _limit_field(body: Body) -> str:
    if isinstance(body, ChatBody) and body.max_completion_tokens is not None:
        return "max_completion_tokens"
    return "max_tokens"


def _short(number: int) -> str:
    text = str(number)
    return text if len(text) <= 24 else f"{text[:20]}..."
