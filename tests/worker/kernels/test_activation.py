import pytest
import torch

from lockstep_worker.kernels.activation import gated_silu, gated_silu_reference
from support.kernels.offline import BLACKWELL, HOPPER, Specialisation, compile_offline

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize(("rows", "size"), [(1, 1), (3, 48), (2, 1024), (5, 2500)])
def test_it_equals_silu_and_a_product(rows: int, size: int, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(rows)
    gate_up = (4 * torch.randn(rows, 2 * size, generator=generator)).to(DEVICE, dtype)
    torch.testing.assert_close(gated_silu(gate_up), gated_silu_reference(gate_up))


def test_silu_is_rounded_before_the_product() -> None:
    gate_up = torch.randn(4, 2048, generator=torch.Generator().manual_seed(1)).to(DEVICE, torch.float16)
    assert (gated_silu(gate_up) != gated_silu_reference(gate_up)).float().mean() < 0.01


@pytest.mark.filterwarnings("ignore:overflow encountered in exp")
def test_large_gates_neither_overflow_nor_vanish() -> None:
    gate_up = torch.tensor([[-1000.0, 1000.0, 0.0, 2.0, 3.0, 4.0]], device=DEVICE)
    assert gated_silu(gate_up).tolist() == [[0.0, 3000.0, 0.0]]


def test_no_rows_are_no_rows() -> None:
    assert gated_silu(torch.zeros(0, 64, device=DEVICE)).shape == (0, 32)


def test_it_compiles_for_gpus() -> None:
    types = {"GATE_UP": "*bf16", "OUT": "*bf16", "size": "i32"}
    kernel = "lockstep_worker.kernels.activation:_gated_silu_kernel"
    [results] = compile_offline(Specialisation(kernel, types, {"BLOCK_I": 1024}, capabilities=(HOPPER, BLACKWELL)))
    assert len(results) == 2


@pytest.mark.gpu
@pytest.mark.parametrize("size", [3072, 9728, 14336])
def test_bfloat16_rows_of_real_sizes_are_right_on_a_gpu(size: int) -> None:
    gate_up = (4 * torch.randn(300, 2 * size)).to("cuda", torch.bfloat16)
    ours, expected = gated_silu(gate_up), gated_silu_reference(gate_up)
    assert (ours != expected).float().mean() < 0.01
    torch.testing.assert_close(ours, expected, rtol=1.6e-2, atol=1e-5)
