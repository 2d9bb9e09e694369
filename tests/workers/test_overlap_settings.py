"""`--overlap` and `--wire` reach the engine, and are refused where they would do nothing."""

import pytest

from llm_engine.errors import InvalidConfig
from service.commands.serve import settings_from
from service.terminal import CommandFailed
from workers.llm_settings import engine_config


def test_the_options_are_the_engines_settings():
    config = engine_config(settings_from({"layout": "tp2", "overlap": "on", "wire": "auto"}))
    assert (config.layout, config.overlap, config.wire) == ("tp2", "on", "auto")
    plain = engine_config(settings_from({}))
    assert (plain.overlap, plain.wire) == ("auto", "exact")


def test_one_rank_has_no_wire():
    with pytest.raises(InvalidConfig, match="one rank exchanges nothing: give a layout"):
        engine_config(settings_from({"wire": "int8"}))


def test_other_values_are_refused_with_those_there_are():
    with pytest.raises(CommandFailed, match=r"llm_wire: .*'exact', 'int8' or 'auto'"):
        settings_from({"layout": "tp2", "wire": "int4"})
