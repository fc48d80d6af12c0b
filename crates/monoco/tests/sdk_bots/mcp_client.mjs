// An MCP client made of a Node SDK: reads calls on stdin, prints results, one JSON per line.

import { createRequire } from "node:module";
import { createInterface } from "node:readline";

const given = JSON.parse(process.argv[2]);
const load = createRequire(`${process.env.REFERENCE_NPM}/node_modules/`);
const show = (values) => console.log(JSON.stringify(values));

// The first generation has its client in another package.
const isFirst = given.sdk === "sdk";
const scope = "@modelcontextprotocol";
const { Client } = load(isFirst ? `${scope}/sdk/client/index.js` : `${scope}/client`);
const http = load(isFirst ? `${scope}/sdk/client/streamableHttp.js` : `${scope}/client`);
const stdio = load(isFirst ? `${scope}/sdk/client/stdio.js` : `${scope}/client/stdio`);

function transport() {
  if (given.transport === "stdio") {
    const env = { MONOCO_TOKEN: given.token, MONOCO_HOME: given.home };
    return new stdio.StdioClientTransport({ command: given.command, args: ["mcp"], env });
  }
  const requestInit = { headers: { Authorization: `Bearer ${given.token}` } };
  return new http.StreamableHTTPClientTransport(new URL(given.url), { requestInit });
}

async function perform(client, call) {
  if (call.do === "tools") {
    return { tools: (await client.listTools()).tools.map((tool) => tool.name) };
  }
  if (call.do === "prompts") {
    return { prompts: (await client.listPrompts()).prompts.map((prompt) => prompt.name) };
  }
  if (call.do === "resource") {
    return { text: (await client.readResource({ uri: call.uri })).contents[0].text };
  }
  return await client.callTool({ name: call.do, arguments: call.arguments });
}

const mode = given.mode === "legacy" ? "legacy" : { pin: given.mode };
const options = isFirst ? {} : { versionNegotiation: { mode } };
const client = new Client({ name: "judge", version: "1.0.0" }, options);
await client.connect(transport());
show({ saw: "ready", server: client.getServerVersion()?.name });
for await (const line of createInterface({ input: process.stdin })) {
  const call = JSON.parse(line);
  try {
    show({ saw: call.n, result: await perform(client, call) });
  } catch (error) {
    show({ saw: call.n, error: `${error.name}: ${error.message}` });
  }
}
await client.close();
