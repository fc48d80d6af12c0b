// A bot made of @slack/socket-mode and @slack/web-api: prints what it sees as JSON lines.
// The first argument is the JSON line of `monoco sim slack`.
const { createRequire } = require("node:module");
const load = createRequire(process.env.REFERENCE_NPM + "/");
const { SocketModeClient, LogLevel } = load("@slack/socket-mode");
const { WebClient } = load("@slack/web-api");

const sim = JSON.parse(process.argv[2]);
const show = (facts) => console.log(JSON.stringify(facts));
const clientOptions = { slackApiUrl: sim.base_url };
const web = new WebClient(sim.credentials.bot_token, clientOptions);
const client = new SocketModeClient({
  appToken: sim.credentials.app_token,
  clientOptions,
  logLevel: LogLevel.ERROR,
});

client.on("connected", () => show({ saw: "ready" }));
client.on("message", async ({ event, body, ack, retry_num }) => {
  show({ saw: "event", text: event.text, event_id: body.event_id, retry: retry_num });
  if (event.text === "no ack" && !retry_num) return;
  await ack();
  if (event.bot_id) return;
  if (event.text.includes("upload")) {
    await web.files.uploadV2({
      channel_id: event.channel,
      thread_ts: event.ts,
      file: Buffer.from("from node"),
      filename: "node.txt",
    });
    return;
  }
  await web.chat.postMessage({
    channel: event.channel,
    thread_ts: event.ts,
    text: "node: " + event.text,
    blocks: [{ type: "section", text: { type: "mrkdwn", text: event.text } }],
  });
});
client.start();
