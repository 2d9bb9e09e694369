"""`--llm-devices` reaches the engine, one device for each rank, and `--graphs` with it."""

import pytest

from llm_engine.errors import InvalidConfig
from service.commands.serve import settings_from
from workers.llm_settings import engine_config


def test_devices_and_graphs_are_the_engines_settings():
    config = engine_config(settings_from({"llm_devices": "2", "graphs": "off"}))
    assert (config.device, config.graphs) == ("cuda", "off")
    assert engine_config(settings_from({})).device == "cpu"
    config = engine_config(settings_from({"llm_devices": "0-1", "layout": "cp2->tp2"}))
    assert (config.device, config.layout) == ("cuda", "cp2->tp2")


@pytest.mark.parametrize(
    ("devices", "layout", "words"),
    [
        ("0-3", "", "llm_devices 0-3 are 4, but layout none is for 1 rank,"),
        ("0", "tp2", "llm_devices 0 are 1, but layout tp2 is for 2 ranks,"),
        ("0,2,4", "tp2,ep2", "are 3, but layout tp2,ep2 is for 2 ranks"),
    ],
)
def test_an_idle_device_or_a_rank_without_one_is_refused(devices: str, layout: str, words: str):
    with pytest.raises(InvalidConfig, match=words):
        engine_config(settings_from({"llm_devices": devices, "layout": layout}))


def test_graphs_on_a_cpu_are_refused():
    with pytest.raises(InvalidConfig, match="graphs is 'on', but a CPU records none"):
        engine_config(settings_from({"graphs": "on"}))
