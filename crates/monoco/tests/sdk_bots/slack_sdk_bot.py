"""A bot made of slack_sdk alone: receives by Socket Mode and prints what it sees as JSON lines.

The first argument is the JSON line of `monoco sim slack`. The text of a message tells the bot what
to do; any other text is answered in its thread.
"""
import json
import sys
import threading
import urllib.request

from slack_sdk import WebClient
from slack_sdk.socket_mode import SocketModeClient
from slack_sdk.socket_mode.response import SocketModeResponse

sim = json.loads(sys.argv[1])
web = WebClient(sim["credentials"]["bot_token"], base_url=sim["base_url"])
own = web.auth_test()["user_id"]


def show(**facts):
    # One write per line: handlers run in several threads.
    sys.stdout.write(json.dumps(facts) + "\n")
    sys.stdout.flush()


def download(file):
    token = {"Authorization": "Bearer " + sim["credentials"]["bot_token"]}
    request = urllib.request.Request(file["url_private_download"], headers=token)
    return urllib.request.urlopen(request).read().decode()


def history(channel):
    pages = web.conversations_history(channel=channel, limit=2, include_all_metadata=True)
    return [[message["text"] for message in page["messages"]] for page in pages]


def handle(event):
    text, channel, ts = event.get("text", ""), event["channel"], event["ts"]
    if "download" in text:
        show(saw="file", content=[download(file) for file in event["files"]])
    elif "upload" in text:
        web.files_upload_v2(channel=channel, thread_ts=ts, content="from the bot",
                            filename="bot.txt", title="Bot", initial_comment="see the file")
    elif "history" in text:
        show(saw="history", pages=history(channel))
    elif "change" in text:
        sent = web.chat_postMessage(channel=channel, text="first")
        web.chat_update(channel=channel, ts=sent["ts"], text="second")
        web.reactions_add(channel=channel, timestamp=ts, name="eyes")
        web.chat_delete(channel=channel, ts=sent["ts"])
    else:
        web.chat_postMessage(channel=channel, text="re: " + text, thread_ts=ts)


def receive(client, request):
    event = request.payload["event"]
    show(saw="event", type=event["type"], subtype=event.get("subtype"), text=event.get("text"),
         event_id=request.payload["event_id"], retry=request.retry_attempt, ts=event.get("ts"))
    if event.get("text") == "no ack" and not request.retry_attempt:
        return
    client.send_socket_mode_response(SocketModeResponse(envelope_id=request.envelope_id))
    is_plain = event["type"] == "message" and event.get("subtype") in (None, "file_share")
    if is_plain and event.get("user") != own:
        handle(event)


client = SocketModeClient(sim["credentials"]["app_token"], web_client=web, ping_interval=1)
client.socket_mode_request_listeners.append(receive)
client.connect()
show(saw="ready")
threading.Event().wait()
