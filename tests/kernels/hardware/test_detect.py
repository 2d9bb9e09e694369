"""Detection on fake trees of sysfs and procfs, with fake drivers, and on this machine."""

from pathlib import Path

import pytest

from kernels.hardware.detect import detect
from kernels.hardware.drivers import DriverDevice, DriverReport
from kernels.hardware.host import CPU_LEVELS, cpu_family
from kernels.hardware.machine import load_machine
from kernels.hardware.machine_text import dump_machine
from kernels.hardware.products import load_product
from kernels.hardware.traits import load_traits

ZEN4 = "fpu avx avx2 fma avx512f avx512bw avx512dq avx512vl avx512_bf16 avx512_vnni"
GIB = 1 << 30


class Box:
    """A fake machine: the files that sysfs and procfs would show."""

    def __init__(self, root, *, flags=ZEN4, num_cores=4, num_nodes=1):
        self.sys_root = root / "sys"
        self.proc_root = root / "proc"
        (self.sys_root / "bus/pci/devices").mkdir(parents=True)
        self.proc_root.mkdir()
        cores = "".join(f"processor\t: {i}\nflags\t\t: {flags}\n\n" for i in range(num_cores))
        (self.proc_root / "cpuinfo").write_text(cores)
        (self.proc_root / "meminfo").write_text(f"MemTotal:       {64 * GIB // 1024} kB\n")
        for node in range(num_nodes):
            (self.sys_root / f"devices/system/node/node{node}").mkdir(parents=True)
        (self.sys_root / "devices/system/node/node_extra").mkdir(exist_ok=True)

    def device(self, address, pci_id, *, node=0, pci_class="0x030200", **link):
        """One device below its port, linked into the bus as sysfs does it."""
        port = self.sys_root / f"devices/port-{address}"
        folder = port / address
        folder.mkdir(parents=True)
        vendor, device = pci_id.split(":")
        facts = {"vendor": f"0x{vendor}", "device": f"0x{device}", "class": pci_class}
        facts |= {"numa_node": str(node)} if node is not None else {}
        facts["max_link_speed"] = f"{link.get('rate', '32.0')} GT/s PCIe"
        facts["current_link_speed"] = "2.5 GT/s PCIe"  # idle
        facts["current_link_width"] = str(link.get("width", 16))
        facts["max_link_width"] = str(link.get("max_width", 16))
        for name, text in facts.items():
            (folder / name).write_text(text + "\n")
        (port / "max_link_speed").write_text(f"{link.get('slot_rate', '32.0')} GT/s PCIe\n")
        (self.sys_root / f"bus/pci/devices/{address}").symlink_to(folder)

    def detect(self, *readers):
        return detect(self.sys_root, self.proc_root, readers)


@pytest.fixture
def box(tmp_path):
    return Box(tmp_path)


def address_of(index):
    return f"0000:{index + 1:02x}:00.0"


