// A bot made of @slack/bolt: receives by Socket Mode (`socket`) or by HTTP on a port.
// Arguments: the JSON line of `monoco sim slack`, and `socket` or the port.
const { createRequire } = require("node:module");
const load = createRequire(process.env.REFERENCE_NPM + "/");
const { App, LogLevel } = load("@slack/bolt");

const [sim, mode] = [JSON.parse(process.argv[2]), process.argv[3]];
const show = (facts) => console.log(JSON.stringify(facts));
const app = new App({
  token: sim.credentials.bot_token,
  appToken: sim.credentials.app_token,
  signingSecret: sim.credentials.signing_secret,
  socketMode: mode === "socket",
  clientOptions: { slackApiUrl: sim.base_url },
  logLevel: LogLevel.ERROR,
});

app.event("app_mention", async ({ event, say, context }) => {
  show({ saw: "app_mention", text: event.text, retry: context.retryNum ?? 0 });
  await say({ text: "bolt: " + event.text, thread_ts: event.ts });
});
app.start(mode === "socket" ? undefined : Number(mode)).then(() => show({ saw: "ready" }));
