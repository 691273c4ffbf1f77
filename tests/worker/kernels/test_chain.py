"""When a kernel of a chain waits, and when it lets the next one start, as compiled."""

from __future__ import annotations

import re

from lockstep_worker.kernels.chain import AFTER_WAIT, AT_ONCE, OFF, chained, ordinary
from support.kernels.offline import BLACKWELL, HOPPER, Specialisation, compile_offline

KERNEL = "lockstep_worker.kernels.decode.rows:gate_kernel"


def order_of(ptx: str) -> list[str]:
    return re.findall(r"griddepcontrol\.\w+|ld\.global|st\.global", ptx)


def test_a_kernel_starts_its_successor_as_asked_and_waits_before_it_touches_memory() -> None:
    signature = {"gate_up": "*bf16", "out": "*bf16"}
    wanted = [
        Specialisation(KERNEL, signature, {"INNER": 1024, "BLOCK": 1024, "PDL": pdl}, capabilities=[HOPPER, BLACKWELL])
        for pdl in (OFF, AT_ONCE, AFTER_WAIT)
    ]
    for off, at_once, after_wait in zip(*compile_offline(*wanted), strict=True):
        assert "griddepcontrol" not in off.ptx
        assert order_of(at_once.ptx)[:3] == ["griddepcontrol.launch_dependents", "griddepcontrol.wait", "ld.global"]
        assert order_of(after_wait.ptx)[:3] == ["griddepcontrol.wait", "griddepcontrol.launch_dependents", "ld.global"]


def test_only_a_chains_later_kernels_ask_to_be_started_early() -> None:
    assert chained(OFF) == ordinary(OFF) == {"PDL": OFF}
    assert chained(AT_ONCE)["launch_pdl"] and "launch_pdl" not in ordinary(AT_ONCE)
