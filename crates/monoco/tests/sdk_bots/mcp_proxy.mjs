// Forwards requests to the courier and adds the token, for clients that cannot send one.

import http from "node:http";

const { port, token } = JSON.parse(process.argv[2]);

const server = http.createServer((request, response) => {
  const headers = { ...request.headers, authorization: `Bearer ${token}` };
  // The courier checks the port of Host and Origin; all else is passed on as it is.
  const own = `:${server.address().port}`;
  for (const name of ["host", "origin"]) {
    headers[name] = headers[name]?.replace(own, `:${port}`);
    if (headers[name] === undefined) delete headers[name];
  }
  const options = { host: "127.0.0.1", port, path: request.url, method: request.method, headers };
  const forwarded = http.request(options, (answer) => {
    response.writeHead(answer.statusCode, answer.headers);
    answer.pipe(response);
  });
  forwarded.on("error", () => response.destroy());
  request.pipe(forwarded);
});
server.listen(0, "127.0.0.1", () => {
  console.log(JSON.stringify({ saw: "ready", port: server.address().port }));
});
