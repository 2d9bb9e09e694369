"""Parsing shot lists."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.batch.shots import find_missing_images, parse_records, parse_shots

HEAD = "shot,image,prompt"


def test_csv_and_jsonl_say_the_same() -> None:
    csv = parse_shots(
        "project,sequence,shot,image,prompt,seconds,fps,size,fit,seed,steps,priority,tags\n"
        'p,s,1,a.png,"pan, left",1.5,24,640x480,pad,7,9,-3,"x;y"\n'
    )
    jsonl = parse_shots(
        '{"project":"p","sequence":"s","shot":1,"image":"a.png","prompt":"pan, left","seconds":1.5,'
        '"fps":24,"width":640,"height":480,"fit":"pad","seed":7,"steps":9,"priority":-3,"tags":["x","y"]}'
    )
    assert csv.problems == jsonl.problems == ()
    left, right = csv.rows[0], jsonl.rows[0]
    assert (left.line, right.line, left.label) == (2, 1, "s_1")
    assert {n: getattr(left, n) for n in left.__slots__ if n != "line"} == {
        n: getattr(right, n) for n in right.__slots__ if n != "line"
    }


def test_seeds_make_one_row_each() -> None:
    rows = parse_shots(f'{HEAD},seeds\n1,a,p,"3, 1,2"\n2,a,p,\n').rows
    assert [(row.shot, row.seed) for row in rows] == [("1", 3), ("1", 1), ("1", 2), ("2", None)]


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_spreadsheets_of_all_kinds(delimiter: str, newline: str) -> None:
    lines = ["\ufeffShot, Image ,PROMPT", "", "1,a,p", ",,", "2,b,q", ""]
    found = parse_shots(newline.join(lines).replace(",", delimiter))
    assert found.problems == ()
    assert [(row.line, row.shot) for row in found.rows] == [(3, "1"), (5, "2")]


def test_lines_count_through_quoted_line_breaks() -> None:
    found = parse_shots(f'{HEAD}\n1,a,"two\nlines"\n2,a,\n')
    assert found.rows[0].prompt == "two\nlines"
    assert [str(problem) for problem in found.problems] == ["line 4, prompt: is missing"]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "line 1: the list holds no shots"),
        (HEAD, "line 1: the list holds no shots"),
        (f"{HEAD},colour\n1,a,p,red", "line 1, colour: is no column"),
        (f"{HEAD}\n1,a,p,extra", "line 2: has 4 cells"),
        (f"{HEAD},shot\n1,a,p,2", "line 1: the header names the column 'shot' twice"),
        (f"{HEAD}\n,a,p", "line 2, shot: is missing"),
        (f"{HEAD},seconds\n1,a,p,long", "line 2, seconds: is 'long', must be a number"),
        (f"{HEAD},seconds\n1,a,p,nan", "line 2, seconds: is 'nan', must be a finite number"),
        (f"{HEAD},seed\n1,a,p,1.5", "line 2, seed: is '1.5', must be a whole number"),
        (f"{HEAD},seed\n1,a,p,-1", "line 2, seed: is -1, must be 0 to"),
        (f'{HEAD},seeds\n1,a,p,"1,x"', "line 2, seeds: is 'x'"),
        (f"{HEAD},seed,seeds\n1,a,p,1,2", "line 2, seeds: clashes with seed"),
        (f"{HEAD},size,width\n1,a,p,1x1,2", "line 2, size: clashes with width"),
        (f"{HEAD},width\n1,a,p,64", "line 2, height: is missing"),
        (f"{HEAD},size\n1,a,p,big", "line 2, size: is 'big', must be WIDTHxHEIGHT"),
        (f"{HEAD},fit\n1,a,p,stretch", "line 2, fit: is 'stretch', must be crop or pad"),
        (f"{HEAD},priority\n1,a,p,101", "line 2, priority: is 101, must be -100 to 100"),
        (f"{HEAD}\n1,a,p\n1,b,q", "line 3, shot: '1' with no seed is on line 2 already"),
        (f'{HEAD},seeds\n1,a,p,"5,5"', "line 2, shot: '1' with the seed 5 is on line 2 already"),
        (f'{HEAD}\n1,a,"open', "is no valid CSV"),
        ('{"shot": 1}\n{bad', "line 2: is no valid JSON"),
        ('{"shot": 1}\n[1]', "line 2: must be a JSON object"),
        ('{"shot": 1, "image": "a", "prompt": "p", "seconds": NaN}', "line 1: is no valid JSON"),
        ('{"shot": true, "image": "a", "prompt": "p"}', "line 1, shot: is true or false"),
        (f"{HEAD}\n1,a,p\0", "line 2: holds a NUL"),
    ],
)
def test_every_mistake_has_its_line(text: str, problem: str) -> None:
    problems = [str(found) for found in parse_shots(text).problems]
    assert any(problem in found for found in problems), problems


def test_all_mistakes_are_told_at_once_in_order() -> None:
    problems = parse_shots(f"{HEAD},seed,fit\n1,,p,x,y\n,a,,,\n").problems
    assert [(p.line, p.column) for p in problems] == [
        (2, "fit"), (2, "image"), (2, "seed"), (3, "prompt"), (3, "shot"),
    ]  # fmt: skip


def test_missing_pictures_are_told_once_per_line() -> None:
    rows = parse_shots(f'{HEAD},seeds\n1,a,p,"1,2"\n2,b,p,\n').rows
    assert [str(p) for p in find_missing_images(rows, lambda name: name == "b")] == [
        "line 2, image: the picture 'a' is missing"
    ]


_CELLS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=20),
    st.lists(st.integers(), max_size=3),
    st.dictionaries(st.text(max_size=3), st.none(), max_size=2),
)


@given(
    st.lists(
        st.one_of(
            _CELLS,
            st.dictionaries(
                st.sampled_from(
                    ["shot", "image", "prompt", "seed", "seeds", "size", "tags", "fps", "x"]
                ),
                _CELLS,
            ),
        ),
        max_size=4,
    )
)
@settings(max_examples=200, deadline=None)
def test_records_of_any_kind_never_raise(records: list[object]) -> None:
    found = parse_records(records)
    assert found.rows or found.problems


@given(st.text(max_size=200))
@settings(max_examples=200, deadline=None)
def test_text_of_any_kind_never_raises(text: str) -> None:
    for candidate in (text, f"{HEAD}\n{text}", f'{{"shot": 1}}\n{text}'):
        found = parse_shots(candidate)
        assert found.rows or found.problems


def test_the_parser_needs_no_web_framework() -> None:
    code = (
        "import sys, service.batch.shots\n"
        "print(sorted({'fastapi', 'starlette', 'sqlalchemy'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
