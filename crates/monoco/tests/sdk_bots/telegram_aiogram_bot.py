"""A bot made of aiogram: fetches updates (`poll`) or receives them on a port.

Arguments: the JSON line of `monoco sim telegram`, and `poll` or the port. On a port, its answers
to callbacks are method calls.
"""
import asyncio
import json
import sys

from aiogram import Bot, Dispatcher
from aiogram.client.session.aiohttp import AiohttpSession
from aiogram.client.telegram import TelegramAPIServer
from aiogram.types import BufferedInputFile
from aiogram.webhook.aiohttp_server import SimpleRequestHandler
from aiohttp import web

sim, mode = json.loads(sys.argv[1]), sys.argv[2]
session = AiohttpSession(api=TelegramAPIServer.from_base(sim["base_url"]))
bot = Bot(sim["credentials"]["token"], session=session)
dispatcher = Dispatcher()
KINDS = ["message", "edited_message", "channel_post", "edited_channel_post", "my_chat_member"]


def show(**facts):
    sys.stdout.write(json.dumps(facts) + "\n")
    sys.stdout.flush()


@dispatcher.message()
async def heard(message, event_update):
    text = message.text or message.caption
    facts = dict(saw="message", text=text, id=message.message_id, update=event_update.update_id,
                 chat=message.chat.type, kind=message.content_type)
    if message.document:
        facts["content"] = (await bot.download(message.document)).read().decode()
    show(**facts)
    if text == "upload":
        file = BufferedInputFile(b"from aiogram", filename="a.txt")
        return await message.answer_document(file, caption="a file")
    if text:
        # As the answer to a callback this is a method call, otherwise it is sent as usual.
        return message.reply("aiogram: " + text)


@dispatcher.edited_message()
async def edited(message):
    show(saw="edited_message", text=message.text)


@dispatcher.channel_post()
async def posted(message):
    show(saw="channel_post", text=message.text)


@dispatcher.my_chat_member()
async def changed(update):
    show(saw="my_chat_member", status=update.new_chat_member.status)


async def main():
    if mode == "poll":
        asyncio.get_running_loop().call_later(0.2, lambda: show(saw="ready"))
        await dispatcher.start_polling(
            bot, handle_signals=False, polling_timeout=10, allowed_updates=KINDS)
        return
    app = web.Application()
    handler = SimpleRequestHandler(
        dispatcher, bot, handle_in_background=False, secret_token="sim-secret")
    handler.register(app, "/hook")
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", int(mode)).start()
    await bot.set_webhook(f"http://127.0.0.1:{mode}/hook", secret_token="sim-secret")
    show(saw="ready")
    await asyncio.Event().wait()


asyncio.run(main())
