"""Machine files: what ships loads, goes round, and a broken one is refused by file and key."""

import copy
import tomllib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.hardware.errors import HardwareError, MalformedFile, UnknownName
from kernels.hardware.machine import (
    LINK_CLASSES,
    MACHINES,
    DeviceGroup,
    Host,
    Links,
    Machine,
    load_machine,
    machine_names,
    parse_machine,
)
from kernels.hardware.machine_text import dump_machine
from kernels.hardware.products import PeakRates, Product, load_product, product_names
from kernels.hardware.quantity import BYTES, BYTES_PER_S, FLOPS, SECONDS, parse_quantity
from kernels.hardware.tables import Table
from kernels.hardware.traits import family_names

NAMES = (
    "1x-h200",
    "4x-rtx4090-nop2p",
    "8x-a100-pcie",
    "8x-ascend910b",
    "8x-hygon",
    "8x-l40s",
    "8x-rtx5090",
    "8x-rtxpro6000",
    "laptop-cpu",
)


def values(name="8x-l40s"):
    return tomllib.loads((MACHINES / f"{name}.toml").read_text("utf-8"))


def test_the_machines_of_the_design_ship():
    assert machine_names() == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_a_machine_loads_by_name_and_by_file_and_goes_round(name, tmp_path):
    machine = load_machine(name)
    assert machine.name == name
    assert load_machine(MACHINES / f"{name}.toml") == machine
    file = tmp_path / "copy.toml"
    file.write_text(dump_machine(machine), "utf-8")
    assert load_machine(str(file)) == machine


def test_only_the_machine_that_was_measured_is_real():
    machines = [load_machine(name) for name in NAMES]
    assert [m.name for m in machines if not m.virtual] == ["laptop-cpu"]
    assert [m.name for m in machines if m.verified] == ["laptop-cpu"]


@pytest.mark.parametrize("name", NAMES)
def test_a_machine_without_peer_access_states_no_peer_rates(name):
    links = load_machine(name).links
    if links.p2p != "yes":
        assert links.hop_bytes_s is None
        assert links.cross_socket_bytes_s is None


def test_eight_l40s_hold_the_published_figures():
    machine = load_machine("8x-l40s")
    assert machine.num_devices == len(machine.products) == 8
    assert machine.families == ("sm_89",)
    assert machine.traits[0].name == "sm_89"
    assert machine.links.islands == ((0, 1, 2, 3), (4, 5, 6, 7))
    assert machine.links.hop_bytes_s == 25.4e9
    assert machine.links.cross_socket_bytes_s == 9.7e9
    assert machine.products[0].peak.bf16 == pytest.approx(362.05e12)


@pytest.mark.parametrize("name", product_names())
def test_a_product_states_a_peak_only_for_types_its_family_multiplies(name):
    product = load_product(name)
    traits = product.traits
    for dtype in ("bf16", "fp16", "fp8", "fp4", "int8"):
        if getattr(traits, f"{dtype}_mma") is False:
            assert getattr(product.peak, dtype) is None, dtype


def test_pci_ids_name_one_product_each():
    ids = [pci_id for name in product_names() for pci_id in load_product(name).pci_ids]
    assert len(ids) == len(set(ids))


@pytest.mark.parametrize("name", ["8x-l40", "missing.toml", "", "../families/sm_80"])
def test_a_miss_lists_the_machines_available(name):
    with pytest.raises(UnknownName) as caught:
        load_machine(name)
    assert all(known in str(caught.value) for known in NAMES)


def changed(path, value):
    document = values()
    *parents, key = path
    place = document
    for parent in parents:
        place = place[parent]
    place[key] = value
    return document


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("links", "hop"), "25 Gbit/s", r"links\.hop: '25 Gbit/s' is no rate; write .* GB/s"),
        (("links", "hop"), "25.4", r"links\.hop: '25.4' is no rate"),
        (("links", "hop"), 25.4, r"links\.hop: 25.4 has no unit"),
        (("links", "hop"), "-1 GB/s", r"links\.hop: '-1 GB/s' is outside 1000 to 1e\+15 B/s"),
        (("links", "hop"), "nan GB/s", r"links\.hop: 'nan GB/s' is outside"),
        (("links", "hop"), "many GB/s", r"links\.hop: 'many' in 'many GB/s' is not a number"),
        (("links", "latency"), "11 s", r"links\.latency: '11 s' is outside 0 to 10 s"),
        (("links", "p2p"), True, r"links\.p2p: True must be one of yes, no, unknown"),
        (("links", "link_class"), "nvlink", r"links\.link_class: 'nvlink' must be one of none, "),
        (("links", "islands"), [[0, 1]], r"links\.islands: .* must name each device from 0 to 7"),
        (("links", "islands"), [], r"links\.islands: must hold at least one island"),
        (("links", "islands"), [["a"]], r"links\.islands: 'a' must be a whole number"),
        (("host", "memory"), "512 GB/s", r"host\.memory: '512 GB/s' is no size"),
        (("host", "num_cores"), 0, r"host\.num_cores: 0 must be a whole number from 1 to 8192"),
        (("host", "cpu_family"), "avx3", r"host\.cpu_family: 'avx3' must be one of "),
        (("host", "cores"), 8, r"host\.cores: unknown key; known here: cpu_family, "),
        (("devices", 0, "count"), True, r"devices\[0\]\.count: True must be a whole number"),
        (("devices",), [], r"devices: must hold at least one table"),
        (("devices",), {}, r"devices: \{\} must be a list of tables"),
        (("links",), "fast", r"links: 'fast' must be a table"),
        (("virtual",), "yes", r"virtual: 'yes' must be true or false"),
        (("name",), " ", r"name: ' ' must be a string that is not empty"),
        (("gpu",), 1, r"gpu: unknown key"),
    ],
)
def test_a_wrong_value_is_refused_by_file_key_and_bound(path, value, message):
    with pytest.raises(MalformedFile, match=rf"^box\.toml: {message}"):
        parse_machine(Table(changed(path, value), "box.toml"))


