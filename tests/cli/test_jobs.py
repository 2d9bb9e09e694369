"""`lanewise jobs …` against the stub."""

from __future__ import annotations

import json

import pytest


@pytest.fixture
def job(stub):
    stub.state.files["file-1"] = b""
    stub.state.polls_to_finish = 100
    return stub.state.add_job({"image": "file-1", "prompt": "[red] waves", "project": "sea"})


def test_the_list_is_the_default_and_shows_each_job(lanewise, job):
    for arguments in (["jobs"], ["jobs", "list"]):
        result = lanewise(*arguments)
        assert result.exit_code == 0, result.output
        assert job["id"] in result.stdout
        assert "queued" in result.stdout


def test_filters_reach_the_service(lanewise, job):
    assert "No job matches" in lanewise("jobs", "--status", "failed").stdout
    assert job["id"] in lanewise("jobs", "list", "--status", "queued").stdout


def test_json_is_for_programs(lanewise, job):
    (listed,) = json.loads(lanewise("jobs", "--json").stdout)
    assert listed["id"] == job["id"]
    assert json.loads(lanewise("jobs", "show", job["id"], "--json").stdout)["id"] == job["id"]


def test_show_prints_every_choice_and_no_markup(lanewise, job):
    result = lanewise("jobs", "show", job["id"])
    assert result.exit_code == 0, result.output
    assert "[red] waves" in result.stdout
    assert "64 x 48, crop" in result.stdout


def test_cancel_retry_delete(lanewise, job, stub):
    assert "cancelled" in lanewise("jobs", "cancel", job["id"]).stdout
    assert "queued" in lanewise("jobs", "retry", job["id"]).stdout
    refused = lanewise("jobs", "delete", job["id"], input="n\n")
    assert refused.exit_code == 1
    assert job["id"] in stub.state.jobs
    assert lanewise("jobs", "delete", "--yes", job["id"]).exit_code == 0
    assert stub.state.jobs == {}


def test_a_job_that_does_not_exist_is_an_error(lanewise):
    result = lanewise("jobs", "show", "job_none")
    assert result.exit_code == 1
    assert "job_none" in result.output
