"""A bot made of dingtalk-stream for Python: prints what it sees as JSON lines.

The first argument is the JSON line of `monoco sim dingtalk`.
"""
import json
import os
import sys
import urllib.request

sim = json.loads(sys.argv[1])
# The module reads the variable when it is imported.
os.environ["DINGTALK_OPENAPI_ENDPOINT"] = sim["base_url"]

import dingtalk_stream  # noqa: E402
from dingtalk_stream import AckMessage, ChatbotMessage  # noqa: E402


def show(**facts):
    # One write per line: handlers run in several threads.
    sys.stdout.write(json.dumps(facts) + "\n")
    sys.stdout.flush()


class Robot(dingtalk_stream.ChatbotHandler):
    def __init__(self):
        super().__init__()
        self.is_acknowledged = True

    async def process(self, callback):
        message = ChatbotMessage.from_dict(callback.data)
        kind, text = message.message_type, message.text.content.strip() if message.text else None
        show(saw="message", kind=kind, text=text, id=message.message_id,
             frame=callback.headers.message_id, chat=message.conversation_type,
             sender=message.sender_nick, staff=message.sender_staff_id)
        if text == "no ack" and self.is_acknowledged:
            self.is_acknowledged = False
            raise RuntimeError("not acknowledged on purpose")
        if kind in ("picture", "richText"):
            for code in message.get_image_list():
                url = self.get_image_download_url(code)
                show(saw="file", content=urllib.request.urlopen(url).read().decode())
        if kind == "text":
            self.reply_text("re: " + text, message)
            self.reply_markdown("Answer", "# re: " + text, message)
        return AckMessage.STATUS_OK, "OK"


class Events(dingtalk_stream.EventHandler):
    async def process(self, event):
        show(saw="event", type=event.headers.event_type, id=event.headers.event_id,
             data=event.data)
        return AckMessage.STATUS_OK, "OK"


credentials = sim["credentials"]
credential = dingtalk_stream.Credential(credentials["app_key"], credentials["app_secret"])
client = dingtalk_stream.DingTalkStreamClient(credential)
client.register_callback_handler(ChatbotMessage.TOPIC, Robot())
client.register_all_event_handler(Events())
show(saw="ready")
client.start_forever()
