"""What a rank's metrics say after real work, and that all of it is defined once and documented."""

from __future__ import annotations

import pytest
import torch
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from lockstep_worker.executor.exchange import RankState
from lockstep_worker.metrics.families import HangCollector, RankMetrics
from lockstep_worker.metrics.tables import HANG_METRICS, RANK_METRICS
from lockstep_worker.model.forward import Model
from lockstep_worker.model.loader import load_model
from lockstep_worker.wire.messages import Cancel, NewRequest
from lockstep_worker.wire.params import SamplingParams
from support.data.tiny_models import save_tiny_model
from support.worlds.local_group import LocalGroup

PROMPT = [3] * 33


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    path = save_tiny_model("llama", tmp_path_factory.mktemp("model"))
    return load_model(str(path), device=torch.device("cpu"), dtype="float32")


def greedy(max_tokens: int, **options: object) -> SamplingParams:
    return SamplingParams(max_tokens=max_tokens, temperature=0.0, **options)  # type: ignore[arg-type]


def values(group: LocalGroup) -> dict[str, float]:
    """Every series with a value other than zero, by its name and labels without `rank`; no buckets."""
    found = {}
    for family in text_string_to_metric_families(generate_latest(group.registry).decode()):
        for sample in family.samples:
            assert sample.labels.pop("rank") == "0"
            if sample.value and not sample.name.endswith(("_bucket", "_created")):
                labels = ",".join(sample.labels.values())
                found[sample.name.removeprefix("lockstep_") + (f"{{{labels}}}" if labels else "")] = sample.value
    return found


def test_a_run_is_counted_as_what_it_was(model: Model) -> None:
    group = LocalGroup(model, overlap=True)
    group.run([[NewRequest(1, PROMPT, greedy(5))], [], [], [], [], [], [], [], [NewRequest(2, PROMPT, greedy(3))]])
    found = values(group)
    assert (found["iterations_total{prefill}"], found["iterations_total{decode}"]) == (2, 4 + 2)
    assert found["step_tokens_total"] == 33 + 4 + 1 + 2
    assert found["sampler_requests_total{batched,}"] == 5 + 3
    assert found["prefix_cache_query_tokens_total"] == 66
    assert found["prefix_cache_hit_tokens_total"] == 32
    assert found["kv_blocks"] == group.num_blocks
    assert found["iteration_batch_size_count"] == 8
    assert "kv_blocks_used" not in found
    assert "requests_running" not in found


def test_every_step_is_one_exchange_and_a_step_without_news_skips_the_payload(model: Model) -> None:
    group = LocalGroup(model)
    group.run([[], [], [NewRequest(1, PROMPT, greedy(4))], [], [Cancel(9)]])
    found = values(group)
    assert found["collectives_total{exchange,executed}"] == found["collectives_total{payload,skipped}"] + 3
    assert (
        found["collective_bytes_total{exchange}"]
        == 8 * len(RankState._fields) * found["collectives_total{exchange,executed}"]
    )


def test_rows_of_the_per_request_path_are_counted_with_their_reason(model: Model) -> None:
    group = LocalGroup(model)
    group.run([[NewRequest(1, PROMPT, greedy(4)), NewRequest(2, PROMPT, greedy(4, stop_token_ids=(95,)))]])
    found = values(group)
    assert found["sampler_requests_total{batched,}"] == 4
    assert found["sampler_requests_total{per_request,stop_words}"] == 4
    assert found["sampler_update_seconds_count{batched}"] == 4
    assert found["sampler_update_seconds_count{per_request}"] == 4


def test_a_path_that_no_row_takes_is_not_observed(model: Model) -> None:
    group = LocalGroup(model)
    group.run([[NewRequest(1, PROMPT, greedy(4, stop_token_ids=(95,)))]])
    found = values(group)
    assert found["sampler_update_seconds_count{per_request}"] == 4
    assert "sampler_update_seconds_count{batched}" not in found


def test_a_prompt_is_looked_up_once_however_often_its_request_waits_for_blocks(model: Model) -> None:
    group = LocalGroup(model, num_blocks=8, block_size=4)
    known, large = [*range(9)], [*range(20, 38)]
    first = [NewRequest(1, known, greedy(2))]
    held = [NewRequest(2, large, greedy(6)), NewRequest(3, [*known, *range(70, 79)], greedy(2))]
    group.run([first, [], [], [], held])
    found = values(group)
    assert found["prefix_cache_query_tokens_total"] == 9 + 18 + 18
    assert found["prefix_cache_hit_tokens_total"] == 8
    assert "preemptions_total" not in found


def test_what_a_preempted_request_computed_itself_is_no_hit(model: Model) -> None:
    group = LocalGroup(model, num_blocks=8, block_size=4)
    group.run([[NewRequest(handle, [handle] * 6, greedy(16)) for handle in (1, 2)]])
    found = values(group)
    assert found["preemptions_total"] > 0
    assert found["prefix_cache_query_tokens_total"] == 12
    assert "prefix_cache_hit_tokens_total" not in found


def test_a_cache_that_is_off_is_not_asked(model: Model) -> None:
    group = LocalGroup(model, prefix_cache=False)
    group.run([[NewRequest(1, PROMPT, greedy(3))]])
    assert "prefix_cache_query_tokens_total" not in values(group)


def test_preemptions_are_counted(model: Model) -> None:
    group = LocalGroup(model, num_blocks=8, block_size=8)
    group.run([[NewRequest(handle, [handle] * 15, greedy(30)) for handle in (1, 2, 3)]])
    assert values(group)["preemptions_total"] == group.scheduler.num_preemptions > 0


def test_the_bubble_is_observed_once_for_each_two_neighbouring_forwards(model: Model) -> None:
    group = LocalGroup(model)
    group.run([[NewRequest(1, PROMPT, greedy(10))]])
    assert values(group)["iteration_bubble_seconds_count"] == 9


def test_a_rank_serves_all_that_is_defined_and_nothing_else() -> None:
    registry = CollectorRegistry()
    metrics = RankMetrics(registry, 3)
    metrics.forward_info["generic", "sdpa"].set(1)  # as `rank.assemble` does: before the model is there nobody knows
    registry.register(HangCollector(lambda: (True, 12.0, {"idle": 3.0}, 1), 3))
    served = text_string_to_metric_families(generate_latest(registry).decode())
    families = {family.name: family for family in served if not family.name.endswith("_created")}
    defined = {f"lockstep_{name}".removesuffix("_total"): one for name, one in {**RANK_METRICS, **HANG_METRICS}.items()}
    assert families.keys() == defined.keys()
    for name, family in families.items():
        assert (family.type, family.documentation) == (defined[name].kind, defined[name].help)
        assert {sample.labels["rank"] for sample in family.samples} == {"3"}


def test_a_new_rank_shows_its_counters_at_zero() -> None:
    """A rate over a counter that appears with its first count misses that count."""
    registry = CollectorRegistry()
    RankMetrics(registry, 0)
    skipped = {"rank": "0", "op": "payload", "outcome": "skipped"}
    assert registry.get_sample_value("lockstep_collectives_total", skipped) == 0
