"""What the benchmark of offloading found, held against what it is for."""

import pytest

from benchmarks.offload import OWN, POLICIES, SCANNED, UNROLLED
from benchmarks.record import read
from benchmarks.tables import ROOT

MIB = 2**20
RESULT = read("offload")
KEPT, NOT_KEPT, OFFLOADED, *_ = POLICIES[UNROLLED]


def test_all_layers_are_on_the_host_and_hardly_on_the_device():
    made = RESULT["cases"]["h200"]
    assert made[OFFLOADED]["most_host_bytes"] == 576 * MIB
    assert made[OFFLOADED]["temp_bytes"] <= 3150 * MIB
    on_their_way = 2 * 48 * MIB  # of two layers; what is aligned to MiB may round up
    assert made[OFFLOADED]["temp_bytes"] <= made[NOT_KEPT]["temp_bytes"] + on_their_way + MIB
    assert made[OWN]["most_host_bytes"] <= 96 * MIB
    assert made[OWN]["temp_bytes"] >= 3600 * MIB


@pytest.mark.parametrize("way", ["out", "back"])
def test_nine_tenths_of_the_copied_bytes_are_hidden_each_way(way):
    made = RESULT["cases"]["h200"][OFFLOADED][way]
    assert made["size_bytes"] == 576 * MIB
    assert made["hidden_bytes"] >= 0.9 * made["size_bytes"]
    assert made["whole"] >= 0.9 * made["copies"]


def test_iterations_are_offloaded_in_one_stack_as_predicted():
    made = RESULT["cases"]["scanned"]
    *_, within, ahead = POLICIES[SCANNED]
    for called, kept_bytes in ((within, 0), (ahead, 48 * MIB)):  # a turn ahead, a slice stays on the device
        assert made[called]["most_host_bytes"] == 576 * MIB
        assert abs(made[called]["temp_bytes"] - made[NOT_KEPT]["temp_bytes"] - kept_bytes) <= MIB
        assert (
            abs(made[called]["predicted_temp_bytes"] - made[called]["temp_bytes"]) <= 0.01 * made[called]["temp_bytes"]
        )
    assert made[KEPT]["temp_bytes"] >= made[NOT_KEPT]["temp_bytes"] + 500 * MIB


def test_the_page_shows_these_figures():
    assert (
        f"jax {RESULT['made_with']['versions']['jax']}, {RESULT['made_with']['date']}"
        in (ROOT / "docs" / "offload.md").read_text()
    )
