"""`lanewise chat` against the stub."""

from __future__ import annotations

import pytest


def test_an_answer_is_printed_as_it_comes(lanewise):
    result = lanewise("chat", "hello", "--temperature", "0", "--max-tokens", "5")
    assert result.exit_code == 0, result.output
    assert result.stdout == "Good day.\n"


def test_the_message_may_come_from_a_pipe(lanewise):
    assert lanewise("chat", input="hello").stdout == "Good day.\n"
    assert lanewise("chat", "-", input="hello").stdout == "Good day.\n"


def test_an_empty_message_is_wrong_usage(lanewise):
    result = lanewise("chat", " ")
    assert result.exit_code == 2
    assert "empty" in result.output


def test_an_error_of_the_service_is_shown_with_a_way_out(lanewise, stub):
    stub.state.chat_error = {"message": "It is being loaded.", "code": "no_worker_for_model"}
    result = lanewise("chat", "hello")
    assert result.exit_code == 1
    assert "It is being loaded." in result.output
    assert "wait a little" in result.output


def test_a_wrong_key_is_named_as_such(stub):
    from click.testing import CliRunner

    from service.cli import main

    result = CliRunner().invoke(main, ["chat", "hi", "--url", stub.url, "--key", "sk-wrong"])
    assert result.exit_code == 1
    assert "This API key is not known." in result.output
    assert "lanewise keys create" in result.output


@pytest.mark.parametrize(
    "arguments", [["caf\udce9"], ["hi", "--system", "\udcff"], ["hi", "--model", "\udcff"]]
)
def test_text_that_is_no_utf8_is_wrong_usage(lanewise, arguments):
    result = lanewise("chat", *arguments)
    assert result.exit_code == 2
    assert "UTF-8" in result.output


def test_a_temperature_that_is_no_number_is_wrong_usage(lanewise):
    result = lanewise("chat", "hi", "--temperature", "nan")
    assert result.exit_code == 2
    assert "--temperature" in result.output
