"""Receives messages with the SDK of a vendor: appends each to a file and syncs it, then
acknowledges it.

Usage: handler.py slack FILE BASE_URL APP_TOKEN BOT_TOKEN
       handler.py dingtalk FILE BASE_URL APP_KEY APP_SECRET
       handler.py lark FILE BASE_URL APP_ID APP_SECRET
       handler.py telegram FILE BASE_URL TOKEN
"""

import json
import os
import sys
import threading


class DurableFile:
    """A file that has each line on disk when `append` returns."""

    def __init__(self, path):
        self.file = open(path, "ab", buffering=0)
        self.lock = threading.Lock()

    def append(self, value):
        line = json.dumps(value, separators=(",", ":")).encode() + b"\n"
        with self.lock:
            self.file.write(line)
            os.fdatasync(self.file.fileno())


def slack(kept, base_url, app_token, bot_token):
    from slack_sdk import WebClient
    from slack_sdk.socket_mode import SocketModeClient
    from slack_sdk.socket_mode.response import SocketModeResponse

    client = SocketModeClient(
        app_token=app_token,
        web_client=WebClient(token=bot_token, base_url=base_url),
    )

    def receive(client, request):
        if request.type == "events_api":
            kept.append(request.payload)
        client.send_socket_mode_response(SocketModeResponse(envelope_id=request.envelope_id))

    client.socket_mode_request_listeners.append(receive)
    client.connect()
    threading.Event().wait()


def dingtalk(kept, base_url, app_key, app_secret):
    os.environ["DINGTALK_OPENAPI_ENDPOINT"] = base_url.rstrip("/")
    import dingtalk_stream
    from dingtalk_stream import AckMessage

    class Handler(dingtalk_stream.ChatbotHandler):
        async def process(self, callback):
            kept.append(callback.data)
            return AckMessage.STATUS_OK, "OK"

    credential = dingtalk_stream.Credential(app_key, app_secret)
    client = dingtalk_stream.DingTalkStreamClient(credential)
    client.OPEN_CONNECTION_API = base_url.rstrip("/") + "/v1.0/gateway/connections/open"
    client.register_callback_handler(dingtalk_stream.chatbot.ChatbotMessage.TOPIC, Handler())
    client.start_forever()


def lark(kept, base_url, app_id, app_secret):
    import lark_oapi

    def receive(data):
        kept.append(json.loads(lark_oapi.JSON.marshal(data)))

    events = lark_oapi.EventDispatcherHandler.builder("", "", lark_oapi.LogLevel.ERROR)
    events = events.register_p2_im_message_receive_v1(receive).build()
    lark_oapi.ws.Client(app_id, app_secret, event_handler=events, domain=base_url,
                        log_level=lark_oapi.LogLevel.ERROR).start()


def telegram(kept, base_url, token):
    from telegram import Update
    from telegram.ext import ApplicationBuilder, TypeHandler

    async def receive(update, context):
        kept.append(update.to_dict())

    builder = ApplicationBuilder().token(token).base_url(base_url + "/bot")
    app = builder.base_file_url(base_url + "/file/bot").build()
    app.add_handler(TypeHandler(Update, receive))
    app.run_polling(timeout=30, allowed_updates=["message"])


if __name__ == "__main__":
    network, path, *credentials = sys.argv[1:]
    networks = {"slack": slack, "dingtalk": dingtalk, "lark": lark, "telegram": telegram}
    networks[network](DurableFile(path), *credentials)
