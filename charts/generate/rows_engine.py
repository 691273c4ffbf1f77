"""The dashboard's rows about the step loop; each description tells its reader what to do."""

from __future__ import annotations

from typing import Any

from charts.generate.panels import About, Query, distribution, graph, number, states, thresholds
from charts.generate.queries import DEPLOYMENT, RANK, mean, per_step, quantile, rate, series, share_of_step, total

_GOOD = thresholds((None, "green"))


def overview() -> list[Any]:
    """The numbers to look at first."""
    share = thresholds((None, "green"), (0.1, "yellow"), (0.2, "red"))
    failures = thresholds((None, "green"), (1, "red"))
    ready = thresholds((None, "red"), (1, "green"))
    restarts = total(f"increase({series('operator_group_restarts_total', scope=DEPLOYMENT)}[$__range])")
    return [
        number(
            About("Groups ready", "Groups that serve. If it is below the wanted number, see the last row.", "none", 4),
            Query(total(series("operator_groups", 'state="Ready"', scope=DEPLOYMENT)), "ready"),
            ready,
            0,
        ),
        number(
            About(
                "Bubble, share of the step",
                "How much of the steps' time the devices waited for the host. Above 20% the host is the limit: "
                "see which phase is long in row Step.",
                "percentunit",
                4,
            ),
            Query(share_of_step("iteration_bubble_seconds"), "bubble"),
            share,
            1,
        ),
        number(
            About("Step, median", "Wall time of a step that had work, over all ranks.", "s", 4),
            Query(quantile(0.5, "iteration_seconds"), "p50"),
            _GOOD,
        ),
        number(
            About("Tokens generated", "Tokens that requests received, per second.", "short", 4),
            Query(total(rate("generated_tokens_total")), "tokens/s"),
            _GOOD,
        ),
        number(
            About("Requests in flight", "Accepted and not ended. If it only grows, look at row Requests.", "none", 4),
            Query(total(series("requests_in_flight")), "in flight"),
            _GOOD,
            0,
        ),
        number(
            About(
                "Group restarts",
                "Groups replaced in the time shown. Above 0: `kubectl describe servingdeployment` names each failure.",
                "none",
                4,
            ),
            Query(f"{restarts} or on() vector(0)", "restarts"),
            failures,
            0,
        ),
    ]


def bubble() -> list[Any]:
    """How long devices waited for the host."""
    name = "iteration_bubble_seconds"
    return [
        graph(
            About(
                "Bubble per rank",
                "Idle time of the device between two steps while there was work. One rank high: its host is slow or "
                "shared. All ranks high: the loop itself is, see the phases.",
                "s",
                8,
            ),
            Query(quantile(0.5, name, "group", "rank"), f"{RANK} p50"),
            Query(quantile(0.99, name, "group", "rank"), f"{RANK} p99"),
        ),
        graph(
            About(
                "Bubble share per rank",
                "Bubble divided by the steps' wall time. It falls with larger batches; if it does not, look for a "
                "host phase that grows with the batch.",
                "percentunit",
                8,
            ),
            Query(share_of_step(name, "group", "rank"), RANK),
            top=0.2,
        ),
        graph(
            About(
                "Run on the device, per rank",
                "Time of one run on its device, forward and sampling. Bubble and run together are the step. One rank "
                "high: its device is slower than its peers', look at its clocks and temperature.",
                "s",
                8,
            ),
            Query(quantile(0.5, "iteration_device_seconds", "group", "rank"), f"{RANK} p50"),
            Query(quantile(0.99, "iteration_device_seconds", "group", "rank"), f"{RANK} p99"),
        ),
        distribution(
            About(
                "Bubble distribution",
                "All ranks together. Two bands mean two kinds of step: compare with the steps by kind.",
                "s",
                24,
            ),
            total(f"increase({series(f'{name}_bucket')}[$__rate_interval])", "le"),
        ),
    ]


