"""Where each rank stands: numbers only."""

from __future__ import annotations

import pytest

from lockstep_worker.parallel.topology import ALONE, Topology

SIZES = {"data": 2, "pipeline": 3, "tensor": 2}


def group(**sizes: int) -> list[Topology]:
    count = sizes.get("data", 1) * sizes.get("pipeline", 1) * sizes.get("tensor", 1)
    return [Topology.of(rank, **sizes) for rank in range(count)]


def test_tensor_ranks_are_neighbours_then_stages_then_data_replicas() -> None:
    stands = [(one.data.index, one.pipeline.index, one.tensor.index) for one in group(**SIZES)]
    assert stands == [(d, p, t) for d in range(2) for p in range(3) for t in range(2)]


def test_the_first_rank_of_each_data_replica_leads_it() -> None:
    assert [one.rank for one in group(**SIZES) if one.is_leader] == [0, 6]
    assert {one.replica_size for one in group(**SIZES)} == {6}
    assert {one.size for one in group(**SIZES)} == {12}


@pytest.mark.parametrize("axis", ["data", "pipeline", "tensor", "expert"])
def test_the_peers_on_an_axis_differ_on_it_alone_and_each_rank_has_one_set(axis: str) -> None:
    ranks = group(**SIZES, expert=4)
    sets = [list(one.list_peers(axis)) for one in ranks]
    assert sets[0] == sets[-1], "every rank must form the same groups in the same order"
    assert sorted(rank for peers in sets[0] for rank in peers) == list(range(12))
    for peers in sets[0]:
        assert [getattr(ranks[rank], axis).index for rank in peers] == list(range(getattr(ranks[0], axis).size))
        others = {"data", "pipeline", "tensor"} - {axis} if axis != "expert" else set()
        for other in others:
            assert len({getattr(ranks[rank], other).index for rank in peers}) == 1, (axis, other)


def test_only_ranks_that_share_experts_must_run_together() -> None:
    assert not group(data=4)[0].runs_together
    assert group(data=4, expert=4)[0].runs_together


def test_a_group_on_an_axis_changes_nothing_else() -> None:
    formed = Topology.of(3, **SIZES).with_groups({"tensor": "tensor group"})
    assert (formed.tensor.size, formed.tensor.index, formed.tensor.group) == (2, 1, "tensor group")
    assert formed.with_groups({"tensor": None}) == Topology.of(3, **SIZES)


def test_one_rank_alone_leads_itself() -> None:
    assert Topology.of(0) == ALONE
    assert (ALONE.size, ALONE.is_leader, ALONE.runs_together) == (1, True, False)
