"""A bot made of lark-oapi: receives by long connection (`socket`) or by HTTP on a port.

Arguments: the JSON line of `monoco sim lark`, and `socket` or the port.
"""
import io
import json
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer

import lark_oapi as lark
from lark_oapi.api.im.v1 import (
    CreateFileRequest, CreateFileRequestBody, CreateImageRequest, CreateImageRequestBody,
    CreateMessageReactionRequest, CreateMessageReactionRequestBody, CreateMessageRequest,
    CreateMessageRequestBody, Emoji, GetMessageResourceRequest, ReplyMessageRequest,
    ReplyMessageRequestBody,
)

sim, mode = json.loads(sys.argv[1]), sys.argv[2]
keys = sim["credentials"]
api = lark.Client.builder().app_id(keys["app_id"]).app_secret(keys["app_secret"]) \
    .domain(sim["base_url"]).log_level(lark.LogLevel.ERROR).build()
failed_on_purpose = set()


def show(**facts):
    # One write per line: handlers may run in several threads.
    sys.stdout.write(json.dumps(facts) + "\n")
    sys.stdout.flush()


def checked(response):
    if not response.success():
        show(saw="error", code=response.code, text=response.msg)
    return response


def reply(message_id, text, in_thread=False):
    body = ReplyMessageRequestBody.builder().msg_type("text").content(json.dumps({"text": text})) \
        .reply_in_thread(in_thread).uuid("re-" + message_id[-32:]).build()
    request = ReplyMessageRequest.builder().message_id(message_id).request_body(body).build()
    return checked(api.im.v1.message.reply(request))


def send(chat_id, kind, content):
    body = CreateMessageRequestBody.builder().receive_id(chat_id).msg_type(kind) \
        .content(json.dumps(content)).build()
    request = CreateMessageRequest.builder().receive_id_type("chat_id").request_body(body).build()
    return checked(api.im.v1.message.create(request))


def upload(chat_id):
    image = CreateImageRequestBody.builder().image_type("message").image(io.BytesIO(b"png")).build()
    found = checked(api.im.v1.image.create(CreateImageRequest.builder().request_body(image).build()))
    send(chat_id, "image", {"image_key": found.data.image_key})
    report = CreateFileRequestBody.builder().file_type("stream").file_name("report.txt") \
        .file(io.BytesIO(b"report")).build()
    found = checked(api.im.v1.file.create(CreateFileRequest.builder().request_body(report).build()))
    send(chat_id, "file", {"file_key": found.data.file_key})


def download(message):
    content = json.loads(message.content)
    kind = "image" if message.message_type == "image" else "file"
    key = content["image_key"] if kind == "image" else content["file_key"]
    request = GetMessageResourceRequest.builder().message_id(message.message_id).file_key(key) \
        .type(kind).build()
    found = checked(api.im.v1.message_resource.get(request))
    show(saw="file", kind=kind, content=found.file.read().decode())


def react(message_id):
    body = CreateMessageReactionRequestBody.builder() \
        .reaction_type(Emoji.builder().emoji_type("THUMBSUP").build()).build()
    request = CreateMessageReactionRequest.builder().message_id(message_id).request_body(body).build()
    checked(api.im.v1.message_reaction.create(request))


def on_message(data):
    message, sender = data.event.message, data.event.sender
    content = message.content
    text = json.loads(content).get("text") if message.message_type == "text" else None
    show(saw="message", kind=message.message_type, text=text, content=content,
         id=message.message_id, chat=message.chat_id, chat_type=message.chat_type,
         event=data.header.event_id, sender=sender.sender_id.open_id,
         sender_type=sender.sender_type, root=message.root_id, parent=message.parent_id,
         thread=message.thread_id,
         mentions=[[m.key, m.name, m.id.open_id] for m in message.mentions or []])
    if text == "no ack" and text not in failed_on_purpose:
        failed_on_purpose.add(text)
        raise RuntimeError("not acknowledged on purpose")
    if message.message_type in ("image", "file", "audio", "media"):
        download(message)
    elif text == "upload":
        upload(message.chat_id)
    elif text == "react":
        react(message.message_id)
    elif text and text.startswith("topic"):
        reply(message.message_id, "re: " + text, in_thread=True)
    elif text and text.startswith("hello"):
        reply(message.message_id, "re: " + text)


def on_recall(data):
    show(saw="recall", id=data.event.message_id, type=data.event.recall_type)


def on_reaction(data):
    show(saw="reaction", id=data.event.message_id, emoji=data.event.reaction_type.emoji_type,
         user=data.event.user_id.open_id)


def on_reaction_removed(data):
    show(saw="reaction removed", id=data.event.message_id)


def on_read(data):
    show(saw="read", ids=data.event.message_id_list, user=data.event.reader.reader_id.open_id)


def on_member(data):
    show(saw="member", chat=data.event.chat_id, users=[user.name for user in data.event.users])


events = lark.EventDispatcherHandler.builder(
    keys["encrypt_key"], keys["verification_token"], lark.LogLevel.ERROR) \
    .register_p2_im_message_receive_v1(on_message) \
    .register_p2_im_message_recalled_v1(on_recall) \
    .register_p2_im_message_reaction_created_v1(on_reaction) \
    .register_p2_im_message_reaction_deleted_v1(on_reaction_removed) \
    .register_p2_im_message_message_read_v1(on_read) \
    .register_p2_im_chat_member_user_added_v1(on_member) \
    .build()


class Receiver(BaseHTTPRequestHandler):
    def do_POST(self):
        request = lark.RawRequest()
        request.uri = self.path
        request.body = self.rfile.read(int(self.headers["Content-Length"]))
        request.headers = {name: value for name, value in self.headers.items()}
        # The SDK asks for these names as Lark's documentation writes them.
        for name in ("X-Lark-Request-Timestamp", "X-Lark-Request-Nonce", "X-Lark-Signature"):
            if name in self.headers:
                request.headers[name] = self.headers[name]
        answer = events.do(request)
        if answer.status_code != 200:
            show(saw="rejected", status=answer.status_code, text=answer.content.decode())
        self.send_response(answer.status_code)
        self.end_headers()
        self.wfile.write(answer.content)

    def log_message(self, *_):
        pass


if mode == "socket":
    client = lark.ws.Client(keys["app_id"], keys["app_secret"], event_handler=events,
                            log_level=lark.LogLevel.ERROR, domain=sim["base_url"])
    show(saw="ready")
    try:
        client.start()
    except Exception as error:
        show(saw="stopped", text=str(error))
else:
    server = HTTPServer(("127.0.0.1", int(mode)), Receiver)
    show(saw="ready")
    server.serve_forever()
