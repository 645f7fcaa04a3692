"""The diagnosis: each finding from numbers that show it and from none that do not, most leverage first."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shardprep.report.pilot_diagnosis import diagnose
from shardprep.report.pilot_findings import Measured

HEALTHY = Measured(
    world_size=1,
    seconds=0.5,
    waits=[0.003],
    wait_slowest=0.003,
    wait_by_cause={"fetch": 0.1, "collate": 0.4},
    padding=0.012,
    micro_batches=4,
    tokens_per_micro_batch=14_000,
    rank_seconds=[0.5],
    ranks=[0],
    between=[0.12],
    step_end=0.02,
    slot_seconds=8.9e-6,
)
FOUR = replace(
    HEALTHY,
    world_size=4,
    waits=[0.003] * 4,
    rank_seconds=[0.5] * 4,
    ranks=[0, 1, 2, 3],
    between=[0.12, 0.121, 0.119, 0.12],
)


def kinds(measured):
    return [finding.kind for finding in diagnose(measured)]


@pytest.mark.parametrize("measured", [HEALTHY, FOUR])
def test_a_healthy_run_is_compute_bound(measured):
    (finding,) = diagnose(measured)
    assert finding.kind == "compute_bound"
    assert ("--compare" in finding.advice) == (measured.world_size > 1)  # what cannot be told is said
    assert finding.says.startswith("compute-bound: 100% of the time")
    assert "more or faster GPUs help" in finding.advice


def test_waits_are_input_bound_with_their_main_cause():
    finding, *_ = diagnose(
        replace(HEALTHY, waits=[0.4], wait_slowest=0.4, wait_by_cause={"fetch": 9.0, "collate": 1.0})
    )
    assert (finding.kind, finding.gain_share) == ("input_bound", 0.4)
    assert "waits for data 40% of the time, 90% of it for fetching from storage" in finding.says
    assert finding.evidence["wait_seconds_fetch"] == 9.0
    assert "more GPUs would not help" in finding.advice
    cold = replace(HEALTHY, waits=[0.4], wait_slowest=0.4, wait_by_cause={"fetch": 3.0, "decode": 6.0, "collate": 1.0})
    assert diagnose(cold)[0].says.endswith(
        "40% of the time, 60% of it for decoding, 30% of it for fetching from storage"
    )


@pytest.mark.parametrize("cause", ["fetch", "decode", "collate", "copy", "other"])
def test_every_cause_of_waits_has_its_remedy(cause):
    waits = replace(HEALTHY, waits=[0.4], wait_slowest=0.4)
    said = {diagnose(replace(waits, wait_by_cause={name: 1.0}))[0].advice for name in HEALTHY.wait_by_cause}
    finding, *_ = diagnose(replace(waits, wait_by_cause={cause: 1.0}))
    assert len(said) == 2
    assert len(finding.advice) > 100
    assert diagnose(replace(waits, wait_by_cause={}))[0].kind == "input_bound"


def test_waits_that_a_busy_gpu_hides_are_none():
    waits = replace(HEALTHY, waits=[0.3], wait_slowest=0.3)
    assert kinds(replace(waits, utilization=0.97, memory_share=0.8)) == ["compute_bound"]
    assert kinds(replace(waits, utilization=0.55, memory_share=0.8))[0] == "input_bound"
    assert diagnose(replace(waits, utilization=0.55))[0].evidence["gpu_utilization"] == 0.55


def test_fixed_costs_mean_a_batch_too_small():
    finding, *_ = diagnose(replace(HEALTHY, fixed_share=0.6, fixed_low=0.5))
    assert finding.kind == "batch_too_small"
    assert finding.gain_share == pytest.approx(0.3, abs=0.01)  # twice the tokens: half as often
    assert "accumulate" in finding.advice
    assert kinds(replace(HEALTHY, fixed_share=0.6, fixed_low=0.05)) == ["compute_bound"]  # it cannot be told


def test_a_long_end_of_a_step_on_one_rank_asks_for_accumulation():
    finding, *_ = diagnose(replace(HEALTHY, step_end=0.2))
    assert finding.kind == "batch_too_small"
    assert finding.evidence["step_end_seconds"] == 0.2
    assert "accumulate" in finding.advice


def test_an_idle_gpu_with_free_memory_asks_for_larger_micro_batches():
    idle = replace(HEALTHY, utilization=0.4, memory_share=0.25, memory_bytes=6 * 10**9, device_bytes=24 * 10**9)
    finding, *rest = diagnose(idle)
    assert finding.kind == "batch_too_small"
    assert "works 40% of the time and uses 25% of its memory" in finding.says
    assert [other.kind for other in rest] == ["compute_bound", "memory"]
    assert kinds(replace(idle, memory_share=0.9))[0] == "compute_bound"  # no room
    assert kinds(replace(idle, waits=[0.55], wait_slowest=0.55))[0] == "input_bound"  # it is the data
    assert "batch_too_small" not in kinds(replace(idle, waits=[0.55], wait_slowest=0.55))


def test_padding():
    finding, *_ = diagnose(replace(HEALTHY, padding=0.69))
    assert (finding.kind, finding.evidence["padding_share"]) == ("padding", 0.69)
    assert finding.gain_share == pytest.approx(0.69, abs=0.01)
    assert "padding" not in kinds(replace(HEALTHY, padding=0.05))


def test_a_rank_with_slow_data_is_named():
    findings = diagnose(replace(FOUR, waits=[0.01, 0.02, 0.4, 0.01], wait_slowest=0.41))
    assert [finding.kind for finding in findings][:2] == ["input_bound", "stragglers"]
    assert findings[1].evidence["rank"] == 2
    assert "rank 2 waits for data 40% of the time, the others 1%" in findings[1].says


def test_a_rank_that_computes_slowly_is_named():
    finding, *_ = diagnose(replace(FOUR, between=[0.12, 0.12, 0.12, 0.18]))
    assert (finding.kind, finding.evidence["rank"]) == ("stragglers", 3)
    assert finding.gain_share == pytest.approx(0.06 * 4 / 0.5)
    assert "stragglers" not in kinds(replace(FOUR, between=[0.12, 0.12, 0.12, 0.125]))


def test_a_rank_that_does_not_wait_for_the_others_and_takes_longer_is_named():
    alone = replace(FOUR, between=None, step_end=None, micro_batches=1)
    finding, *_ = diagnose(replace(alone, rank_seconds=[0.5, 0.7, 0.5, 0.5]))
    assert (finding.kind, finding.evidence["rank"]) == ("stragglers", 1)
    assert finding.gain_share == pytest.approx(1 - 0.5 / 0.7)
    assert kinds(alone) == ["compute_bound"]


def test_communication_against_a_pilot_of_one_rank():
    finding, *_ = diagnose(replace(FOUR, slot_seconds=12e-6, one_rank_slot_seconds=8e-6))
    assert finding.kind == "communication"
    assert finding.gain_share == pytest.approx(1 / 3, abs=0.01)
    assert "1.50 times as long" in finding.says
    # Compared with one rank, a long end of a step is no sign of its own.
    assert kinds(replace(FOUR, slot_seconds=8.2e-6, one_rank_slot_seconds=8e-6, step_end=0.3)) == ["compute_bound"]


def test_communication_bounded_by_the_end_of_a_step():
    finding, *_ = diagnose(replace(FOUR, step_end=0.2))
    assert finding.kind == "communication"
    assert "--compare" in finding.says
    assert "communication" not in kinds(FOUR)


def test_pauses():
    finding, *_ = diagnose(replace(HEALTHY, pause_share=0.12, pauses=1))
    assert finding.kind == "pauses"
    assert "1 step took" in finding.says


def test_most_leverage_comes_first_and_computing_comes_last():
    findings = diagnose(
        replace(FOUR, waits=[0.1] * 4, wait_slowest=0.1, padding=0.3, pause_share=0.06, pauses=3, step_end=0.25)
    )
    assert [f.kind for f in findings] == [
        "padding",
        "communication",
        "input_bound",
        "pauses",
    ]  # most of the time is lost
    gains = [finding.gain_share for finding in findings]
    assert gains == sorted(gains, reverse=True)
    findings = diagnose(replace(HEALTHY, padding=0.2))
    assert [f.kind for f in findings] == ["padding", "compute_bound"]
    assert findings[1].says.startswith("computing: ")


def test_a_device_far_from_its_peak_asks_for_better_kernels_first():
    finding, *_ = diagnose(replace(HEALTHY, mfu=0.08, hfu=0.1))
    assert "the hardware does 10% of its peak" in finding.says
    assert "mixed precision" in finding.advice
    assert "data parallel" in diagnose(replace(HEALTHY, mfu=0.4, hfu=0.5))[0].advice


@pytest.mark.parametrize(
    ("numbers", "says", "advice"),
    [
        (
            {"memory_bytes": 14 * 10**9, "device_bytes": 24 * 10**9, "model_bytes": 1e9},
            "14.0 GB of 24.0 GB",
            "data parallel",
        ),
        ({"model_bytes": 18e9, "device_bytes": 24 * 10**9}, "the model fits on one device", "not model parallel"),
        ({"model_bytes": 112e9, "device_bytes": 24 * 10**9}, "does not fit", "FSDP"),
    ],
)
def test_memory(numbers, says, advice):
    *_, finding = diagnose(replace(HEALTHY, **numbers))
    assert finding.kind == "memory"
    assert says in finding.says
    assert advice in finding.advice
    assert finding.document()["evidence"] == finding.evidence


def test_every_finding_has_numbers():
    everything = replace(
        FOUR, waits=[0.1] * 3 + [0.3], wait_slowest=0.3, padding=0.3, pause_share=0.06, pauses=3, step_end=0.25
    )
    for finding in diagnose(replace(everything, model_bytes=1e9, device_bytes=2 * 10**9, hfu=0.3)):
        assert finding.evidence
        assert any(character.isdigit() for character in finding.says)
        assert finding.advice.endswith(".")
