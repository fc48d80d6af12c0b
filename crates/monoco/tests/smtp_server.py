"""An SMTP server for the tests, made with aiosmtpd.

Usage: smtp_server.py PORT SPOOL none|starttls|implicit CERT KEY [RULE...]

Accepts the password `secret` for every user. Each accepted mail becomes two files in SPOOL:
N.eml with its bytes and N.json with its envelope. A rule is `STAGE=ANSWER[*TIMES][@WORD]`. STAGE
is MAIL, RCPT or DATA. ANSWER is a reply such as `450 4.2.0 later`, `drop` (close the connection
without an answer; after DATA the mail is in the spool, as when an answer is lost),
`wait:SECONDS` (answer later) or `hold` (answer when SPOOL has a file `release`). A rule applies TIMES times (default: always), and only when the
address or the mail contains WORD. Ends when its standard input is closed.
"""

import asyncio
import json
import os
import ssl
import sys

from aiosmtpd.controller import Controller
from aiosmtpd.smtp import SMTP, AuthResult

DSN_PARAMETERS = ["ENVID", "RET", "NOTIFY", "ORCPT"]


class Rule:
    def __init__(self, text):
        self.stage, rest = text.split("=", 1)
        rest, _, self.word = rest.partition("@")
        self.answer, _, times = rest.partition("*")
        self.times = int(times) if times else None

    def applies(self, stage, text):
        if self.stage != stage or self.word not in text or self.times == 0:
            return False
        if self.times is not None:
            self.times -= 1
        return True


class Handler:
    def __init__(self, spool, rules):
        self.spool, self.rules = spool, rules
        self.count = len([name for name in os.listdir(spool) if name.endswith(".json")])

    def rule(self, stage, text):
        return next((rule.answer for rule in self.rules if rule.applies(stage, text)), None)

    async def play(self, server, answer):
        """Does what an answer says. Returns the reply; None: go on."""
        if answer == "drop":
            server.transport.abort()
            return "421 4.3.0 closing"
        if answer and answer.startswith("wait:"):
            await asyncio.sleep(float(answer[5:]))
            return None
        if answer == "hold":
            while not os.path.exists(os.path.join(self.spool, "release")):
                await asyncio.sleep(0.02)
            return None
        return answer

    async def handle_EHLO(self, server, session, envelope, hostname, responses):
        session.host_name = hostname
        return responses[:-1] + ["250-DSN", "250-ENHANCEDSTATUSCODES"] + responses[-1:]

    async def handle_MAIL(self, server, session, envelope, address, options):
        reply = await self.play(server, self.rule("MAIL", address or ""))
        if reply:
            return reply
        envelope.mail_from = address
        envelope.mail_options.extend(options)
        return "250 2.1.0 OK"

    async def handle_RCPT(self, server, session, envelope, address, options):
        reply = await self.play(server, self.rule("RCPT", address))
        if reply:
            return reply
        envelope.rcpt_tos.append(address)
        envelope.rcpt_options.extend(options)
        return "250 2.1.5 OK"

    async def handle_DATA(self, server, session, envelope):
        answer = self.rule("DATA", envelope.original_content.decode("latin-1"))
        if answer in (None, "drop", "hold") or answer.startswith("wait:"):
            self.store(session, envelope)
        return await self.play(server, answer) or "250 2.0.0 accepted"

    def store(self, session, envelope):
        self.count += 1
        name = os.path.join(self.spool, str(self.count))
        with open(name + ".eml", "wb") as file:
            file.write(envelope.original_content)
        described = {
            "from": envelope.mail_from,
            "to": envelope.rcpt_tos,
            "mail_options": envelope.mail_options,
            "rcpt_options": envelope.rcpt_options,
            "authenticated": session.authenticated,
            "tls": session.ssl is not None,
        }
        with open(name + ".tmp", "w") as file:
            json.dump(described, file)
        os.rename(name + ".tmp", name + ".json")


class Server(SMTP):
    """Accepts the parameters of DSN (RFC 3461), which aiosmtpd does not know."""

    def _getparams(self, params):
        known = super()._getparams(params)
        for name in DSN_PARAMETERS:
            (known or {}).pop(name, None)
        return known


def authenticate(server, session, envelope, mechanism, data):
    return AuthResult(success=getattr(data, "password", None) == b"secret")


class Sink(Controller):
    def __init__(self, handler, port, tls, context):
        self.context = context if tls == "starttls" else None
        implicit = {"ssl_context": context} if tls == "implicit" else {}
        super().__init__(handler, hostname="127.0.0.1", port=port, **implicit)

    def factory(self):
        return Server(
            self.handler,
            enable_SMTPUTF8=True,
            data_size_limit=200 << 20,
            tls_context=self.context,
            require_starttls=self.context is not None,
            authenticator=authenticate,
            auth_require_tls=False,
            loop=self.loop,
        )


def main():
    port, spool, tls, cert, key = int(sys.argv[1]), *sys.argv[2:6]
    context = None
    if tls != "none":
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(cert, key)
    rules = [Rule(text) for text in sys.argv[6:]]
    sink = Sink(Handler(spool, rules), port, tls, context)
    sink.start()
    print("ready", flush=True)
    sys.stdin.read()
    sink.stop()


main()