def step() -> list[Any]:
    """Where a step's time goes."""
    return [
        graph(
            About(
                "Host time of a step by phase",
                "Mean per step with work. With overlap, host time below the forward's time costs nothing; what sticks "
                "out becomes bubble. The tallest band is the phase to look into.",
                "s",
            ),
            Query(per_step("iteration_host_seconds", "phase"), "{{phase}}"),
            stacked=True,
        ),
        graph(
            About("Step time per group", "Wall time of steps with work. It is the floor of the inter-token time.", "s"),
            Query(quantile(0.5, "iteration_seconds", "group"), "{{group}} p50"),
            Query(quantile(0.99, "iteration_seconds", "group"), "{{group}} p99"),
        ),
        graph(
            About(
                "Steps by kind",
                "Steps of rank 0 per second. Many prefill steps beside slow decode: lower the token budget of a step.",
                "ops",
                6,
            ),
            Query(total(rate("iterations_total", 'rank="0"'), "kind"), "{{kind}}"),
            stacked=True,
        ),
        graph(
            About(
                "Runs: replayed and eager, by reason",
                "Per second, all ranks. On a GPU decodes are replays. `no_graphs`: graphs are off, or the attention "
                "has none; see the log. Many `prefill`: prompts arrive in most steps.",
                "ops",
                6,
            ),
            Query(total(rate("graph_replays_total")), "replayed"),
            Query(total(rate("eager_steps_total"), "reason"), "eager: {{reason}}"),
            stacked=True,
        ),
        graph(
            About(
                "Sequences in a forward", "Mean batch. Small batches with requests waiting: see KV blocks.", "none", 6
            ),
            Query(mean("iteration_batch_size", "group"), "{{group}}"),
        ),
        graph(
            About("Tokens computed", "Prefill and decode together, per rank and second.", "short", 6),
            Query(total(rate("step_tokens_total"), "group", "rank"), RANK),
        ),
    ]


def collectives() -> list[Any]:
    """What the ranks say to each other, and how long they wait for it."""
    return [
        graph(
            About(
                "Collectives executed and skipped",
                "Mean per rank and second. A payload should be skipped in nearly every step of steady decode; if it is "
                "not, requests or cancels arrive in every step.",
                "ops",
            ),
            Query(f"avg by (op, outcome) ({rate('collectives_total')})", "{{op}} {{outcome}}"),
        ),
        graph(
            About("Bytes sent in collectives", "Sum over ranks, per second.", "Bps"),
            Query(total(rate("collective_bytes_total"), "op"), "{{op}}"),
        ),
        graph(
            About(
                "Wait for a collective",
                "In steps with work; the lateness of peers is part of it. Near the skew: one rank is late. "
                "Far above it: the transport is slow.",
                "s",
            ),
            Query(quantile(0.5, "collective_wait_seconds", "op"), "{{op}} p50"),
            Query(quantile(0.99, "collective_wait_seconds", "op"), "{{op}} p99"),
        ),
        graph(
            About(
                "Skew between ranks",
                "Last entry into the exchange minus the first. A steady skew: one rank has more work or a slower host; "
                "find it in the bubble per rank.",
                "s",
            ),
            Query(quantile(0.5, "rank_skew_seconds", "group"), "{{group}} p50"),
            Query(quantile(0.99, "rank_skew_seconds", "group"), "{{group}} p99"),
        ),
    ]


def hang_detector() -> list[Any]:
    """Whether every rank still moves."""
    armed = series("hang_detector_armed")
    last = series("hang_detector_last_progress_timestamp_seconds")
    return [
        states(
            About("Hang detector per rank", "Armed: a lapse counts as a hang. Paused: the rank may wait.", "none"),
            Query(f"max by (group, rank) ({armed})", RANK),
            {"0": ("paused", "blue"), "1": ("armed", "green")},
        ),
        graph(
            About(
                "Time since the last progress, while armed",
                "It should stay below a second or so. A line that climbs is a rank that hangs; the "
                "first to climb is the one to look at.",
                "s",
            ),
            Query(f"max by (group, rank) ((time() - {last}) * {armed})", RANK),
        ),
        graph(
            About(
                "Paused time by reason",
                "Share of the ranks' time. Idle is normal; a long pause for another reason is a wait that nobody sees.",
                "percentunit",
            ),
            Query(
                f"{total(rate('hang_detector_paused_seconds_total'), 'reason')} / scalar(count({armed}))", "{{reason}}"
            ),
            stacked=True,
            top=1,
        ),
        graph(
            About("Hangs detected", "By rank. The group ends at the first; its log holds the stacks.", "none"),
            Query(total(series("hang_detector_trips_total"), "group", "rank"), RANK),
        ),
    ]
