"""A bot made of slack_bolt: receives by Socket Mode (`socket`) or by HTTP on a port.

Arguments: the JSON line of `monoco sim slack`, and `socket` or the port.
"""
import json
import sys

from slack_bolt import App
from slack_bolt.adapter.socket_mode import SocketModeHandler
from slack_sdk import WebClient

sim, mode = json.loads(sys.argv[1]), sys.argv[2]
credentials = sim["credentials"]
web = WebClient(credentials["bot_token"], base_url=sim["base_url"])
app = App(client=web, signing_secret=credentials["signing_secret"])


def show(**facts):
    # One write per line: handlers run in several threads.
    sys.stdout.write(json.dumps(facts) + "\n")
    sys.stdout.flush()


@app.event("app_mention")
def mentioned(event, say, request):
    retry = request.headers.get("x-slack-retry-num", ["0"])[0]
    show(saw="app_mention", text=event["text"], retry=retry)
    say(text="bolt: " + event["text"], thread_ts=event["ts"])


@app.event("message")
def message(event):
    show(saw="message", text=event.get("text"), subtype=event.get("subtype"))


if mode == "socket":
    handler = SocketModeHandler(app, credentials["app_token"])
    handler.connect()
    show(saw="ready")
    import threading
    threading.Event().wait()
else:
    show(saw="ready")
    app.start(port=int(mode))
