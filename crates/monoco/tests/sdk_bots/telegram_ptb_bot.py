"""A bot made of python-telegram-bot: fetches updates (`poll`) or receives them on a port.

Arguments: the JSON line of `monoco sim telegram`, and `poll` or the port.
"""
import asyncio
import json
import sys

from telegram import ReactionTypeEmoji, ReplyParameters, Update
from telegram.ext import ApplicationBuilder, TypeHandler

sim, mode = json.loads(sys.argv[1]), sys.argv[2]
base = sim["base_url"]
KINDS = ["message", "edited_message", "channel_post", "edited_channel_post", "message_reaction",
         "my_chat_member", "chat_member"]


def show(**facts):
    sys.stdout.write(json.dumps(facts) + "\n")
    sys.stdout.flush()


def attachment(message):
    found = message.effective_attachment
    return found[-1] if isinstance(found, (list, tuple)) and found else found


async def heard(update, context):
    kind = next(kind for kind in KINDS if getattr(update, kind) is not None)
    message = update.effective_message
    if message is None:
        return show(saw=kind, update=update.update_id)
    text = message.text or message.caption
    facts = dict(saw=kind, text=text, id=message.message_id, update=update.update_id,
                 chat=message.chat.type, thread=message.message_thread_id)
    if message.document:
        file = await message.document.get_file()
        facts["content"] = bytes(await file.download_as_bytearray()).decode()
    show(**facts)
    reply = ReplyParameters(message.message_id)
    if text == "upload":
        await message.reply_document(b"from ptb", filename="a;b \u00e4.txt", caption="a file")
    elif text == "react":
        await message.set_reaction(ReactionTypeEmoji("\N{EYES}"))
    elif text == "html":
        await message.reply_text("<b>bold</b> &lt;", parse_mode="HTML", reply_parameters=reply)
    elif text and kind == "message":
        await message.reply_text("re: " + text, reply_parameters=reply, disable_notification=True)


async def main():
    builder = ApplicationBuilder().token(sim["credentials"]["token"])
    app = builder.base_url(base + "/bot").base_file_url(base + "/file/bot").build()
    app.add_handler(TypeHandler(Update, heard))
    async with app:
        await app.start()
        if mode == "poll":
            await app.updater.start_polling(timeout=10, allowed_updates=KINDS)
        else:
            await app.updater.start_webhook(
                listen="127.0.0.1", port=int(mode), url_path="hook", secret_token="sim-secret",
                webhook_url=f"http://127.0.0.1:{mode}/hook", allowed_updates=KINDS)
        show(saw="ready")
        await asyncio.Event().wait()


asyncio.run(main())
