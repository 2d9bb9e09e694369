"""Files of measurements: whole or not at all, refused by name, of one machine."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.table_file import TableFileError, TableFormat, fingerprint_of

FORMAT = TableFormat(noun="table of tests", schema=7, remedy="measure again")
FACTS = {"cores": 2, "links": ["a", "b"]}
VALUES = {"rates": {"gemm": 1.5}, "made": "2026-01-01", "rows": [1, 2, 3]}


def values_of(record):
    """What a kind of table would parse: every value by its key."""
    return {name: record[name] for name in VALUES}


def refuse(path, message, here=FACTS):
    """Reading is refused with this message and the name of the file."""
    with pytest.raises(TableFileError, match=message) as caught:
        FORMAT.read(path, here, values_of)
    assert str(path) in str(caught.value)
    assert "measure again" in str(caught.value)


NAMES = st.text("abcdef", min_size=1, max_size=4)
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=8,
)


@given(values=st.dictionaries(NAMES, PLAIN, max_size=4))
@settings(max_examples=30, deadline=None)
def test_what_is_written_is_read(tmp_path_factory, values):
    path = FORMAT.write(tmp_path_factory.mktemp("t") / "deep" / "t.json", FACTS, values)
    found = FORMAT.read(path, FACTS, lambda record: {name: record[name] for name in values})
    assert found == values
    assert [file.name for file in path.parent.iterdir()] == ["t.json"]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("rates", {"gemm": 1.6}),
        ("made", "2026-01-02"),
        ("rows", [1, 2]),
        ("facts", {"cores": 3, "links": ["a", "b"]}),
        ("fingerprint", fingerprint_of({"cores": 3})),
        ("checksum", "sha256:0"),
        ("added", 1),
    ],
)
def test_whatever_is_changed_by_hand_is_noticed(tmp_path, key, value):
    path = FORMAT.write(tmp_path / "t.json", FACTS, VALUES)
    path.write_text(json.dumps(json.loads(path.read_text()) | {key: value}))
    refuse(path, "edited or damaged")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "JSONDecodeError"),
        ("[]", "TypeError"),
        ("{}", "KeyError: 'schema'"),
        ('{"schema": 6}', "schema 6, this reads 7"),
        ('{"schema": 7}', "KeyError: 'checksum'"),
        (b"\xff\xfe", "UnicodeDecodeError"),
    ],
)
def test_what_is_no_table_is_refused_by_name(tmp_path, text, message):
    path = tmp_path / "t.json"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    refuse(path, f"is no table of tests.*{message}")


def test_a_whole_file_without_a_value_names_it(tmp_path):
    path = FORMAT.write(tmp_path / "t.json", FACTS, {"made": "today"})
    refuse(path, "KeyError: 'rates'")


def test_a_file_that_cannot_be_opened_is_refused(tmp_path):
    refuse(tmp_path / "absent.json", "FileNotFoundError")


def test_every_fact_that_differs_is_named_with_both_values(tmp_path):
    path = FORMAT.write(tmp_path / "t.json", FACTS, VALUES)
    refuse(
        path,
        "cores: measured with 2, here is 4; links: measured with .*, here is absent; "
        "p2p: measured with absent, here is no",
        here={"cores": 4, "p2p": "no"},
    )


def test_a_write_that_fails_leaves_what_was_there_and_nothing_else(tmp_path, monkeypatch):
    path = FORMAT.write(tmp_path / "t.json", FACTS, VALUES)
    before = path.read_bytes()

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space left"):
        FORMAT.write(path, FACTS, {**VALUES, "made": "later"})
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]
