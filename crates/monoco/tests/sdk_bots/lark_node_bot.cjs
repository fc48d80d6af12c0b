// A bot made of Lark's SDK for Node.js: receives by long connection (`socket`) or by HTTP on a port.
// Arguments: the JSON line of `monoco sim lark`, and `socket` or the port.
const http = require("node:http");
const { createRequire } = require("node:module");
const load = createRequire(process.env.REFERENCE_NPM + "/");
const lark = load("@larksuiteoapi/node-sdk");

const sim = JSON.parse(process.argv[2]);
const mode = process.argv[3];
const keys = sim.credentials;
const show = (facts) => process.stdout.write(JSON.stringify(facts) + "\n");
// The library writes its own lines to the console.
console.log = console.info = console.debug = console.warn = () => {};

const options = {
  appId: keys.app_id,
  appSecret: keys.app_secret,
  domain: sim.base_url,
  loggerLevel: lark.LoggerLevel.error,
};
const api = new lark.Client(options);
let hasFailed = false;

async function read(stream) {
  const chunks = [];
  for await (const chunk of stream) chunks.push(chunk);
  return Buffer.concat(chunks).toString();
}

const events = new lark.EventDispatcher({
  encryptKey: keys.encrypt_key,
  verificationToken: keys.verification_token,
  loggerLevel: lark.LoggerLevel.error,
}).register({
  "im.message.receive_v1": async (data) => {
    const message = data.message;
    const content = JSON.parse(message.content);
    const text = content.text;
    show({
      saw: "message", text, kind: message.message_type, id: message.message_id,
      chat: message.chat_id, event: data.event_id, sender: data.sender.sender_id.open_id,
      thread: message.thread_id,
    });
    if (text === "no ack" && !hasFailed) {
      hasFailed = true;
      throw new Error("not acknowledged on purpose");
    }
    if (message.message_type === "image") {
      const found = await api.im.messageResource.get({
        path: { message_id: message.message_id, file_key: content.image_key },
        params: { type: "image" },
      });
      show({ saw: "file", content: await read(found.getReadableStream()) });
    } else if (text === "upload") {
      const image = await api.im.image.create({
        data: { image_type: "message", image: Buffer.from("png") },
      });
      await api.im.message.create({
        params: { receive_id_type: "chat_id" },
        data: {
          receive_id: message.chat_id, msg_type: "image",
          content: JSON.stringify({ image_key: image.image_key }),
        },
      });
    } else if (text?.startsWith("hello")) {
      await api.im.message.reply({
        path: { message_id: message.message_id },
        data: {
          msg_type: "text", content: JSON.stringify({ text: "node: " + text }),
          reply_in_thread: text.endsWith("topic"), uuid: "node-" + message.message_id.slice(-32),
        },
      });
    }
  },
  "im.message.recalled_v1": async (data) => show({ saw: "recall", id: data.message_id }),
  "im.message.reaction.created_v1": async (data) =>
    show({ saw: "reaction", id: data.message_id, emoji: data.reaction_type.emoji_type }),
});

if (mode === "socket") {
  const client = new lark.WSClient({
    ...options,
    onReady: () => show({ saw: "connected" }),
    onError: (error) => show({ saw: "stopped", text: String(error) }),
  });
  client.start({ eventDispatcher: events });
  show({ saw: "ready" });
} else {
  const receive = lark.adaptDefault("/hook", events, { autoChallenge: true });
  http.createServer(receive).listen(Number(mode), "127.0.0.1", () => show({ saw: "ready" }));
}
