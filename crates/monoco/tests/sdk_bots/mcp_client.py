"""An MCP client made of the Python SDK: reads calls on stdin, prints results, one JSON per line."""

import asyncio
import json
import sys

import httpx2
from mcp import StdioServerParameters
from mcp.client.client import Client
from mcp.client.streamable_http import streamable_http_client

given = json.loads(sys.argv[1])


def show(**values):
    print(json.dumps(values), flush=True)


def server():
    if given["transport"] == "stdio":
        env = {"MONOCO_TOKEN": given["token"], "MONOCO_HOME": given["home"]}
        return StdioServerParameters(command=given["command"], args=["mcp"], env=env)
    headers = {"Authorization": f"Bearer {given['token']}"}
    http = httpx2.AsyncClient(headers=headers, timeout=70, trust_env=False)
    return streamable_http_client(given["url"], http_client=http)


async def perform(client, call):
    if call["do"] == "tools":
        listed = await client.list_tools()
        return {"tools": [tool.name for tool in listed.tools]}
    if call["do"] == "prompts":
        listed = await client.list_prompts()
        return {"prompts": [prompt.name for prompt in listed.prompts]}
    if call["do"] == "resource":
        result = await client.read_resource(call["uri"])
        return {"text": result.contents[0].text}
    result = await client.call_tool(call["do"], call["arguments"])
    return result.model_dump(mode="json", by_alias=True, exclude_none=True)


async def main():
    loop = asyncio.get_running_loop()
    async with Client(server(), mode=given["mode"]) as client:
        show(saw="ready", version=client.protocol_version, server=client.server_info.name)
        while line := await loop.run_in_executor(None, sys.stdin.readline):
            call = json.loads(line)
            try:
                show(saw=call["n"], result=await perform(client, call))
            except Exception as error:
                show(saw=call["n"], error=f"{type(error).__name__}: {error}")


asyncio.run(main())
