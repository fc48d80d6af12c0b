// A bot made of dingtalk-stream for Node.js: prints what it sees as JSON lines.
// The first argument is the JSON line of `monoco sim dingtalk`.
const { createRequire } = require("node:module");
const load = createRequire(process.env.REFERENCE_NPM + "/");
const axios = load("axios");
const { DWClient, EventAck, TOPIC_ROBOT } = load("dingtalk-stream");

const sim = JSON.parse(process.argv[2]);
const show = (facts) => process.stdout.write(JSON.stringify(facts) + "\n");
// The library has no option for the address of the API.
(axios.default ?? axios).interceptors.request.use((config) => {
  config.url = config.url
    .replace("https://api.dingtalk.com", sim.base_url)
    .replace("https://oapi.dingtalk.com", sim.oapi_url);
  return config;
});
// The library writes its own lines to the console.
console.log = console.info = console.debug = () => {};

const client = new DWClient({
  clientId: sim.credentials.app_key,
  clientSecret: sim.credentials.app_secret,
});
client.registerCallbackListener(TOPIC_ROBOT, async (frame) => {
  const message = JSON.parse(frame.data);
  const text = message.text?.content.trim();
  show({ saw: "message", text, id: message.msgId, frame: frame.headers.messageId });
  if (text === "no ack" && !client.wasAsked) {
    client.wasAsked = true;
    return;
  }
  const token = await client.getAccessToken();
  await axios({
    url: message.sessionWebhook,
    method: "POST",
    data: { msgtype: "text", text: { content: "node: " + text } },
    headers: { "x-acs-dingtalk-access-token": token },
  });
  client.socketCallBackResponse(frame.headers.messageId, { response: null });
});
client.registerAllEventListener((frame) => {
  show({ saw: "event", type: frame.headers.eventType, id: frame.headers.eventId });
  return { status: EventAck.SUCCESS };
});
client.connect().then(() => show({ saw: "ready" }));
