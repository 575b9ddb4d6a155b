"""Some cases of the differential test (differ.py), and that it sees what is wrong."""

import pytest

import differ


@pytest.mark.parametrize("number", range(60))
def test_a_random_case_is_good(number):
    assert differ.problem_of(differ.draw_case(0, number)) is None


def test_a_wrong_byte_is_found_and_the_case_made_small(monkeypatch):
    right = differ.converted
    monkeypatch.setattr(differ, "converted", lambda field, array: right(field, array) + (field["type"] == "int16"))
    case = next(case for k in range(0, 100, 2) if differ.problem_of(case := differ.draw_case(1, k)))
    small = differ.smallest(case, differ.problem_of(case), deadline=float("inf"))
    assert [field["type"] for field in small["fields"]] == ["int16"]
    assert (small["samples"], small["batch_size"], small["epochs"], small["world_size"]) == (1, 1, 1, 1)
    assert "batch 0, field 0: got" in differ.problem_of(small)


def test_a_seed_gives_the_same_cases():
    assert differ.draw_case(3, 11) == differ.draw_case(3, 11) != differ.draw_case(4, 11)
