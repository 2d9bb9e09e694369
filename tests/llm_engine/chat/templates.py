"""Chat templates in the manner of four families, written for these tests."""

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content']"
    " + '<|im_end|>' + '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)

QWEN3_LIKE = """\
{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}
        {{- messages[0].content + '\\n\\n' }}
    {%- endif %}
    {{- '<tools>' }}
    {%- for tool in tools %}
        {{- '\\n' + (tool | tojson) }}
    {%- endfor %}
    {{- '\\n</tools>\\nWrite <tool_call>{...}</tool_call>.<|im_end|>\\n' }}
{%- elif messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'user' or (message.role == 'system' and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
    {%- elif message.role == 'assistant' %}
        {{- '<|im_start|>assistant\\n' }}
        {%- if message.reasoning_content %}
            {{- '<think>\\n' + message.reasoning_content.strip('\\n') + '\\n</think>\\n\\n' }}
        {%- endif %}
        {{- message.content }}
        {%- if message.tool_calls %}
            {%- for tool_call in message.tool_calls %}
                {%- set call = tool_call.function %}
                {{- '\\n<tool_call>\\n{"name": "' + call.name + '", "arguments": ' }}
                {{- call.arguments if call.arguments is string else call.arguments | tojson }}
                {{- '}\\n</tool_call>' }}
            {%- endfor %}
        {%- endif %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == 'tool' %}
        {%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}
        {%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}
            {{- '<|im_end|>\\n' }}
        {%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}
"""

# Opens the reasoning itself, as the distilled reasoning models do.
OPENS_THINKING = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content.split('</think>')[-1] }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|><think>\n{% endif %}"
)

LLAMA31_LIKE = """\
{{- bos_token }}
{%- if not date_string is defined %}
    {%- set date_string = strftime_now("%d %b %Y") %}
{%- endif %}
{%- if not tools is defined %}
    {%- set tools = none %}
{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content'] | trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\nDate: " + date_string + "\\n\\n" }}
{{- system_message + "<|eot_id|>" }}
{%- if tools is not none %}
    {%- if messages | length == 0 %}
        {{- raise_exception("no user message to put the tools into") }}
    {%- endif %}
    {%- set first = messages[0]['content'] | trim %}
    {%- set messages = messages[1:] %}
    {{- '<|start_header_id|>user<|end_header_id|>\\n\\nAnswer {"name": function, ' }}
    {{- '"parameters": arguments}.\\n\\n' }}
    {%- for t in tools %}
        {{- t | tojson(indent=4) }}
        {{- "\\n\\n" }}
    {%- endfor %}
    {{- first + "<|eot_id|>" }}
{%- endif %}
{%- for message in messages %}
    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' }}
        {{- message['content'] | trim + '<|eot_id|>' }}
    {%- elif 'tool_calls' in message %}
        {%- if message.tool_calls | length != 1 %}
            {{- raise_exception("one call at a time") }}
        {%- endif %}
        {%- set tool_call = message.tool_calls[0].function %}
        {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n{"name": "' + tool_call.name }}
        {{- '", "parameters": ' }}
        {{- tool_call.arguments | tojson }}
        {{- "}<|eot_id|>" }}
    {%- else %}
        {{- "<|start_header_id|>ipython<|end_header_id|>\\n\\n" }}
        {%- if message.content is mapping or message.content is iterable %}
            {{- message.content | tojson }}
        {%- else %}
            {{- message.content }}
        {%- endif %}
        {{- "<|eot_id|>" }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
"""

