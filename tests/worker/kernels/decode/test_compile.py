"""Decode kernels compile for Hopper, and no load of what an earlier kernel wrote stands before the wait."""

from __future__ import annotations

import re
from functools import cache

import pytest

from support.kernels.offline import Specialisation, compile_offline

ROOM = "lockstep_worker.kernels.decode"
WAIT = "griddepcontrol.wait"
BF16, F32 = "*bf16", "*fp32"
DRAW = {
    "lows": F32,
    **dict.fromkeys(("slots", "seeds", "lengths"), "*i64"),
    "integers_stride": "i32",
    "temperatures": F32,
    "floats_stride": "i32",
}
TILES = {"w": BF16, "bias": BF16, "out": BF16, "ids": "*i32", **DRAW, "M_stored": "i32", "N": "i32"}
DESCRIPTOR = 5
"""What a descriptor of two dimensions becomes: itself, two sizes and two strides."""
ATTENTION = {
    **dict.fromkeys(("qkv", "query_norm", "key_norm"), BF16),
    "cos_sin": F32,
    **dict.fromkeys(("keys", "values"), BF16),
    "tables": "*i32",
    "positions": "*i64",
    **dict.fromkeys(("out", "attended"), BF16),
    "weights": F32,
    "arrived": "*i32",
    **dict.fromkeys(("scale", "eps"), "fp32"),
    "table_stride": "i32",
}
VECTOR = {"w": BF16, "residual": F32, "norm": BF16, "bias": BF16, "out": F32, "ids": "*i32", **DRAW, "eps": "fp32"}


def drawing(types: dict[str, str], drawn: bool) -> tuple[dict[str, str], dict[str, None]]:
    """Without a draw its arguments are no types but the constant None."""
    if drawn:
        return types, {}
    return {name: kind for name, kind in types.items() if name not in DRAW}, dict.fromkeys(DRAW)


def tiles(
    m: int, n: int, k: int, n2: int, epilogue: int, length: int, *, split: int = 1, drawn: bool = False, ahead: int = 0
) -> Specialisation:
    boxes = {"x_desc": (m, k), "w_desc": (n, k), "w2_desc": (n2 or n, k)}
    signature = {name: f"tensordesc<bf16[{rows}, {k}]>" for name, (rows, _) in boxes.items()}
    blocks = {"BLOCK_M": m, "BLOCK_N": n, "BLOCK_N2": n2, "BLOCK_K": k, "SPLIT_K": split}
    constants = {"K": length, **blocks, "EPILOGUE": epilogue, "BIAS": epilogue == 0, "AHEAD": ahead, "PDL": 1}
    types, nothing = drawing({**signature, **TILES, "out": BF16 if epilogue < 2 else F32}, drawn)
    return Specialisation(f"{ROOM}.tiles:multiply", types, {**constants, **nothing})


def attention(splits: int, tokens: int, ahead: bool, qkv: str, dim: int = 128, window: int = 0) -> Specialisation:
    shape = {"H": 16, "K": 8, "D": dim, "D_PADDED": 128, "C": 16, "WINDOW": window, "NORM": window == 0}
    cut = {"SPLITS": splits, "TOKENS": tokens, "AHEAD": ahead, "BUFFERS": 1 if ahead else 4, "PDL": 1}
    absent = () if splits > 1 else ("weights", "arrived")
    types = {name: kind for name, kind in {**ATTENTION, "qkv": qkv}.items() if name not in absent}
    constants = {**shape, **cut, **dict.fromkeys(absent)}
    return Specialisation(f"{ROOM}.attention:attention_kernel", types, constants, num_warps=8 if ahead else 2)


def vector(epilogue: int, rows: int, warps: int, drawn: bool = False) -> Specialisation:
    constants = {"N": 3072, "K": 1024, "K_PADDED": 1024, "ROWS": rows, "EPILOGUE": epilogue, "BIAS": False, "PDL": 2}
    types, nothing = drawing(VECTOR, drawn)
    return Specialisation(f"{ROOM}.vector:normed_kernel", types, {**constants, **nothing}, num_warps=warps)


