"""Operations of a token, by hand; the table of GPUs; the memory of a model."""

from __future__ import annotations

import pytest

from shardprep.errors import ConfigError
from shardprep.report.pilot_flops import GPUS, Model, gpu_named


def test_full_training_is_6_n_and_12_l_d_t():
    assert Model(7e9).flops_per_token(2_048) == (42e9, 42e9)
    model, hardware = Model(7e9, layers=32, width=4_096).flops_per_token(2_048)
    assert model == hardware == 6 * 7e9 + 12 * 32 * 4_096 * 2_048


def test_palm_540b_as_in_its_appendix():
    # PaLM, 118 layers, 48 heads of 256, length 2,048; 238.3K tokens/s on 6,144 TPU v4 of 275 TFLOP/s: 46.2 % MFU.
    model, _ = Model(540e9, layers=118, width=48 * 256).flops_per_token(2_048)
    assert 238.3e3 * model / (6_144 * 275e12) == pytest.approx(0.462, abs=0.003)


def test_checkpointing_computes_the_forward_pass_again():
    model, hardware = Model(1e9, layers=10, width=100, checkpointing=True).flops_per_token(50)
    assert model == 6e9 + 12 * 10 * 100 * 50
    assert hardware == 8e9 + 16 * 10 * 100 * 50


def test_lora_saves_the_gradients_of_frozen_weights_only():
    model, hardware = Model(7e9, trainable=20e6).flops_per_token(100)
    assert model == hardware == 2 * 7e9 + 2 * 7e9 + 2 * 20e6
    _, hardware = Model(7e9, trainable=20e6, checkpointing=True).flops_per_token(100)
    assert hardware == 6 * 7e9 + 2 * 20e6


def test_no_gradient_goes_below_the_lowest_trainable_part():
    head = Model(1e9, trainable=1e6, frozen_lower=1e9 - 1e6)
    assert head.flops_per_token(10)[0] == pytest.approx(2e9 + 4e6)
    upper = Model(1e9, frozen_lower=0.5e9, layers=10, width=100, checkpointing=True)
    assert upper.weights == 0.5e9
    attention = 4 * 10 * 100 * 50
    model, hardware = upper.flops_per_token(50)
    assert model == pytest.approx(2e9 + attention + (1e9 + attention) + 1e9)
    assert hardware == pytest.approx(model + (2e9 + attention) / 2)


@pytest.mark.parametrize(
    ("name", "peak"),
    [
        ("NVIDIA A10G", 70e12),
        ("a10g", 70e12),
        ("NVIDIA A10", 125e12),
        ("NVIDIA L4", 121e12),
        ("NVIDIA L40S", 362e12),
        ("Tesla T4", 65e12),
        ("NVIDIA A100-SXM4-40GB", 312e12),
        ("NVIDIA A100 80GB PCIe", 312e12),
        ("NVIDIA H100 80GB HBM3", 989e12),
        ("NVIDIA H100 PCIe", 756e12),
        ("NVIDIA H200", 989e12),
    ],
)
def test_gpus_by_the_names_that_nvml_says(name, peak):
    assert gpu_named(name).peak_flops == peak


def test_an_unknown_gpu_is_none_and_every_known_one_has_a_source():
    assert gpu_named("NVIDIA GeForce RTX 4090") is None
    assert gpu_named("A1000") is None
    assert all("datasheet" in gpu.source and gpu.memory_bytes >= 16e9 for gpu in GPUS)


def test_memory_of_weights_gradients_and_moments():
    assert Model(7e9).least_bytes == 112e9
    assert Model(7e9, trainable=20e6).least_bytes == pytest.approx(16 * 20e6 + 2 * (7e9 - 20e6))


@pytest.mark.parametrize(
    "numbers",
    [
        {"params": 0},
        {"params": 1e9, "trainable": 0},
        {"params": 1e9, "trainable": 2e9},
        {"params": 1e9, "frozen_lower": 1e9},
        {"params": 1e9, "trainable": 0.6e9, "frozen_lower": 0.5e9},
        {"params": 1e9, "layers": 3},
        {"params": 1e9, "layers": 0, "width": 3},
        {"params": float("nan")},
    ],
)
def test_numbers_that_cannot_be_are_refused(numbers):
    with pytest.raises(ConfigError, match="--"):
        Model(**numbers)