def eight(box, pci_id="10de:2b85", **link):
    for index in range(8):
        box.device(address_of(index), pci_id, node=index // 4, **link)


def driver(family="sm_120", *, count=8, p2p=None, name="GPU", memory_bytes=32 * GIB):
    devices = tuple(
        DriverDevice(
            address=address_of(i), name=name, family=family, memory_bytes=memory_bytes, num_sms=170
        )
        for i in range(count)
    )
    return lambda: DriverReport(source="fake driver", devices=devices, p2p=p2p)


def silent():
    return DriverReport(source="NVML", notes=("NVML: the module pynvml is not installed",))


def test_eight_cards_on_two_sockets(tmp_path):
    box = Box(tmp_path, num_nodes=2)
    eight(box)
    machine = box.detect(driver(p2p=True)).machine
    assert machine.num_devices == 8
    assert machine.families == ("sm_120",)
    assert machine.products[0].name == "rtx-5090"
    assert machine.products[0].peak == load_product("rtx-5090").peak
    assert machine.host.num_numa_nodes == 2
    assert machine.links.islands == ((0, 1, 2, 3), (4, 5, 6, 7))
    assert (machine.links.link_class, machine.links.p2p) == ("pcie-gen5-x16", "yes")
    assert not machine.virtual
    assert not machine.verified


@pytest.mark.parametrize(("p2p", "stated"), [(True, "yes"), (False, "no"), (None, "yes")])
def test_the_driver_knows_peers_better_than_the_data_sheet(box, p2p, stated):
    eight(box, "10de:2bb1")
    assert load_product("rtx-pro-6000").p2p == "yes"
    assert box.detect(driver(p2p=p2p)).machine.links.p2p == stated


def test_an_idle_link_counts_as_what_card_and_slot_can_do(box):
    eight(box, slot_rate="16.0")
    assert box.detect(driver()).machine.links.link_class == "pcie-gen4-x16"


def test_downgraded_links_are_seen_and_named(box):
    eight(box, slot_rate="16.0", width=8)
    detected = box.detect(driver())
    assert detected.machine.links.link_class == "pcie-gen4-x8"
    downgraded = [note for note in detected.notes if "runs at x8 of x16" in note]
    assert len(downgraded) == 8
    assert downgraded[0].startswith("link of 0000:01:00.0: ")


def test_one_slow_slot_makes_the_link_class_unknown(box):
    box.device(address_of(0), "10de:26b9", rate="16.0")
    box.device(address_of(1), "10de:26b9", rate="16.0", width=4)
    assert box.detect(driver("sm_89", count=2)).machine.links.link_class == "unknown"


def test_the_first_driver_that_knows_devices_is_believed_and_the_silent_are_noted(box):
    eight(box)
    detected = box.detect(silent, driver(memory_bytes=31 * GIB), pytest.fail)
    assert detected.machine.products[0].memory_bytes == 31 * GIB
    assert detected.machine.links.source == "sysfs; driver: fake driver"
    assert "NVML: the module pynvml is not installed" in detected.notes


def test_without_a_driver_the_data_sheet_stands_in_and_says_so(box):
    eight(box)
    detected = box.detect(silent)
    assert set(detected.machine.products) == {load_product("rtx-5090")}
    assert detected.machine.links.p2p == "no"
    assert any("no driver answered; figures of rtx-5090's data sheet" in n for n in detected.notes)


def test_a_card_without_a_data_sheet_is_used_with_unknown_rates(box):
    box.device(address_of(0), "10de:2c05")
    detected = box.detect(driver(count=1, name="RTX 5070 Ti", memory_bytes=16 * GIB))
    product = detected.machine.products[0]
    assert (product.name, product.family, product.num_sms) == ("RTX 5070 Ti", "sm_120", 170)
    assert product.memory_bandwidth_bytes_s is None
    assert any("no data sheet in the table" in note for note in detected.notes)


def test_a_card_nobody_can_name_is_left_out_with_the_reason(box):
    box.device(address_of(0), "10de:1db4")
    detected = box.detect(silent)
    assert detected.machine.families == ("avx512_bf16",)
    assert any("(NVIDIA 10de:1db4): left out: no driver" in note for note in detected.notes)


def test_a_family_outside_the_table_is_left_out_and_the_table_listed(box):
    box.device(address_of(0), "10de:1db4")
    detected = box.detect(driver("sm_70", count=1))
    assert detected.machine.families == ("avx512_bf16",)
    note = next(note for note in detected.notes if "its family sm_70 is not among" in note)
    assert "sm_120" in note


def test_two_kinds_of_cards_make_two_groups(box):
    box.device(address_of(0), "10de:2684", rate="16.0")
    box.device(address_of(1), "10de:2684", rate="16.0")
    box.device(address_of(2), "10de:26b9", rate="16.0")
    machine = box.detect(silent).machine
    assert [(g.count, g.product.name) for g in machine.devices] == [(2, "rtx-4090"), (1, "l40s")]
    assert machine.links.p2p == "unknown"  # one refuses peers, the other does not


@pytest.mark.parametrize(
    ("pci_id", "pci_class", "family"),
    [("19e5:d802", "0x120000", "ascend_910b"), ("1002:74a1", "0x120000", "gfx942")],
)
def test_other_vendors_are_known_by_their_ids(box, pci_id, pci_class, family):
    eight(box, pci_id, pci_class=pci_class)
    assert box.detect(silent).machine.families == (family,)


def test_graphics_of_a_board_controller_are_no_accelerator(box):
    box.device(address_of(0), "19e5:1711", pci_class="0x030000")
    box.device(address_of(1), "1a03:2000", pci_class="0x030000")
    box.device(address_of(2), "10de:228e", pci_class="0x040300")
    detected = box.detect(pytest.fail)  # no reader is asked
    assert detected.pci == ()
    assert detected.machine.products[0].family == "avx512_bf16"


def test_a_link_that_sysfs_does_not_state_is_unknown_with_notes(box):
    box.device(address_of(0), "10de:26b9", node=-1, rate="Unknown", slot_rate="Unknown", width=255)
    detected = box.detect(silent)
    assert detected.machine.links.link_class == "unknown"
    assert "link of 0000:01:00.0: sysfs states no rate or no width" in detected.notes
    assert "NUMA node of 0000:01:00.0: sysfs does not say" in detected.notes


def test_a_bus_that_hides_still_lets_the_driver_speak(box):
    (box.sys_root / "bus/pci/devices").rmdir()
    detected = box.detect(driver("sm_90", count=1, name="H200", memory_bytes=141 * GIB))
    assert detected.machine.families == ("sm_90",)
    assert detected.machine.links.link_class == "none"
    assert any(note.startswith("PCI devices: ") for note in detected.notes)


def test_an_empty_machine_is_described_by_its_least_and_by_notes(tmp_path):
    detected = detect(tmp_path / "sys", tmp_path / "proc", ())
    host = detected.machine.host
    assert (host.cpu_family, host.num_cores, host.num_numa_nodes) == ("cpu_baseline", 1, 1)
    assert host.memory_bytes == GIB
    for what in ("CPU level", "CPU cores", "NUMA nodes", "host memory", "PCI devices", "devices"):
        assert any(note.startswith(f"{what}:") for note in detected.notes), what


@pytest.mark.parametrize("level", CPU_LEVELS)
def test_a_processor_is_of_the_richest_level_whose_flags_it_has(level):
    flags = frozenset(load_traits(level).cpu_flags)
    assert cpu_family(flags | {"fpu"}) == level
    for flag in flags:
        assert cpu_family(flags - {flag}) != level


def test_a_flag_that_only_resembles_another_does_not_count():
    assert cpu_family(frozenset({"avx512", "avx2x", "xavx2", "fma"})) == "cpu_baseline"


def test_a_control_group_limits_the_memory(box):
    limit = box.sys_root / "fs/cgroup/memory.max"
    limit.parent.mkdir(parents=True)
    for text, expected_bytes in (("max", 64 * GIB), (str(8 * GIB), 8 * GIB)):
        limit.write_text(text + "\n")
        assert box.detect().machine.host.memory_bytes == expected_bytes


def test_what_is_detected_can_be_saved_and_loaded(tmp_path):
    (tmp_path / "box").mkdir()
    box = Box(tmp_path / "box", num_nodes=2)
    eight(box)
    machine = box.detect(driver()).machine
    file = tmp_path / "mine.toml"
    file.write_text(dump_machine(machine), "utf-8")
    assert load_machine(file) == machine


def test_this_machine_is_described():
    machine = detect(readers=()).machine
    text = Path("/proc/cpuinfo").read_text("utf-8")
    assert machine.host.num_cores == text.count("processor\t")
    assert set(load_traits(machine.host.cpu_family).cpu_flags) <= set(text.split())
    assert machine.num_devices
    assert not machine.virtual


@pytest.mark.gpu
def test_a_gpu_that_torch_sees_is_among_the_devices():
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("torch sees no GPU")
    machine = detect().machine
    assert machine.num_devices == torch.cuda.device_count()
    assert {traits.kind for traits in machine.traits} == {"gpu"}
