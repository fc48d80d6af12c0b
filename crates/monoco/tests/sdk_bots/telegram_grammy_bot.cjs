// A bot made of grammY: fetches updates (`poll`) or receives them on a port.
// Arguments: the JSON line of `monoco sim telegram`, and `poll` or the port. On a port, its answers
// to callbacks are method calls.
const http = require("node:http");
const { createRequire } = require("node:module");
const load = createRequire(process.env.REFERENCE_NPM + "/");
const { Bot, InputFile, webhookCallback } = load("grammy");

const [sim, mode] = [JSON.parse(process.argv[2]), process.argv[3]];
const show = (facts) => console.log(JSON.stringify(facts));
const bot = new Bot(sim.credentials.token, {
  client: { apiRoot: sim.base_url, canUseWebhookReply: (method) => method === "sendMessage" },
});

bot.on("message", async (ctx) => {
  const { message } = ctx;
  const text = message.text ?? message.caption;
  const facts = { saw: "message", text, id: message.message_id, update: ctx.update.update_id, chat: message.chat.type };
  if (message.document) {
    const file = await ctx.getFile();
    const url = `${sim.base_url}/file/bot${sim.credentials.token}/${file.file_path}`;
    facts.content = await (await fetch(url)).text();
  }
  show(facts);
  if (text === "upload") {
    await ctx.replyWithDocument(new InputFile(Buffer.from("from grammy"), "a.txt"), { caption: "a file" });
  } else if (text === "album") {
    const photo = (name) => ({ type: "photo", media: new InputFile(Buffer.from(name), name + ".jpg"), caption: name });
    await ctx.replyWithMediaGroup([photo("one"), photo("two")]);
  } else if (text) {
    await ctx.reply("grammy: " + text, { reply_parameters: { message_id: message.message_id } });
  }
});
bot.on("edited_message", (ctx) => show({ saw: "edited_message", text: ctx.msg.text }));
bot.on("channel_post", (ctx) => show({ saw: "channel_post", text: ctx.msg.text }));
bot.on("my_chat_member", (ctx) => show({ saw: "my_chat_member", status: ctx.myChatMember.new_chat_member.status }));
bot.catch((error) => show({ saw: "error", text: String(error.error) }));

(async () => {
  if (mode === "poll") {
    await bot.start({ timeout: 10, onStart: () => show({ saw: "ready" }) });
    return;
  }
  await bot.init();
  http.createServer(webhookCallback(bot, "http", { secretToken: "sim-secret" })).listen(Number(mode), "127.0.0.1", async () => {
    await bot.api.setWebhook(`http://127.0.0.1:${mode}/hook`, { secret_token: "sim-secret" });
    show({ saw: "ready" });
  });
})().catch((error) => show({ saw: "ended", text: String(error) }));
