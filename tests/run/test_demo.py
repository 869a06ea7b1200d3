"""The replay server."""

import importlib
import json
import urllib.error
import urllib.request

import pytest

from mkb_core.run import demo
from mkb_core.run.demo import DemoServer
from mkb_core.run.plan import Attempt

RECORDING = """
- analysis: An empty folder.
  plan: Write "kernel.py" with {braces}.
  commands:
    - {keystrokes: "echo 'π' > /app/kernel.py\\n", duration: 0.3}
    - {keystrokes: "C-c"}
- analysis: Written.
  plan: Finish.
  task_complete: true
"""
ATTEMPT = Attempt(model="demo", problem="p28", dsl="tirx", arm="solo")


@pytest.fixture
def server(tmp_path):
    (tmp_path / "p28-tirx-solo.yaml").write_text(RECORDING, encoding="utf-8")
    with DemoServer(tmp_path) as server:
        yield server


def ask(url: str, answers: int) -> dict:
    messages = [{"role": "user", "content": "x" * 400}]
    messages += [{"role": "assistant", "content": ""}, {"role": "user", "content": "and now?"}] * answers
    body = json.dumps({"model": "demo", "messages": messages}).encode()
    with urllib.request.urlopen(urllib.request.Request(f"{url}/chat/completions", data=body)) as reply:
        return json.load(reply)


def content(reply: dict) -> dict:
    return json.loads(reply["choices"][0]["message"]["content"])


def test_turn_is_the_number_of_answers_so_far(server):
    url = server.url(ATTEMPT)
    assert url.endswith("/p28/tirx/solo/v1")
    first = content(ask(url, 0))
    assert first["plan"] == 'Write "kernel.py" with {braces}.'
    assert first["commands"][0] == {"keystrokes": "echo 'π' > /app/kernel.py\n", "duration": 0.3}
    assert content(ask(url, 1))["analysis"] == "Written."
    assert content(ask(url, 0)) == first


def test_after_the_last_turn_the_task_stays_complete(server):
    for answers in (2, 3, 50):
        reply = content(ask(server.url(ATTEMPT), answers))
        assert reply["task_complete"] is True
        assert reply["commands"] == []


def test_replicates_share_a_recording(server):
    second = ATTEMPT.model_copy(update={"replicate": 2})
    assert server.url(second) == server.url(ATTEMPT)


def test_tokens_are_estimated_by_length(server):
    reply = ask(server.url(ATTEMPT), 0)
    text = reply["choices"][0]["message"]["content"]
    assert reply["usage"]["prompt_tokens"] == 100
    assert reply["usage"]["completion_tokens"] == len(text) // 4


def test_unknown_attempt_is_a_clear_404(server):
    url = server.url(ATTEMPT.model_copy(update={"arm": "skill"}))
    with pytest.raises(urllib.error.HTTPError) as caught:
        ask(url, 0)
    with caught.value as error:
        assert error.code == 404
        message = json.load(error)["error"]["message"]
    assert "p28-tirx-skill" in message
    assert "p28-tirx-solo" in message


def test_recording_with_a_wrong_field_names_it(tmp_path):
    path = tmp_path / "p28-tirx-solo.yaml"
    path.write_text("- {analysis: a, plan: b, comands: []}")
    with pytest.raises(ValueError, match="comands"):
        demo.load(path)


def test_terminus_parses_the_answers_without_a_warning():
    pytest.importorskip("harbor")
    importlib.import_module("mkb_core.run.llm")  # before harbor: it keeps litellm off the network
    parser = importlib.import_module("harbor.agents.terminus_2.terminus_json_plain_parser")
    turn = demo.Turn(analysis='a "quoted" {brace}', plan="b", commands=(demo.Keys(keystrokes="ls\n"),))
    for answer in (turn.answer(), demo.LAST.answer()):
        parsed = parser.TerminusJSONPlainParser().parse_response(answer)
        assert (parsed.error, parsed.warning) == ("", "")
    assert parsed.is_task_complete


def test_turn_waits_for_its_text_on_the_screen():
    turns = (demo.Turn(analysis="1", plan="p"), demo.Turn(analysis="2", plan="p", until="submissions left: 9"))
    talk = [{"role": "user", "content": "task"}]

    def go_on(screen: str) -> demo.Turn:
        answer = demo.next_turn(turns, talk)
        talk.extend([{"role": "assistant", "content": answer.answer()}, {"role": "user", "content": screen}])
        return answer

    assert go_on("") == turns[0]
    assert go_on("still judging") == demo.WAIT
    assert go_on("submissions left: 9") == demo.WAIT
    assert go_on("") == turns[1]
    assert go_on("") == demo.LAST


def test_a_problem_is_recorded_when_every_attempt_is(tmp_path):
    for problem, arms in (("p28", ("solo", "skill")), ("p36", ("solo",))):
        for dsl in ("cutedsl", "tirx"):
            for arm in arms:
                (tmp_path / f"{problem}-{dsl}-{arm}.yaml").write_text("[]")
    assert demo.recorded(tmp_path) == ["p28"]