MISTRAL_LIKE = """\
{%- if messages[0]["role"] == "system" %}
    {%- set system_message = messages[0]["content"] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set loop_messages = messages %}
{%- endif %}
{{- bos_token }}
{%- if tools is defined and tools is not none %}
    {{- "[AVAILABLE_TOOLS] [" }}
    {%- for tool in tools %}
        {{- tool | tojson }}
        {%- if not loop.last %}{{- ", " }}{%- endif %}
    {%- endfor %}
    {{- "][/AVAILABLE_TOOLS]" }}
{%- endif %}
{%- for message in loop_messages %}
    {%- if message["role"] == "user" %}
        {%- if loop.last and system_message is defined %}
            {{- "[INST] " + system_message + "\\n\\n" + message["content"] + "[/INST]" }}
        {%- else %}
            {{- "[INST] " + message["content"] + "[/INST]" }}
        {%- endif %}
    {%- elif message.tool_calls is defined and message.tool_calls %}
        {{- "[TOOL_CALLS] [" }}
        {%- for tool_call in message.tool_calls %}
            {%- set out = tool_call.function | tojson %}
            {{- out[:-1] }}
            {%- if not tool_call.id is defined or tool_call.id | length != 9 %}
                {{- raise_exception("call ids must have nine letters or digits") }}
            {%- endif %}
            {{- ', "id": "' + tool_call.id + '"}' }}
            {%- if not loop.last %}{{- ", " }}{%- else %}{{- "]" + eos_token }}{%- endif %}
        {%- endfor %}
    {%- elif message["role"] == "assistant" %}
        {{- " " + message["content"] | trim + eos_token }}
    {%- elif message["role"] == "tool" %}
        {{- '[TOOL_RESULTS] {"content": ' + message.content | string + ", " }}
        {%- if not message.tool_call_id is defined or message.tool_call_id | length != 9 %}
            {{- raise_exception("call ids must have nine letters or digits") }}
        {%- endif %}
        {{- '"call_id": "' + message.tool_call_id + '"}[/TOOL_RESULTS]' }}
    {%- else %}
        {{- raise_exception("only user, assistant, system and tool roles are known") }}
    {%- endif %}
{%- endfor %}
"""

# The past call's arguments must be JSON text here, as in the first templates of their kind.
DEEPSEEK_LIKE = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'tool' %}<｜tool▁output▁begin｜>"
    "{{ m.content }}<｜tool▁output▁end｜>{% elif m.tool_calls %}<｜Assistant｜>"
    "<｜tool▁calls▁begin｜>{% for t in m.tool_calls %}"
    "{{ '<｜tool▁call▁begin｜>function<｜tool▁sep｜>' + t.function.name }}"
    "{{ '\\n```json\\n' + t.function.arguments + '\\n```<｜tool▁call▁end｜>' }}"
    "{% endfor %}<｜tool▁calls▁end｜>{% else %}<｜{{ m.role }}｜>{{ m.content }}{% endif %}"
    "{% endfor %}{{ tools | tojson if tools else '' }}"
    "{% if add_generation_prompt %}<｜Assistant｜>{% endif %}"
)
# One call a turn, with thoughts or words beside it; results are told as JSON text.
HARMONY_LIKE = """\
{{- '<|start|>system<|message|>Reasoning: ' + (reasoning_effort or 'medium') }}
{{- '\\n\\n# Valid channels: analysis, commentary, final.<|end|>' }}
{%- if messages[0].role in ('system', 'developer') %}
    {%- set first = messages[0].content %}
    {%- set rest = messages[1:] %}
{%- else %}
    {%- set first = '' %}
    {%- set rest = messages %}
{%- endif %}
{%- if first or tools %}
    {{- '<|start|>developer<|message|># Instructions\\n\\n' + first }}
    {%- for tool in tools or [] %}
        {{- '\\n// ' + tool.function.description + '\\ntype ' + tool.function.name }}
    {%- endfor %}
    {{- '<|end|>' }}
{%- endif %}
{%- set last_call = namespace(name=none) %}
{%- for message in rest %}
    {%- if message.role == 'assistant' and 'tool_calls' in message %}
        {%- if message.content and message.thinking %}
            {{- raise_exception('both content and thinking beside a call') }}
        {%- endif %}
        {%- if message.content or message.thinking %}
            {{- '<|start|>assistant<|channel|>analysis<|message|>' }}
            {{- (message.content or message.thinking) + '<|end|>' }}
        {%- endif %}
        {%- set call = message.tool_calls[0].function %}
        {%- set last_call.name = call.name %}
        {{- '<|start|>assistant to=functions.' + call.name + '<|channel|>commentary json' }}
        {{- '<|message|>' + (call.arguments | tojson) + '<|call|>' }}
    {%- elif message.role == 'assistant' %}
        {{- '<|start|>assistant<|channel|>final<|message|>' + message.content + '<|end|>' }}
    {%- elif message.role == 'tool' %}
        {%- if last_call.name is none %}
            {{- raise_exception('a result without a call') }}
        {%- endif %}
        {{- '<|start|>functions.' + last_call.name + ' to=assistant<|channel|>commentary' }}
        {{- '<|message|>' + (message.content | tojson) + '<|end|>' }}
    {%- else %}
        {{- '<|start|>' + message.role + '<|message|>' + message.content + '<|end|>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start|>assistant' }}{%- endif %}
"""
SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}
