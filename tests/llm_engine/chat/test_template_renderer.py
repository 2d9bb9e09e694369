"""Chat templates render as transformers renders them, and reach nothing outside."""

from typing import Any

import pytest
from jinja2 import TemplateError
from transformers.utils.chat_template_utils import render_jinja_template

from llm_engine.chat.template_renderer import compile_template

MESSAGES: list[dict[str, Any]] = [
    {"role": "system", "content": "be <b>brief</b> & kind"},
    {"role": "user", "content": "häagen \"quoted\" 'x'\n"},
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"name": "f", "arguments": {"é": [1, 2.5]}}],
    },
]
TEMPLATES = [
    "{% for m in messages %}\n  {% if m.content %}\n[{{ m.content | trim }}]\n  {% endif %}\n"
    "{% endfor %}",
    "{{ messages | tojson }}{{ messages[2] | tojson(indent=2) }}",
    "{% for m in messages %}{% if loop.index > 2 %}{% break %}{% endif %}{{ m.role }}{% endfor %}",
    "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}"
    "{{ ns.n }}",
    "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}",
    "{{ bos_token }}{% if add_generation_prompt %}>{% endif %}{{ strftime_now('%Y') }}",
    "{{ (messages[0].content ~ '|').split('&')[-1].strip('|') }}{{ undefined_name }}",
]


@pytest.mark.parametrize("template", TEMPLATES)
def test_text_equals_transformers(template: str) -> None:
    (expected,), _ = render_jinja_template(
        [MESSAGES], chat_template=template, add_generation_prompt=True, bos_token="<s>"
    )
    actual = compile_template(template)(
        messages=MESSAGES, add_generation_prompt=True, bos_token="<s>", tools=None, documents=None
    )
    assert actual == expected


@pytest.mark.parametrize(
    "template",
    [
        "{{ messages.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{{ raise_exception('not today') }}",
        "{% for m in messages %}",
        "{{ cycler.__init__.__globals__.os }}",
    ],
)
def test_what_a_template_may_not_do_is_an_error(template: str) -> None:
    with pytest.raises(TemplateError):
        compile_template(template)(messages=[])