WANTED = {
    "plain": tiles(64, 32, 64, 16, 0, 2560),
    "plain fetched": tiles(64, 32, 64, 16, 0, 2560, ahead=4096),
    "gated": tiles(64, 64, 64, 32, 1, 4096),
    "gated fetched": tiles(64, 32, 128, 0, 1, 1024, ahead=4096),
    "partial": tiles(64, 32, 128, 0, 2, 2048, split=4),
    "best": tiles(64, 128, 64, 0, 3, 1024),
    "drawn best": tiles(64, 128, 64, 0, 3, 1024, drawn=True),
    "attention": attention(1, 64, False, BF16),
    "attention ahead": attention(8, 128, True, F32),
    "attention padded": attention(2, 64, True, BF16, dim=96, window=512),
    "normed": vector(0, 4, 2),
    "normed gated": vector(1, 8, 8),
    "normed best": vector(2, 32, 4),
    "normed drawn best": vector(2, 32, 4, drawn=True),
    "out": Specialisation(
        f"{ROOM}.out:out_kernel",
        {"w": BF16, "parts": BF16, "weights": F32, "residual": F32},
        {"N": 896, "H": 14, "H_PADDED": 16, "D": 64, "D_PADDED": 64, "SPLITS": 8, "ROWS": 8, "PDL": 2},
        num_warps=8,
    ),
    "down": Specialisation(
        f"{ROOM}.vector:down_kernel",
        {"w": BF16, "x": F32, "residual": F32},
        {"N": 1024, "K": 3072, "K_PADDED": 4096, "ROWS": 8, "PDL": 2},
        num_warps=16,
    ),
    "add": Specialisation(
        f"{ROOM}.rows:add_kernel",
        {"parts": F32, "residual": F32, "norm": BF16, "normed": BF16, "eps": "fp32", "M": "i32"},
        {"E": 2560, "E_PADDED": 4096, "PARTS": 4, "PDL": 1},
    ),
    "embed": Specialisation(
        f"{ROOM}.rows:embed_kernel",
        {"tokens": "*i64", "table": BF16, "residual": F32, "norm": BF16, "normed": BF16, "eps": "fp32"},
        {"E": 1024, "E_PADDED": 1024, "PDL": 1},
    ),
    "gate": Specialisation(
        f"{ROOM}.rows:gate_kernel", {"gate_up": BF16, "out": BF16}, {"INNER": 9728, "BLOCK": 1024, "PDL": 1}
    ),
}
CONSTANTS = {
    "attention": {"positions", "tables", "cos_sin", "query_norm", "key_norm"},
    "attention ahead": {"positions", "tables", "cos_sin", "query_norm", "key_norm", "keys", "values"},
    "attention padded": {"positions", "tables", "cos_sin", "keys", "values"},
    "plain fetched": {"w"},
    "gated fetched": {"w"},
    "normed": {"w", "norm"},
    "normed gated": {"w", "norm"},
    "normed best": {"w", "norm"},
    "drawn best": {"slots", "seeds", "lengths", "temperatures"},
    "normed drawn best": {"w", "norm", "slots", "seeds", "lengths", "temperatures"},
    "out": {"w"},
    "down": {"w"},
    "add": {"norm"},
}
"""What a kernel may read before the wait: nothing that an earlier kernel of its chain writes."""


@cache
def compiled() -> dict[str, str]:
    return {name: one[0].ptx for name, one in zip(WANTED, compile_offline(*WANTED.values()), strict=True)}


def read_before_the_wait(ptx: str, arguments: list[str]) -> set[str]:
    """Which of the kernel's pointer arguments, in its order, the addresses of the loads before the wait come from."""
    sources: dict[str, set[str]] = {}
    read: set[str] = set()
    for line in ptx.split(WAIT, maxsplit=1)[0].splitlines():
        code = line.split("//")[0]
        registers = re.findall(r"%r\w*\d+", code)
        if parameter := re.search(r"ld\.param\.b64\s+(%r\w*\d+), \[\w+_param_(\d+)\]", code):
            sources[parameter[1]] = {arguments[int(parameter[2])]}
        elif "ld.global" in code or "cp.async." in code:
            address = sources.get(re.findall(r"\[ ?(%r\w*\d+)", code)[-1])
            assert address, f"whose address is it: {code}"
            read |= address
        elif registers:
            sources[registers[0]] = set().union(*(sources.get(register, set()) for register in registers[1:]))
    return read


@pytest.mark.parametrize("name", WANTED)
def test_a_kernel_waits_before_it_reads_what_another_wrote(name: str) -> None:
    ptx, wanted = compiled()[name], WANTED[name]
    assert ptx.count(WAIT) == 1 and ptx.count("griddepcontrol.launch_dependents") == 1
    before = ptx.split(WAIT)[0]
    assert "st.global" not in before and "cp.async.bulk.tensor" not in before
    if name in CONSTANTS:
        arguments = [name for name in wanted.signature for _ in range(DESCRIPTOR if name.endswith("_desc") else 1)]
        assert read_before_the_wait(ptx, arguments) == CONSTANTS[name]
    else:
        assert "ld.global" not in before


def test_tiles_run_on_the_warpgroups_tensor_cores_and_by_tma() -> None:
    for name in ("plain", "plain fetched", "gated", "partial", "best", "drawn best"):
        assert "wgmma.mma_async" in compiled()[name] and "cp.async.bulk.tensor.2d" in compiled()[name]


def test_a_draw_computes_an_entrys_noise_once_and_fuses_nothing_but_what_it_says() -> None:
    """Of a product that is not fused with what follows, `fma` is seven terms of a series and the rounded shift."""
    products = {name: len(re.findall(r"fma\.rn\.f32", ptx)) for name, ptx in compiled().items()}
    assert products["drawn best"] - products["best"] == 8 * 64 * 128 // 128
    assert products["normed drawn best"] - products["normed best"] == 8
