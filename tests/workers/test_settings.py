"""The one reader of the environment."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from workers.settings import Settings, celery_broker_url, parse_device_set


def test_an_unknown_variable_is_an_error_that_names_it(monkeypatch):
    monkeypatch.setenv("LANEWISE_VIDEO_MODLE", "x")
    with pytest.raises(ValidationError, match="unknown setting LANEWISE_VIDEO_MODLE"):
        Settings()


def test_variables_of_tests_are_left_alone(monkeypatch):
    monkeypatch.setenv("LANEWISE_TEST_THING", "x")
    assert Settings().port == 8000


def test_a_child_sees_the_same_settings(monkeypatch, tmp_path):
    ours = Settings(data_dir=tmp_path, port=1234, auth="off", webhook_private_hosts=True, lease_s=7)
    for name, value in ours.child_environment(CUDA_VISIBLE_DEVICES="-1").items():
        monkeypatch.setenv(name, value)
    assert Settings() == ours


def test_a_relative_data_folder_is_absolute_for_children(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    environment = Settings(data_dir="here").child_environment()
    assert environment["LANEWISE_DATA_DIR"] == str(tmp_path / "here")


@pytest.mark.parametrize(
    ("text", "numbers"),
    [("", ()), ("0", (0,)), ("0-3", (0, 1, 2, 3)), ("0,2", (0, 2)), ("4-5, 1", (4, 5, 1))],
)
def test_device_sets(text, numbers):
    assert parse_device_set(text) == numbers


@pytest.mark.parametrize("text", ["a", "3-1", "0,0", "0-2,1", "-1", "0--1", "cuda:0", "٣"])
def test_device_sets_that_mean_nothing(text):
    with pytest.raises(ValidationError):
        Settings(llm_devices=text)


@given(st.sets(st.integers(0, 99), max_size=20))
def test_a_list_of_numbers_is_a_device_set(numbers):
    assert set(parse_device_set(",".join(map(str, numbers)))) == numbers


@pytest.mark.parametrize("url", ["foo://x", "localhost:6379", "redis://localhost:abc"])
def test_an_address_that_is_no_redis_is_refused_before_anything_starts(url):
    with pytest.raises(ValidationError, match="redis_url"):
        Settings(redis_url=url)
    assert Settings(redis_url="redis://h:6379/0").redis_url == "redis://h:6379/0"


def test_broker_urls():
    assert celery_broker_url("unix:///a b/r.sock?db=1") == "redis+socket:///a%20b/r.sock?db=1"
    assert celery_broker_url("redis://h:1/0") == "redis://h:1/0"