def leaves(place, path=()):
    items = place.items() if isinstance(place, dict) else enumerate(place)
    for key, value in items:
        yield (*path, key)
        nested = isinstance(value, dict) or (isinstance(value, list) and key == "devices")
        if nested:
            yield from leaves(value, (*path, key))


PATHS = [path for path in leaves(values()) if path != ("devices", 0)]


@pytest.mark.parametrize("path", PATHS, ids=lambda path: ".".join(map(str, path)))
def test_a_file_without_a_key_is_refused_by_that_key(path):
    document = values()
    place = document
    for parent in path[:-1]:
        place = place[parent]
    del place[path[-1]]
    with pytest.raises(MalformedFile, match=rf"{path[-1]}: missing") as caught:
        parse_machine(Table(document, "box.toml"))
    assert caught.value.file == "box.toml"


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=12),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner),
    max_leaves=6,
)


def outcome_of(document):
    try:
        return parse_machine(Table(document, "box.toml"))
    except HardwareError as error:
        return error


@settings(deadline=None)
@given(path=st.sampled_from(PATHS), value=JUNK)
def test_whatever_a_file_holds_it_is_a_machine_or_an_error_that_names_the_key(path, value):
    document = changed(path, value)
    before = copy.deepcopy(document)
    outcome = outcome_of(document)
    match outcome:
        case MalformedFile():
            top = outcome.key.split(".")[0].split("[")[0]
            assert top in (path[0], "links")  # islands are counted against the devices
            assert str(outcome).startswith("box.toml: ")
        case UnknownName():
            assert (path[-1], outcome.name) == ("product", value)
        case _:
            assert isinstance(outcome, Machine)
            assert outcome.num_devices == 8
    assert repr(document) == repr(before)


@settings(deadline=None)
@given(text=st.text(max_size=200))
def test_whatever_text_a_file_holds_the_error_is_ours(text, tmp_path_factory):
    file = tmp_path_factory.mktemp("files") / "box.toml"
    file.write_bytes(text.encode("utf-8", "surrogatepass"))
    with pytest.raises(MalformedFile) as caught:
        load_machine(file)
    assert caught.value.file == str(file)


words = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20).filter(str.strip)
peers = st.sampled_from(["yes", "no", "unknown"])


def amounts(dimension):
    return st.none() | st.floats(dimension.low, dimension.high)


products = st.builds(
    Product,
    name=words,
    family=st.sampled_from(family_names()),
    memory_bytes=st.integers(1, 1 << 40),
    memory_bandwidth_bytes_s=amounts(BYTES_PER_S),
    num_sms=st.none() | st.integers(1, 100_000),
    peak=st.builds(PeakRates, **dict.fromkeys(PeakRates.__annotations__, amounts(FLOPS))),
    p2p=peers,
    pci_ids=st.lists(words, max_size=2).map(tuple),
    source=words,
)
hosts = st.builds(
    Host,
    cpu_family=st.sampled_from(family_names()),
    num_cores=st.integers(1, 8192),
    num_numa_nodes=st.integers(1, 256),
    memory_bytes=st.integers(1, 1 << 50),
    memory_bandwidth_bytes_s=amounts(BYTES_PER_S),
)


@st.composite
def machines(draw):
    groups = st.builds(DeviceGroup, count=st.integers(1, 4), product=products)
    devices = tuple(draw(st.lists(groups, min_size=1, max_size=2)))
    indices = draw(st.permutations(range(sum(group.count for group in devices))))
    cut = draw(st.integers(1, len(indices)))
    links = st.builds(
        Links,
        link_class=st.sampled_from(LINK_CLASSES),
        p2p=peers,
        hop_bytes_s=amounts(BYTES_PER_S),
        cross_socket_bytes_s=amounts(BYTES_PER_S),
        host_bytes_s=amounts(BYTES_PER_S),
        staged_bytes_s=amounts(BYTES_PER_S),
        latency_s=amounts(SECONDS),
        islands=st.just(tuple(filter(None, (tuple(indices[:cut]), tuple(indices[cut:]))))),
        source=words,
    )
    return Machine(
        name=draw(words),
        description=draw(words),
        devices=devices,
        host=draw(hosts),
        links=draw(links),
        virtual=draw(st.booleans()),
        verified=draw(st.booleans()),
        source=draw(words),
    )


@settings(deadline=None)
@given(machine=machines())
def test_any_machine_goes_through_its_text_unchanged(machine):
    assert parse_machine(Table(tomllib.loads(dump_machine(machine)), "box.toml")) == machine


@settings(deadline=None)
@given(text=st.text(max_size=20), dimension=st.sampled_from([BYTES, BYTES_PER_S, FLOPS, SECONDS]))
def test_a_quantity_is_within_its_range_or_refused(text, dimension):
    try:
        value = parse_quantity(text, dimension)
    except ValueError:
        return
    assert dimension.low <= value <= dimension.high
